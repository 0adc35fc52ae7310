"""The one more model that a reproduction reads, where the user gives one."""

from collections.abc import Mapping

from experiments.papers.config import ReproduceConfig
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant, loaded_variant
from nope_interp.tasks.sources import Split


def given_variant(
    config: ReproduceConfig, device: str, *, seq_len: int, needed: Mapping[Split, int]
) -> ModelVariant:
    """The model that `config.model` names, with text to read it on.

    Raises UserError where it cannot be loaded, has too short a context for `seq_len` tokens, or its
    text has fewer than the `needed` sequences.
    """
    read = ProbingConfig(
        model=config.model,
        positions=config.positions,
        text=config.text,
        seq_len=seq_len,
        seed=config.seed,
    )
    return loaded_variant(read, device, needed=needed)
