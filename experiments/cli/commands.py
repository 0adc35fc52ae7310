"""The commands: each asks, refuses what it can before anything heavy is loaded, runs and shows."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.explore import explore
from experiments.cli.options import (
    Parameters,
    given,
    option_of,
    parameter,
    parameters,
    path_of,
    signed,
    whole_number,
)
from experiments.cli.settings import RUNS, Config, Device, Json, List, Out, Quiet, Ray, Shards
from experiments.cli.shown import SHOWN, Shown, atlas_shown, claims_shown, sweep_shown
from experiments.sweeps.registry import EXPERIMENTS, AnyConfig, Experiment
from experiments.variants.checks import check_device_for, check_files, check_shards
from experiments.variants.config import ExperimentConfig
from experiments.variants.words import asked as as_asked
from experiments.variants.words import expanded, flat, nested, word_for
from nope_interp.devices import check_device_name
from nope_interp.errors import FieldError, UserError
from nope_interp.files import check_writable

# What is no part of a config, by name.
_OPTIONS: Parameters = {
    name: parameter(name, kind, default)
    for name, kind, default in (
        ("list", List, False),
        ("config", Config, None),
        ("device", Device, "cpu"),
        ("shards", Shards, 1),
        ("ray", Ray, None),
        ("out", Out, RUNS),
        ("json", Json, False),
        ("quiet", Quiet, False),
    )
}


def add_commands(app: typer.Typer) -> None:
    """Give the command line a command for each experiment, then explore, sweep and report."""
    for experiment in EXPERIMENTS.values():
        app.command(experiment.name, help=experiment.summary)(_command(experiment))
    app.command()(explore)
    app.command()(sweep)
    app.command()(report)


def _command(experiment: Experiment) -> Callable[..., None]:
    """What typer calls for an experiment, with a signature made of its config's fields."""
    words = parameters(experiment.config, experiment.meaningless)
    lists = ["list"] if experiment.name == "reproduce" else []
    files = ["config"] if issubclass(experiment.config, ExperimentConfig) else []
    settings = experiment.settings

    def command(**values: Any) -> None:
        asked = given(words, values)
        if lists and _listed(asked, values):
            return
        own = {name: values[name] for name in settings}
        try:
            models = _several(experiment, asked)
            config = _configured(experiment, values.get("config"), asked)
            _refuse_early(config, values["out"], **own)
            several = experiment.load_side_by_side
            run = partial(several(), models) if models else experiment.load()
            found = run(config, out=values["out"], show_progress=not values["quiet"], **own)
        except FieldError as error:
            word = word_for(experiment.config, {**asked, **own}, error.field)
            if word is None:  # it stands in the config file
                raise
            raise error.renamed(option_of(word)) from error
        shown = atlas_shown(found) if models else SHOWN[experiment.name](config, found)
        shown.show(values["json"])

    shallow, deep = ([w for w in words if ("." in w) == nested] for nested in (False, True))
    order = [*shallow, *lists, *files, *settings, "out", "json", "quiet", *deep]
    return signed(command, [{**_OPTIONS, **words}[name] for name in order])


def _several(experiment: Experiment, asked: dict[str, Any]) -> list[str]:
    """The models that stand side by side; a single one takes its place among the words."""
    kind = experiment.config
    if not kind.several or kind.argument not in asked:
        return []
    given = asked.pop(kind.argument)
    if given:
        asked[kind.argument] = None if given == ["none"] else given[0]
    return given if len(given) > 1 else []


def _configured(experiment: Experiment, path: Path | None, asked: Mapping[str, Any]) -> AnyConfig:
    """The config file, or the defaults, with the given words laid over it."""
    kind = experiment.config
    base: dict[str, Any] = {}
    told: dict[str, Any] = {}
    if issubclass(kind, ExperimentConfig):
        config = kind()
        if path is not None:
            config, told = kind.read(path), kind.words_in(path)
            # What is said again takes back all that the file's word set: --no-quick, say.
            if told.keys() & asked.keys():
                config = as_asked(kind, None, {w: told[w] for w in told if w not in asked})
        base = flat("the config", config.to_dict())
    found = experiment.read(nested({**base, **expanded(kind, asked)}))
    if (model := getattr(found, "model", None)) is not None:
        experiment.refuse_training(asked, model, option_of)
        if "model" in told and "model" not in asked:
            experiment.refuse_training(told, model)
    return found


def _refuse_early(
    config: AnyConfig, out: Path, device: str = "cpu", shards: int = 1, ray: str | None = None
) -> None:
    """Raise UserError for every mistake that can be told before anything heavy is loaded."""
    check_device_for(config, device)
    check_files(config)
    if hasattr(config, "n_shareable"):
        check_shards(shards, ray, n_sequences=config.n_shareable, device=device)
    config.check_runs_on(device)
    check_writable(out)


def _listed(asked: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Show every paper where that is asked for in place of one, or every claim of one."""
    name = asked.get("name")
    if name is None and not values["list"]:
        raise UserError("reproduce takes one paper's name, or --list to see what there is.")
    if values["list"]:
        from experiments.papers.listing import listing
        from experiments.papers.registry import paper

        own = None if name is None else paper(name).name
        claims_shown(listing(values["out"]), own).show(values["json"])
    return bool(values["list"])


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.yaml",
            parser=path_of,
            help="An experiment, and a grid or list of it.",
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=whole_number, help="Cells at once; by default one for each core."
        ),
    ] = None,
    ray: Ray = None,
    gpus_per_cell: Annotated[float, typer.Option(help="GPUs that Ray keeps for each cell.")] = 0.0,
    device: Device = "cpu",
    out: Out = RUNS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment for each cell of a grid, or for those left."""
    from experiments.sweeps.checks import check_pool
    from experiments.sweeps.config import SweepConfig

    check_pool(jobs, ray, gpus_per_cell, device)
    config = SweepConfig.read(file)
    if device != "auto":
        check_device_name(device)
    check_writable(out)
    from experiments.sweeps.run import run_sweep

    swept = run_sweep(
        config,
        out=out,
        jobs=jobs,
        ray=ray,
        gpus_per_cell=gpus_per_cell,
        device=device,
        show_progress=not quiet,
    )
    sweep_shown(swept).show(as_json)
    failed = swept.failed()
    if failed:
        first = failed[0]
        raise UserError(
            f"{len(failed)} of {len(swept.cells)} cells failed, {first.label} first: "
            f"{str(swept.log(first))!r} says why."
        )


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=path_of, help="A finished run folder.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=path_of, help="Written instead of report.html."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw the page of a finished run again."""
    from experiments.sweeps.config import SWEEP_FILE

    if (folder / SWEEP_FILE).is_file():
        raise UserError(
            f"{str(folder)!r} is a sweep: give the folder of one of its cells, or read all of them "
            "with read_sweep."
        )
    if not folder.is_dir():  # said before anything heavy is loaded
        raise UserError(f"there is no folder {str(folder)!r}: check the path.")
    from experiments.sweeps.runs import load_run

    path = load_run(folder).write_report(to)
    Shown({"report": str(path)}, [f"Report: {path}"]).show(as_json)
