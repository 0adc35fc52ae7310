"""Several models' heads side by side: each is read in a run of its own, and one page shows all."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from experiments.heads.config import HeadsConfig
from experiments.heads.result import HeadClassification
from experiments.results import atlas as tables
from experiments.results.findings import Figure
from experiments.results.markdown import markdown_table
from experiments.runs.finished import Made
from experiments.runs.folder import Kind, RunFolder
from experiments.runs.of_figures import RunOfFigures
from experiments.variants.checks import check_files
from experiments.variants.config import resolved
from experiments.variants.words import asked
from nope_interp.errors import UserError, shown
from nope_interp.files import given_path
from nope_interp.pretrained.source import name_of


@dataclass(frozen=True)
class AtlasConfig:
    """Which models stand side by side.

    Attributes:
        models: hub names or paths.
        runs: the names of their run folders, which change with what is read.
        text: the file that they read, if any.
        ablated: the first of the models whose positions are taken away, where others have none.
    """

    experiment: ClassVar[str] = "atlas"
    model: ClassVar[None] = None

    models: tuple[str, ...]
    runs: tuple[str, ...]
    text: str | None
    ablated: int = 0

    def run_name(self) -> str:
        """The readable half of the run folder's name."""
        return "heads-atlas"

    def command(self) -> str:
        """The command line that runs this again."""
        models = [resolved(model) for model in self.models]
        text = [] if self.text is None else ["--text", resolved(self.text)]
        config = f"../{self.runs[self.ablated]}/config.json"
        return shlex.join(["nope-interp", "heads", *models, *text, "--config", config])

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        # Folders from before some models had no positions keep their names.
        ablated = {"ablated": self.ablated} if self.ablated else {}
        return {
            "models": list(self.models),
            "runs": list(self.runs),
            "text": self.text,
            **ablated,
        }


@dataclass(frozen=True, repr=False)
class HeadAtlas(RunOfFigures):
    """Several models' heads side by side."""

    experiment: ClassVar[str] = "atlas"
    needs_info: ClassVar[Mapping[str, Kind]] = {"ablations": dict, "notes": list, "command": str}
    leads_to: ClassVar[tuple[str, ...]] = (".counts", ".models", ".heads")

    @property
    def about(self) -> str:
        """The models."""
        return ", ".join(self.info["ablations"])

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each head of each model, as `HeadClassification.heads`."""
        return tables.all_heads(self.measurements, self.info["ablations"])

    @property
    def counts(self) -> pd.DataFrame:
        """How many heads of each model have each label, where, and what stays of them."""
        return tables.counts(self.heads)

    @property
    def models(self) -> pd.DataFrame:
        """One row for each model."""
        return tables.by_model(self.heads)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Labels by model and by depth."""
        return tables.figures(self.heads)

    @property
    def headline(self) -> str:
        """How many heads of all models have a label, and how many keep it."""
        return tables.headline(self.heads, self.info["ablations"])

    def markdown(self) -> str:
        """The table of counts.

        Returns:
            A Markdown table, one row for each model and label.
        """
        return markdown_table(self.counts)

    def html(self) -> str:
        return self.page("atlas.html", "Heads of several models", counts=self.counts)


def heads_atlas(
    models: Sequence[str | Path],
    config: HeadsConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    shards: int = 1,
    ray: str | None = None,
    show_progress: bool = True,
    **words: Any,
) -> HeadAtlas:
    """Classify the heads of several models, or read runs that are finished, side by side.

    Args:
        models: hub names, folders or GGUF files; at least two, each once.
        config: how each of them is read. "all" takes nothing from a model without positions, which
            is then read as it is.
        out: the folder that run folders are made in.
        device: as `classify_heads` takes it.
        shards: as `classify_heads` takes it.
        ray: as `classify_heads` takes it.
        show_progress: draw progress bars on standard error.
        words: values laid over `config`, by the words of the command line.

    Returns:
        The finished atlas; each model has its own run folder beside it.

    Raises:
        UserError: for fewer than two models, one that comes twice, and as `classify_heads`; for
            positions that one of them lacks, or all of them, before any is read.
    """
    from experiments.heads.classify import classify_heads, without_what_is_not_there

    if isinstance(models, str) or not isinstance(models, Sequence):
        raise UserError(f"the models are {shown(models)}: give a list of two or more.")
    called = [name_of(model) for model in models]
    if len(called) < 2 or len(set(called)) < len(called):
        raise UserError(f"the models are {called}: give two or more, each once.")
    like = asked(HeadsConfig, config, words)
    # "none" is the model that ships with the package, as it is where it stands alone.
    given = [None if model == "none" else model for model in called]
    configs = [asked(HeadsConfig, like, {"model": model}) for model in given]
    for one in configs:
        check_files(one)
    if like.ablate is not None:
        configs = [without_what_is_not_there(one, given_path(out), device) for one in configs]
        if all(one.ablate is None for one in configs):
            raise UserError("none of these models has positions to take away: leave --ablate out.")
    how: dict[str, Any] = {"device": device, "shards": shards, "ray": ray}
    runs = [classify_heads(one, out=out, show_progress=show_progress, **how) for one in configs]
    names = tuple(RunFolder.of(given_path(out), one).path.name for one in configs)
    ablated = next((i for i, one in enumerate(configs) if one.ablate is not None), 0)
    asks = AtlasConfig(tuple(called), names, like.text, ablated)
    return HeadAtlas.once(asks, out, lambda folder: _side_by_side(called, runs))


def _side_by_side(models: Sequence[str], runs: Sequence[HeadClassification]) -> Made:
    """The measurements of all of them, each under the shortest name that is its own."""
    short = [str(run.info["model"]) for run in runs]
    names = short if len(set(short)) == len(short) else list(models)
    intact = [name for name, run in zip(names, runs, strict=True) if not run.info["ablation"]]
    # Where positions are taken away, one of the models has some.
    taken = len(intact) < len(runs)
    as_it_is = "has no positions to take away, and was read as it is."
    left = [f"{name} {as_it_is}" for name in intact] if taken else []
    tables_of = [run.measurements.assign(model=name) for run, name in zip(runs, names, strict=True)]
    facts = {
        "ablations": {name: run.info["ablation"] for name, run in zip(names, runs, strict=True)},
        "positions of each": {
            name: run.info["positions"] for name, run in zip(names, runs, strict=True)
        },
        "reports": {name: run.folder.name for name, run in zip(names, runs, strict=True)},
        "notes": list(dict.fromkeys([*left, *(n for run in runs for n in run.info["notes"])])),
    }
    return Made(pd.concat(tables_of, ignore_index=True), {}, facts)
