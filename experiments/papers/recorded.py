"""What runs of ours found, kept with the package: `docs/papers/` says it of every claim, and
`reproduce --list` where there is no run of yours.

`python -m experiments.papers.keep RUN_FOLDER ...` wrote them: no number is written by hand. A run
that measured some claims again stands beside a longer one (`--beside RUN_FOLDER`).
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from experiments.papers.config import ReproduceConfig
from experiments.results.claims import NOT_MEASURED, Outcome, Paper
from experiments.results.measured import Measured


@dataclass(frozen=True)
class Recorded:
    """What a run of ours found of one paper.

    Attributes:
        config: how it was run; of a given model it has the file's name.
        seconds: how long it took there.
        found: the number of each claim that it measured.
        tests: in words, those that claims had when the run was kept.
    """

    config: ReproduceConfig
    seconds: float
    found: dict[str, Measured]
    tests: dict[str, str]

    @property
    def outcomes(self) -> list[Outcome]:
        """One for each claim of the paper, in its order; tests are those of today's registry."""
        return [
            Outcome(claim, self.found.get(claim.id, NOT_MEASURED), self.config.reduced)
            for claim in self.config.paper.claims
        ]


def kept_in(name: str) -> Traversable:
    """The file that what is known of a paper is kept in."""
    return files("experiments.papers") / name / "recorded.json"


def recorded(name: str) -> list[Recorded]:
    """What is kept of a paper.

    Args:
        name: as `nope-interp reproduce` takes it.

    Returns:
        The runs, the last one kept first; none where none was kept.
    """
    return [_of(kept) for kept in reversed(all_kept(name))]


def all_kept(name: str) -> list[dict[str, Any]]:
    """The runs as they stand in the file, the last one kept last."""
    file = kept_in(name)
    if not file.is_file():
        return []
    kept: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def kept_outcomes(paper: Paper) -> list[Outcome]:
    """One for each claim of a paper, in its order: of the last run kept that measured it."""
    last = [Outcome(claim, NOT_MEASURED) for claim in paper.claims]
    for run in reversed(recorded(paper.name)):
        last = [new if new.found.n else old for old, new in zip(last, run.outcomes, strict=True)]
    return last


def _of(kept: dict[str, Any]) -> Recorded:
    found = {id: Measured(**number) for id, number in kept["found"].items()}
    config = ReproduceConfig.from_dict(kept["config"])
    return Recorded(config, kept["seconds"], found, kept["tests"])
