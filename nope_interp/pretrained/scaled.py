"""Rotary positions scaled for sequences beyond a model's context, by transformers' own code.

Position interpolation (Chen et al. 2023, arXiv 2306.15595) turns everything more slowly; NTK-aware
scaling raises the base, so that the highest frequency stays; YaRN (Peng et al. 2023, arXiv
2309.00071) interpolates the low frequencies only.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nope_interp.attention_shapes import head_size
from nope_interp.positions.families import WITHOUT
from nope_interp.pretrained.switched_off import rotary_modules

SCALINGS = ("position interpolation", "NTK", "YaRN")


def can_be_scaled(model: Any) -> bool:
    """Whether a model of transformers has rotary positions, as they were at first, to be scaled.

    Args:
        model: of transformers.
    """
    rope = getattr(model.config, "rope_parameters", None)
    if getattr(model.config, WITHOUT, False) or not rope or not rotary_modules(model):
        return False
    return all(kind.get("rope_type") == "default" for kind in _kinds(rope).values())


@contextmanager
def scaled_rotary(model: Any, scaling: str, context: int, length: int) -> Iterator[None]:
    """While it is open, a model's rotary positions are scaled from its context to a longer one.

    Layers with a window never see beyond it: theirs stay where they have a rotation of their own
    (Gemma 3, OLMo 3), and are scaled with the others where all layers share one (Gemma 2, Mistral).

    Args:
        model: one that `can_be_scaled`.
        scaling: one of `SCALINGS`.
        context: the length that it was trained on, in tokens.
        length: the length that it is to read.

    Yields:
        Nothing.
    """
    config, factor = copy.deepcopy(model.config), length / context
    # Of Mixtral there may be none, which transformers' YaRN does not read.
    if getattr(config, "head_dim", 0) is None:
        config.head_dim = head_size(config)
    # Of Phi 3 it stands here, too, and transformers' YaRN would take it instead.
    if hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = context
    for name, kind in _kinds(config.rope_parameters).items():
        if name != "sliding_attention":
            kind |= _changes(scaling, kind, config, context, factor)
    owned = [(module, module.rotary_emb) for module in rotary_modules(model)]
    for module, own in owned:
        module.rotary_emb = type(own)(config=config).to(next(model.parameters()).device)
    try:
        yield
    finally:
        for module, own in owned:
            module.rotary_emb = own


def _kinds(rope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of each type of layers that has its own, or of all."""
    return {"all": rope} if "rope_theta" in rope else rope


def _changes(
    scaling: str, kind: dict[str, Any], config: Any, context: int, factor: float
) -> dict[str, Any]:
    if scaling == "position interpolation":
        return {"rope_type": "linear", "factor": factor}
    if scaling == "YaRN":
        of_yarn = {"factor": factor, "original_max_position_embeddings": context}
        return {"rope_type": "yarn", **of_yarn}
    turned = head_size(config) * kind.get("partial_rotary_factor", 1.0)
    if turned == 2:
        # The only frequency is the highest one, which stays.
        return {}
    return {"rope_theta": kind["rope_theta"] * factor ** (turned / (turned - 2))}
