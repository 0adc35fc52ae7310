"""Every paper's claims, and what finished runs say of them. Needs no torch."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.papers.recorded import Recorded, recorded
from experiments.papers.registry import PAPERS
from experiments.papers.result import Reproduction, row_of
from experiments.results.claims import NOT_MEASURED, Claim, Outcome
from experiments.runs.folder import RunFolder
from experiments.runs.steps import duration
from nope_interp.errors import UserError
from nope_interp.files import given_path

AnyRun = Reproduction | Recorded

# What a list of claims calls the run that is kept with the package.
RECORDED = "recorded"


def listing(out: Path | str = "runs") -> pd.DataFrame:
    """Every paper and claim, and what a finished run in `out` says of it: of those that could test
    it the newest, and one at the default sizes or larger before any smaller one. Where none in
    `out` could, it is the last run that is kept with the package and did.

    Returns the columns of `Reproduction.claims` with `paper` and `title` before them. After them
    come `size`, the options that say how much was run and of which model, `run`, its folder or
    "recorded", `cost`, its time, and the same in `seconds`. The status is "not run yet" where there
    is no run. A run that is damaged counts as none.
    """
    rows = []
    for found in PAPERS.values():
        runs: list[AnyRun] = [*_best_first(given_path(out), found.name), *recorded(found.name)]
        for claim in found.claims:
            shown = _outcome_in(runs, claim)
            run, outcome = shown or (None, Outcome(claim, NOT_MEASURED))
            rows.append(
                {
                    "paper": found.name,
                    "title": found.title,
                    **row_of(outcome, run=run is not None),
                    "size": "" if run is None else _size(run),
                    "run": "" if run is None else _where(run),
                    "cost": f"{found.n_seeds} seeds, not timed"
                    if run is None
                    else duration(run.seconds),
                    "seconds": math.nan if run is None else run.seconds,
                }
            )
    return pd.DataFrame(rows)


def time_of(claims: pd.DataFrame) -> str:
    """How long all runs took together that claims were read from.

    Args:
        claims: as `listing` gives them, with a run among them.
    """
    runs = claims[claims["run"] != ""].drop_duplicates(["size", "run"])
    return duration(float(runs["seconds"].sum()))


def _where(run: AnyRun) -> str:
    return RECORDED if isinstance(run, Recorded) else str(run.folder)


def _size(run: AnyRun) -> str:
    """How much was run, and of which model, as options of the command line."""
    model = run.config.model
    return " ".join([*run.config.size_options, *([] if model is None else ["--model", model])])


def _outcome_in(runs: Sequence[AnyRun], claim: Claim) -> tuple[AnyRun, Outcome] | None:
    """Of the first run that could measure the claim, or else of the first."""
    found = [(run, o) for run in runs for o in run.outcomes if o.claim.id == claim.id]
    measured = [(run, o) for run, o in found if o.found.n]
    return next(iter(measured or found), None)


def _best_first(out: Path, name: str) -> list[Reproduction]:
    """Finished runs, those smaller than by default last, each kind from the newest on."""
    folders = [folder for folder in out.glob(f"reproduce-{name}-*") if RunFolder(folder).finished]
    whole: list[Reproduction] = []
    reduced: list[Reproduction] = []
    for folder in sorted(folders, key=lambda f: RunFolder(f).info.stat().st_mtime, reverse=True):
        try:
            run = Reproduction.load(folder)
            (reduced if run.config.reduced else whole).append(run)
        except UserError:
            continue
    return whole + reduced
