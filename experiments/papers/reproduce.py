"""Runs what is known of a paper, and holds it against its claims."""

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.papers.config import ReproduceConfig
from experiments.papers.recorded import Recorded, recorded
from experiments.papers.result import CLAIM, Reproduction
from experiments.results.findings import Findings, pack
from experiments.results.measurements import INTACT, table
from experiments.runs.cells import Cells
from experiments.runs.finished import Made
from experiments.runs.folder import RunFolder
from experiments.runs.steps import Steps, duration
from experiments.runs.workers import HERE, one_thread_each
from experiments.variants.words import asked
from nope_interp.devices import check_device

# What every module named for a paper offers, as `reproduce`.
Experiment = Callable[[ReproduceConfig, Cells, str], Findings]


def reproduce(
    config: ReproduceConfig | str,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
    **words: Any,
) -> Reproduction:
    """Reproduce a paper, or go on with a run that was interrupted, or read one that is finished.

    Args:
        config: which paper, how many seeds, at what size, or just the paper: "chi2023", ...
        out: the folder that run folders are made in.
        device: a torch device; only papers marked `on_device` run elsewhere than on the CPU.
        show_progress: draw a bar on standard error.
        words: values laid over `config`, by the words of the command line: `preset="tiny"`,
            `n_seeds=2`, `width=0.5`.

    Returns:
        The finished run: the outcome of every claim, the curves behind them, and the report.

    Raises:
        UserError: for an unknown paper, a device that its experiment does not run on, sizes that
            do not fit, and an unwritable `out`.
    """
    config = asked(ReproduceConfig, config, words)
    config.check_runs_on(device)
    check_device(device)
    return Reproduction.once(
        config, out, lambda run: _made(config, run, device, show_progress), device
    )


def _made(config: ReproduceConfig, run: RunFolder, device: str, show_progress: bool) -> Made:
    experiment: Experiment = import_module(f"experiments.papers.{config.name}.experiment").reproduce
    with Steps(config.name, show_progress) as steps:
        # How many parts there are is known as the experiment asks for them.
        steps.say(_planned(config))
        # Another device is shared by all of its models and kept busy by one.
        pool = one_thread_each() if device == "cpu" else HERE
        cells = Cells(run.cells, steps.done, pool, steps.expect)
        findings = experiment(config, cells, device)
    for id in findings.claims:
        config.paper.claim(id)
    words, arrays = pack(findings.figures)
    facts = {
        "paper": config.name,
        "setting": findings.setting,
        "figures": words,
        "notes": list(findings.notes),
    }
    return Made(table(_rows(config, findings)), arrays, facts)


def _planned(config: ReproduceConfig) -> str:
    """What is run, and how long the runs took that are kept with the package, of which sizes."""
    said = f"{len(config.paper.claims)} claims, {len(config.seeds)} seeds"
    times = [_time(kept) for kept in recorded(config.name)]
    return f"{said}; on our machine {', '.join(times)}" if times else said


def _time(kept: Recorded) -> str:
    options = " ".join(kept.config.size_options + (["--model"] if kept.config.model else []))
    return f"a run with {options} took {duration(kept.seconds)}"


def _rows(config: ReproduceConfig, findings: Findings) -> Iterator[dict[str, Any]]:
    """A row for each claim, then one for each point of each curve.

    A figure is the site, a panel the variant, a curve the probe; no row belongs to one layer (-1).
    """
    common = {
        "experiment": config.experiment,
        "model": config.name,
        "positions": INTACT,
        "tokens": "",
        "begin_token": False,
        "seed": config.seed,
        "step": pd.NA,
        "layer": -1,
        "head": pd.NA,
        "control": "",
    }
    for id, found in findings.claims.items():
        yield (
            common
            | {"variant": "", "site": "", "probe": CLAIM, "metric": id, **vars(found)}
            | {"chance": math.nan}
        )
    for figure in findings.figures:
        for panel in figure.panels:
            for series in panel.series:
                where = {"variant": panel.title, "site": figure.id, "probe": series.name}
                for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                    at = figure.ticks[int(x)] if figure.ticks else f"{x:g}"
                    yield (
                        common
                        | where
                        | {
                            "metric": f"{figure.y} at {figure.x} {at}",
                            "value": y,
                            "ci_low": math.nan if series.low is None else series.low[i],
                            "ci_high": math.nan if series.high is None else series.high[i],
                            "chance": math.nan,
                            "n": series.n,
                        }
                    )
