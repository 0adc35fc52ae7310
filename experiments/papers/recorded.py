"""What runs of ours found, kept with the package: `docs/papers.md` says it of every claim, and
`reproduce --list` where there is no run of yours.

`python -m experiments.papers.recorded RUN_FOLDER ...` keeps finished runs: no number is written by
hand.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from experiments.papers.config import ReproduceConfig
from experiments.papers.result import Reproduction
from experiments.results.claims import NOT_MEASURED, Outcome
from experiments.results.measured import Measured

_FILE = "recorded.json"


@dataclass(frozen=True)
class Recorded:
    """What a run of ours found of one paper.

    Attributes:
        config: how it was run; of a given model it has the file's name.
        seconds: how long it took there.
        found: the number of each claim that it measured.
    """

    config: ReproduceConfig
    seconds: float
    found: dict[str, Measured]

    @property
    def outcomes(self) -> list[Outcome]:
        """One for each claim of the paper, in its order; tests are those of today's registry."""
        return [
            Outcome(claim, self.found.get(claim.id, NOT_MEASURED), self.config.factors)
            for claim in self.config.paper.claims
        ]


def recorded(name: str) -> Recorded | None:
    """What is kept of a paper.

    Args:
        name: as `nope-interp reproduce` takes it.

    Returns:
        The run; None where none was kept.
    """
    file = files("experiments.papers") / name / _FILE
    if not file.is_file():
        return None
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    found = {id: Measured(**number) for id, number in kept["found"].items()}
    return Recorded(ReproduceConfig.from_dict(kept["config"]), kept["seconds"], found)


def record(folder: Path | str) -> Path:
    """Keep what a finished run found, in place of what was kept of its paper before.

    Args:
        folder: where the run was kept.

    Returns:
        The file written.

    Raises:
        UserError: it is unfinished, damaged or of another experiment.
    """
    run = Reproduction.load(folder)
    config = run.config
    if config.model is not None:
        config = replace(config, model=Path(config.model).name)
    measured = {o.claim.id: vars(o.found) for o in run.outcomes if o.found.n}
    kept = {
        "config": config.to_dict(),
        "seconds": float(run.info["seconds"]),
        "found": measured,
    }
    path = Path(str(files("experiments.papers") / config.name / _FILE))
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def main(folders: Sequence[str]) -> None:
    """Keep the runs in these folders."""
    for folder in folders:
        print(record(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
