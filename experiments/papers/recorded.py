"""What runs of ours found, kept with the package: `docs/papers.md` says it of every claim, and
`reproduce --list` where there is no run of yours.

`python -m experiments.papers.keep RUN_FOLDER ...` wrote them: no number is written by hand. What a
shorter run measured again stands beside the longer one (`--beside RUN_FOLDER`).
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from experiments.papers.config import ReproduceConfig
from experiments.results.claims import NOT_MEASURED, Outcome
from experiments.results.measured import Measured


@dataclass(frozen=True)
class Recorded:
    """What a run of ours found of one paper.

    Attributes:
        config: how it was run; of a given model it has the file's name.
        seconds: how long it took there.
        found: the number of each claim that it measured.
        tests: in words, those that claims had when the run was kept.
        beside: a later run, whose numbers stand for those of the same claims.
    """

    config: ReproduceConfig
    seconds: float
    found: dict[str, Measured]
    tests: dict[str, str]
    beside: "Recorded | None" = None

    @property
    def outcomes(self) -> list[Outcome]:
        """One for each claim of the paper, in its order; tests are those of today's registry."""
        found = self.found | (self.beside.found if self.beside else {})
        return [
            Outcome(claim, found.get(claim.id, NOT_MEASURED), self.config.reduced)
            for claim in self.config.paper.claims
        ]


def kept_in(name: str) -> Traversable:
    """The file that what is known of a paper is kept in."""
    return files("experiments.papers") / name / "recorded.json"


def recorded(name: str) -> Recorded | None:
    """What is kept of a paper.

    Args:
        name: as `nope-interp reproduce` takes it.

    Returns:
        The run; None where none was kept.
    """
    file = kept_in(name)
    if not file.is_file():
        return None
    return _of(json.loads(file.read_text(encoding="utf-8")))


def _of(kept: dict[str, Any]) -> Recorded:
    found = {id: Measured(**number) for id, number in kept["found"].items()}
    config = ReproduceConfig.from_dict(kept["config"])
    beside = _of(kept["beside"]) if "beside" in kept else None
    return Recorded(config, kept["seconds"], found, kept["tests"], beside)
