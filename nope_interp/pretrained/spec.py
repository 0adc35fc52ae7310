"""How any process makes a model again, to the same weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nope_interp.fields import LARGEST_SEED
from nope_interp.hooked_model import HookedModel
from nope_interp.models.checkpoints import as_bidirectional, load_model
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.load import load_pretrained, reinitialized
from nope_interp.pretrained.source import is_own


@dataclass(frozen=True)
class ModelSpec:
    """A model that is on disk or a hub, or another variant of one; equal specs make equal models.

    Attributes:
        source: a model.safetensors of ours, or a name that `load_pretrained` takes.
        device: a torch device.
        revision, dtype, positions: as `load_pretrained` takes them.
        variant: which variant of the model it is; None for the model itself.
        seed, draw: of the random-init variant's weights, as `variants.random_init` takes them.
    """

    source: str
    device: str
    revision: str | None = None
    dtype: str = "float32"
    positions: str = "auto"
    variant: Literal["random-init", "bidirectional"] | None = None
    seed: int = 0
    draw: int = 0

    def make(self) -> HookedModel:
        """The model.

        Raises:
            UserError: where it cannot be loaded.
        """
        if is_own(self.source):
            own = load_model(Path(self.source))[0].to(self.device)
            if self.variant == "bidirectional":
                return as_bidirectional(own)
            return own if self.variant is None else untrained(own, self.draw)
        loaded = load_pretrained(
            self.source,
            revision=self.revision,
            dtype=self.dtype,
            positions=self.positions,
            device=self.device,
        )
        if self.variant is not None:
            loaded = reinitialized(loaded, self.seed + self.draw)
        return loaded.model


def untrained(model: HookedTransformer, draw: int) -> HookedTransformer:
    """The same architecture with untrained weights: those its training began with, for draw 0.

    Args:
        model: one of ours.
        draw: which draw of the weights, from 0.

    Returns:
        A new model, on the same device.
    """
    seed = (model.config.seed + draw) % (LARGEST_SEED + 1)
    config = replace(model.config, seed=seed)
    return HookedTransformer(config).to(model.cfg.device)
