"""Keeps what a finished run found of a paper with the package: `python -m experiments.papers.keep
RUN_FOLDER ...`; with `--beside`, beside what is kept already."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.papers.recorded import all_kept, kept_in, recorded
from experiments.papers.result import Reproduction
from nope_interp.files import write_text


def record(folder: Path | str, beside: bool = False) -> Path:
    """Keep what a finished run found, in place of what was kept of its paper before.

    Args:
        folder: where the run was kept.
        beside: keep it beside what is kept, for the claims that it measured; where one was run
            alike, in its place.

    Returns:
        The file written.

    Raises:
        UserError: it is unfinished, damaged or of another experiment.
    """
    run = Reproduction.load(folder)
    config = run.config
    if config.model is not None:
        config = replace(config, model=Path(config.model).name)
    found = [outcome for outcome in run.outcomes if outcome.found.n]
    tests = {outcome.claim.id: outcome.claim.test for outcome in found}
    for before in recorded(config.name):  # a number that is kept again was judged by its first test
        same = [o.claim.id for o in found if before.found.get(o.claim.id) == o.found]
        tests |= {id: before.tests[id] for id in same}
    kept: dict[str, Any] = {
        "config": config.to_dict(),
        "seconds": float(run.info["seconds"]),
        "found": {outcome.claim.id: vars(outcome.found) for outcome in found},
        "tests": tests,
    }
    path = Path(str(kept_in(config.name)))
    runs = all_kept(config.name) if beside else []
    alike = [kept if run["config"] == kept["config"] else run for run in runs]
    runs = alike if kept in alike else [*runs, kept]
    return write_text(path, json.dumps(runs, indent=1) + "\n")


def main(words: Sequence[str]) -> None:
    """Keep the runs in these folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--beside", action="store_true")
    asked = parser.parse_args(words)
    for folder in asked.folders:
        print(record(folder, asked.beside))


if __name__ == "__main__":
    main(sys.argv[1:])
