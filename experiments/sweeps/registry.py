"""The experiments by name: what each is asked, what runs it, where. Imports nothing heavy."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.benchmark.config import BenchmarkConfig
from experiments.comparison.config import CompareConfig
from experiments.drop.config import MEANINGLESS, DropConfig
from experiments.emergence.config import EmergenceConfig
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.runs.folder import RunFolder
from experiments.variants.words import is_within
from nope_interp.errors import UserError, unknown_name

AnyConfig = (
    BenchmarkConfig | CompareConfig | DropConfig | EmergenceConfig | HeadsConfig | ReproduceConfig
)


@dataclass(frozen=True)
class Experiment:
    """An experiment as the command line and sweeps see it.

    Attributes:
        name: the command of `nope-interp` that runs it.
        summary: what it answers.
        config: what it is asked.
        home: the module and the function that run it, imported when it runs.
        side_by_side: those that run it of several models.
        settings: what the function takes beside the config that is no part of what is asked.
        meaningless: fields of the config, or parts of it, that mean nothing to it.
        fixed: values of the config that its name decides.
        folder: where under a parent a config's run is kept.
        last_written: the files without which its run folder is not finished.
    """

    name: str
    summary: str
    config: type[AnyConfig]
    home: tuple[str, str]
    side_by_side: tuple[str, str] | None = None
    settings: tuple[str, ...] = ("device",)
    meaningless: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    folder: Callable[[Path, Any], RunFolder] = RunFolder.of
    last_written: tuple[str, ...] = ("info.json", "report.html")

    def read(self, values: Mapping[str, Any]) -> AnyConfig:
        """A config from nested values; raises UserError for what it cannot be asked."""
        return self.config.from_dict({**values, **self.fixed})

    def refuse_meaningless(self, given: Mapping[str, Any]) -> None:
        """Refuse words that the experiment's command lacks, but for what its name says anyway.

        Args:
            given: values by field or shorthand.

        Raises:
            UserError: for such a word.
        """
        shorthands = self.config.shorthands
        for word, value in given.items():
            first = shorthands[word].fields[0] if word in shorthands else word
            said = word in self.fixed and value == self.fixed[word]
            if is_within(first, self.meaningless) and not said:
                raise UserError(f"{word} means nothing to {self.name}: leave it out.")

    def refuse_training(
        self, words: Iterable[str], model: str, said: Callable[[str], str] = str
    ) -> None:
        """Refuse words that say of a model how it is trained that is trained already.

        Args:
            words: that were given, of fields or shorthands.
            model: that is read.
            said: how a word was given.

        Raises:
            UserError: for such a word.
        """
        if {"model", "transformer"} & self.meaningless:
            return
        shorthands = self.config.shorthands
        for word in words:
            fields = shorthands[word].fields if word in shorthands else (word,)
            if all(field.startswith(("transformer.", "training.")) for field in fields):
                raise UserError(
                    f"{said(word)} says how to train a model, but {model!r} is trained already: "
                    "leave one out."
                )

    def load(self) -> Callable[..., Any]:
        """The function that runs it."""
        module, function = self.home
        return getattr(import_module(module), function)

    def load_side_by_side(self) -> Callable[..., Any]:
        """The function that runs it of several models, where it takes them."""
        assert self.side_by_side is not None
        module, function = self.side_by_side
        return getattr(import_module(module), function)

    def run(self, config: AnyConfig, out: Path, device: str) -> None:
        """Run it in its folder, in silence.

        Args:
            config: what is run.
            out: the folder that run folders are made in.
            device: a torch device.
        """
        self.load()(config, out=out, device=device, show_progress=False)

    def finished(self, folder: Path) -> bool:
        """Whether a run folder holds everything that the experiment leaves."""
        return all((folder / name).is_file() for name in self.last_written)


def _training_folder(parent: Path, config: Any) -> RunFolder:
    from experiments.variants.train import training_folder  # loads torch

    return training_folder(parent, config)


_COMPARE = ("experiments.comparison.compare", "compare")
_SHARED = ("device", "shards", "ray")
_OF_LOADED = frozenset({"model", "revision", "dtype"})
_OF_PROBES = frozenset({"layers", "sites", "n_fit", "n_held_out", "ablate", "batch_size"})
_OF_COMPARISON = frozenset({"uses", "variants", "history"})

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "compare",
            "Which position codes can be read, and which does a model use?",
            CompareConfig,
            _COMPARE,
            settings=_SHARED,
        ),
        Experiment(
            "probe",
            "Read position from one model, without its variants.",
            CompareConfig,
            _COMPARE,
            settings=_SHARED,
            meaningless=frozenset({"variants", "uses"}),
            fixed={"variants": False, "uses": None},
        ),
        Experiment(
            "heads",
            "Which heads need positions? Labels every attention head.",
            HeadsConfig,
            ("experiments.heads.classify", "classify_heads"),
            ("experiments.heads.atlas", "heads_atlas"),
            settings=_SHARED,
        ),
        Experiment(
            "drop",
            "Drop a rotary model's positions for good, and recalibrate it.",
            DropConfig,
            ("experiments.drop.drop", "drop"),
            meaningless=frozenset({*MEANINGLESS, "transformer", "training.compile"}),
        ),
        Experiment(
            "emergence",
            "Watch small models train: when does each position code appear?",
            EmergenceConfig,
            ("experiments.emergence.watch", "watch_emergence"),
            settings=(),
            meaningless=_OF_LOADED | {"transformer.seed", "training.seed"},
        ),
        Experiment(
            "reproduce",
            "Hold a paper's claims against our own measurements.",
            ReproduceConfig,
            ("experiments.papers.reproduce", "reproduce"),
        ),
        Experiment(
            "benchmark",
            "Judge methods by hand-made models whose codes are known.",
            BenchmarkConfig,
            ("experiments.benchmark.judge", "judge_methods"),
            settings=(),
            meaningless=_OF_LOADED,
        ),
        Experiment(
            "train",
            "Train a small model; a killed training goes on where it was.",
            CompareConfig,
            ("experiments.variants.train", "train"),
            meaningless=_OF_LOADED | _OF_PROBES | _OF_COMPARISON,
            folder=_training_folder,
            last_written=("model.safetensors",),
        ),
    )
}


def experiment(name: str) -> Experiment:
    """The experiment of that name; raises UserError for an unknown one."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
