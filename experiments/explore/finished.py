"""Labels of a finished run of `heads` of the same model, where there is one in the runs folder."""

from pathlib import Path

from experiments.explore.answers import Finished
from experiments.explore.playground import Playground
from experiments.heads.config import HeadsConfig
from experiments.heads.result import HeadClassification
from experiments.runs.folder import RunFolder, fingerprint
from nope_interp.errors import UserError
from nope_interp.files import given_path

# What of a config, beside the model itself, makes it the same model.
_SAME = ("revision", "dtype", "positions")


def finished_labels(playground: Playground) -> Finished | None:
    """Labels from the newest finished run of `heads` of this model.

    Args:
        playground: whose model, and whose runs.

    Returns:
        The labels; None where there is no such run, or only damaged ones and other versions'.
    """
    if "finished" not in playground.made:
        playground.made["finished"] = _newest(playground)
    return playground.made["finished"]


def _newest(playground: Playground) -> Finished | None:
    folders = [info.parent for info in playground.runs.glob("heads-*/info.json")]
    folders.sort(key=lambda folder: (folder / "info.json").stat().st_mtime, reverse=True)
    for folder in folders:
        try:
            if _is_of(playground, folder):
                heads = HeadClassification.load(folder).heads
                of_layer = {layer: [*map(str, of["label"])] for layer, of in heads.groupby("layer")}
                layers = range(playground.model.cfg.n_layers)
                labels = [of_layer.get(layer, []) for layer in layers]
                return Finished(folder=folder.name, labels=labels)
        except (UserError, OSError, KeyError):
            continue
    return None


def _is_of(playground: Playground, folder: Path) -> bool:
    """Whether a run read this very model, as it is."""
    config, own = HeadsConfig.read(folder / "config.json"), playground.loaded.config
    if config.random_init or any(getattr(config, n) != getattr(own, n) for n in _SAME):
        return False
    if RunFolder.of(folder.parent, config).path.name != folder.name:
        return False  # what lies at the model's path is not what was read
    if config.model is None:
        trained = folder.parent / RunFolder(folder).read_info()["trained_model"]
        return _content(str(trained)) == _content(str(own.model))
    return _content(config.model) == _content(str(own.model))


def _content(model: str) -> str:
    """What a model is told by: the content of what lies on disk, the name of any other."""
    path = given_path(model)
    return fingerprint(path) if path.exists() else model
