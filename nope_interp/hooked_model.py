"""The one type of all models that are read: what our code asks of them, and nothing else."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import nn

from nope_interp.attention_shapes import keys_of
from nope_interp.errors import UserError
from nope_interp.fields import is_whole
from nope_interp.sites import layer_ranges, pattern_hook


@runtime_checkable
class HookedModel(Protocol):
    """A model with TransformerLens's interface and its classic hook names.

    Our `HookedTransformer` and TransformerLens's `TransformerBridge` are such models, and code that
    reads activations cannot tell which it got. `cfg` has at least `d_model`, `d_vocab`, `n_layers`
    and `n_heads`. A bridge also has `original_model`, the Hugging Face model inside it.
    """

    tokenizer: Any

    @property
    def cfg(self) -> Any:
        """Sizes of the model, by TransformerLens's names."""

    @property
    def hook_dict(self) -> Mapping[str, nn.Module]:
        """Every hook point by its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    # A torch module finds its parts (`blocks`, `unembed`, ...) when they are asked for.
    def __getattr__(self, name: str) -> Any: ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All weights, each once."""

    def hooks(self, fwd_hooks: Any = ..., bwd_hooks: Any = ...) -> AbstractContextManager[Any]:
        """A context in which hook functions act at named hook points."""

    def run_with_cache(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """What the model gives, and all activations by hook name."""

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives while hook functions act."""

    def to_tokens(self, text: str | list[str]) -> Any:
        """Ids of a text or of several, `[batch pos]`."""


def check_hooked(model: object) -> None:
    """Raise UserError for what has no hook points, such as what holds a model and is none."""
    if isinstance(model, HookedModel):
        return
    inside = isinstance(getattr(model, "model", None), HookedModel)
    remedy = "its `model`" if inside else "a HookedTransformer or the model of load_pretrained"
    raise UserError(f"a {type(model).__name__} has no hook points: give {remedy}.")


# Of configs, dropout in heads that summarise or classify: no part of a language model.
_OTHER_HEADS = ("summary", "classifier")


def check_still(model: HookedModel) -> None:
    """Refuse a model that gives other activations each time.

    Args:
        model: a HookedTransformer or a bridge.

    Raises:
        UserError: where it is in training mode and drops activations at random.
    """
    run = wrapped(model) or model
    if not run.training:
        return
    told = vars(getattr(run, "config", model.cfg)).items()
    shares = [s for name, s in told if "drop" in name and not name.startswith(_OTHER_HEADS)]
    if any(isinstance(share, float) and share > 0 for share in shares):
        raise UserError(
            "the model is in training mode, which leaves activations out at random: call eval()."
        )


def wrapped(model: HookedModel) -> Any | None:
    """The Hugging Face model inside a bridge; None for any other model."""
    return getattr(model, "original_model", None)


def check_head(model: HookedModel, layer: int | None, head: int | None) -> tuple[int, int]:
    """A layer and a head that the model has.

    Args:
        model: a HookedTransformer or a bridge.
        layer: from 0.
        head: from 0.

    Returns:
        Both.

    Raises:
        UserError: for what the model does not have, and for a layer without attention.
    """
    known = _known("layer", layer, model.cfg.n_layers)
    if pattern_hook(known) not in model.hook_dict:
        attending = layer_ranges(attention_layers(model))
        raise UserError(f"layer {known} has no heads: choose from {attending}.")
    return known, _known("head", head, model.cfg.n_heads)


def _known(what: str, given: int | None, n: int) -> int:
    if not is_whole(given, 0, n - 1):
        raise UserError(f"the model has no {what} {given!r}: choose from 0 to {n - 1}.")
    return int(given)


def key_heads(model: HookedModel, layer: int) -> int:
    """How many heads of a layer have keys of their own.

    Args:
        model: where heads share keys and values, its config says how many of these there are.
        layer: from 0; in some families layers differ.

    Returns:
        0 for a layer that reads the keys and values of an earlier one.
    """
    if (run := wrapped(model)) is not None:
        if keys_of(run.config, layer) is not None:
            return 0
        if run.config.is_heterogeneous:
            return int(run.config.per_layer_config[layer].num_key_value_heads)
    return getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads


def attention_layers(model: HookedModel) -> list[int]:
    """The layers that show attention weights: all, but for the recurrent ones of a hybrid.

    Args:
        model: any that is read.
    """
    layers, known = range(model.cfg.n_layers), model.hook_dict  # a bridge makes it anew each time
    return [layer for layer in layers if pattern_hook(layer) in known]


def layers_without_attention(model: HookedModel) -> list[int]:
    """The other layers.

    Args:
        model: any that is read.
    """
    attending = attention_layers(model)
    return [layer for layer in range(model.cfg.n_layers) if layer not in attending]
