"""Models on text for the tests of codes: the embedded one, and tasks of any."""

from functools import cache
from typing import Any

from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.variants.config import ProbingConfig
from experiments.variants.embedded import EMBEDDED_MODEL
from experiments.variants.variants import ModelVariant
from nope_interp.models.checkpoints import load_model
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.sources import TextSource
from nope_interp.tasks.text import TextTask

CONTEXT = {
    "experiment": "probe",
    "model": "small",
    "variant": "trained",
    "seed": 0,
    "positions": "intact",
    "tokens": "text",
    "begin_token": False,
}


@cache
def embedded() -> HookedTransformer:
    return load_model(EMBEDDED_MODEL)[0]


@cache
def python_source() -> TextSource:
    return TextTask().source()


def on_text(model: Any, source: TextSource | None = None, **how: Any) -> InterventionTask:
    """A model of ours on Python's documentation, or on another text."""
    text = python_source() if source is None else source
    sizes = {"n_fit": 60, "n_held_out": 40, "seq_len": 64}
    spec = ModelSpec("nowhere", "cpu")
    variant = ModelVariant("small", "trained", model, None, (text,), "its own", spec)
    return intervention_task_of(ProbingConfig(**{**sizes, **how}), variant)
