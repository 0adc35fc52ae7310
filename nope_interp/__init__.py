"""How does a transformer without positional encodings know where it is?

Example:
    >>> import nope_interp as ni
    >>> lm = ni.load("openai-community/gpt2")  # doctest: +SKIP
    >>> lm.probe_positions(ablate="learned")  # doctest: +SKIP
    >>> lm.top_heads("previous_token", 5)  # doctest: +SKIP

What stands in `__all__` is the public face; each name is imported when it is first asked for. The
questions (`load`, `compare`, `classify_heads`, ...) are those of `experiments`, which stands on
this package: this door is the one place that looks up.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.codes.position_code import fit_code as fit_code
    from experiments.codes.position_code import set_position as set_position
    from experiments.comparison.compare import compare as compare
    from experiments.emergence.watch import watch_emergence as watch_emergence
    from experiments.explore.serving import explore as explore
    from experiments.heads.classify import classify_heads as classify_heads
    from experiments.loaded import load as load
    from experiments.papers.reproduce import reproduce as reproduce
    from experiments.sweeps.run import run_sweep as run_sweep
    from experiments.sweeps.runs import load_run as load_run
    from experiments.variants.train import train as train
    from nope_interp.errors import UserError as UserError
    from nope_interp.interventions.intervene import intervene as intervene
    from nope_interp.models.checkpoints import load_model as load_model
    from nope_interp.models.config import TransformerConfig as TransformerConfig
    from nope_interp.models.losses import sequence_losses as sequence_losses
    from nope_interp.models.transformer import HookedTransformer as HookedTransformer
    from nope_interp.positions.ablation import ablate_positions as ablate_positions
    from nope_interp.pretrained.load import load_pretrained as load_pretrained
    from nope_interp.streams import stream as stream
    from nope_interp.training.config import TrainingConfig as TrainingConfig

# Where each public name is defined, in the order of the alphabet.
_HOMES = {
    "HookedTransformer": "nope_interp.models.transformer",
    "TrainingConfig": "nope_interp.training.config",
    "TransformerConfig": "nope_interp.models.config",
    "UserError": "nope_interp.errors",
    "ablate_positions": "nope_interp.positions.ablation",
    "classify_heads": "experiments.heads.classify",
    "compare": "experiments.comparison.compare",
    "explore": "experiments.explore.serving",
    "fit_code": "experiments.codes.position_code",
    "intervene": "nope_interp.interventions.intervene",
    "load": "experiments.loaded",
    "load_model": "nope_interp.models.checkpoints",
    "load_pretrained": "nope_interp.pretrained.load",
    "load_run": "experiments.sweeps.runs",
    "reproduce": "experiments.papers.reproduce",
    "run_sweep": "experiments.sweeps.run",
    "sequence_losses": "nope_interp.models.losses",
    "set_position": "experiments.codes.position_code",
    "stream": "nope_interp.streams",
    "train": "experiments.variants.train",
    "watch_emergence": "experiments.emergence.watch",
}

__all__ = list(_HOMES)


def refuse_hidden_packages() -> None:
    """Raise ImportError, in one sentence, where something of the user's hides a package of ours.

    Python takes the first `experiments` or `probes` that it finds, and a project of research is
    likely to have a folder or a script of that name, which is looked for here and never run.
    """
    for name in ("probes", "experiments"):
        ours = Path(__file__).parent.parent / name
        spec = find_spec(name)
        found = [] if spec is None else [*(spec.submodule_search_locations or [str(spec.origin)])]
        if str(ours) not in found:
            raise ImportError(
                f"{found[0] if found else None!r} hides the package {name!r} of nope-interp: "
                "rename it, or start Python where it is not on the path."
            )


def main() -> None:
    """The command `nope-interp`."""
    with _silent_if_interrupted():
        try:
            refuse_hidden_packages()
        except ImportError as error:
            # What prints other refusals is in the package that may be hidden.
            print(f"nope-interp: {error}", file=sys.stderr)
            sys.exit(2)
        from experiments.cli.main import main as run

    run()


@contextmanager
def _silent_if_interrupted() -> Iterator[None]:
    """While it is open, Ctrl-C ends the process without a word: nothing was begun."""
    usual = signal.default_int_handler
    if signal.getsignal(signal.SIGINT) is not usual:  # a shell's background jobs ignore it
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nope_interp' has no attribute {name!r}")
    refuse_hidden_packages()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
