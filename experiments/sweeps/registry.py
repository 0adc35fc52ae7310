"""The experiments by name: what each is asked, what runs it, where. Imports nothing heavy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.comparison.config import CompareConfig
from experiments.emergence.config import EmergenceConfig
from experiments.heads.config import HeadsConfig
from experiments.papers.config import ReproduceConfig
from experiments.runs.folder import RunFolder
from nope_interp.errors import unknown_name

AnyConfig = CompareConfig | EmergenceConfig | HeadsConfig | ReproduceConfig


@dataclass(frozen=True)
class Experiment:
    """An experiment as a sweep sees it.

    Attributes:
        name: the command of `nope-interp` that runs it.
        config: what it is asked.
        home: the module and the function that run it, imported when it runs.
        folder: where under a parent a config's run is kept.
        last_written: the files without which its run folder is not finished.
        fixed: values of the config that its name decides.
    """

    name: str
    config: type[AnyConfig]
    home: tuple[str, str]
    folder: Callable[[Path, Any], RunFolder] = RunFolder.of
    last_written: tuple[str, ...] = ("info.json", "report.html")
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def read(self, values: Mapping[str, Any]) -> AnyConfig:
        """A config from nested values; raises UserError for what it cannot be asked."""
        return self.config.from_dict({**values, **self.fixed})

    def run(self, config: AnyConfig, out: Path, device: str) -> None:
        """Run it in its folder under `out`, in silence."""
        module, function = self.home
        run = getattr(import_module(module), function)
        run(config, out=out, device=device, show_progress=False)

    def finished(self, folder: Path) -> bool:
        """Whether a run folder holds everything that the experiment leaves."""
        return all((folder / name).is_file() for name in self.last_written)


def _training_folder(parent: Path, config: Any) -> RunFolder:
    from experiments.variants.train import training_folder  # loads torch

    return training_folder(parent, config)


_COMPARE = ("experiments.comparison.compare", "compare")

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("compare", CompareConfig, _COMPARE),
        Experiment("probe", CompareConfig, _COMPARE, fixed={"twins": False}),
        Experiment("heads", HeadsConfig, ("experiments.heads.classify", "classify_heads")),
        Experiment(
            "emergence", EmergenceConfig, ("experiments.emergence.watch", "watch_emergence")
        ),
        Experiment("reproduce", ReproduceConfig, ("experiments.papers.reproduce", "reproduce")),
        Experiment(
            "train",
            CompareConfig,
            ("experiments.variants.train", "train"),
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
