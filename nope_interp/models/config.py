"""One frozen, validated description of a transformer. Importing this module loads no torch."""

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args, no_type_check

from nope_interp.errors import FieldError, UserError, unknown_name
from nope_interp.fields import from_mapping

Positions = Literal["none", "learned", "sinusoidal", "rotary", "alibi", "t5"]
Normalization = Literal["layer", "rms", "none"]
NormPlacement = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"]
Initialization = Literal[
    "normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "orthogonal",
]

POSITIONS: tuple[str, ...] = get_args(Positions)
NORMALIZATIONS: tuple[str, ...] = get_args(Normalization)
NORM_PLACEMENTS: tuple[str, ...] = get_args(NormPlacement)
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
GATED_ACTIVATIONS = ("swiglu", "geglu")
INITIALIZATIONS: tuple[str, ...] = get_args(Initialization)

_CHOICES = {
    "positions": ("position encoding", POSITIONS),
    "normalization": ("normalization", NORMALIZATIONS),
    "norm_placement": ("norm placement", NORM_PLACEMENTS),
    "activation": ("activation", ACTIVATIONS),
    "init": ("initialization", INITIALIZATIONS),
}
_SIZES = ("n_layers", "d_model", "n_heads", "d_vocab", "n_ctx", "d_mlp")
_SWITCHES = ("causal", "residual", "attn_only", "tied_embeddings", "rescale_output_projections")
# No model that fits in memory needs a larger size, and torch overflows on much larger ones.
_LARGEST_SIZE = 2**24
_LARGEST_SEED = 2**63 - 1


# Fields check themselves, with sentences for the user: a runtime type checker would forestall them.
@no_type_check
@dataclass(frozen=True)
class TransformerConfig:
    """Everything about a transformer that the papers vary; sizes come first and have no default.

    Attributes:
        n_layers: blocks, one behind the other.
        d_model: width of the residual stream.
        n_heads: attention heads in a block; d_model is a multiple of it.
        d_vocab: tokens in the vocabulary.
        n_ctx: longest sequence that the model takes, whatever its position encoding.
        d_mlp: width of the MLP's hidden layer; 4 * d_model where None.
        positions: the position encoding.
        rotary_base: frequency k turns by `rotary_base ** (-2k / rotated dimensions)` radians per
            position.
        rotary_kept: fraction of the frequencies, highest first, that turn at all: p-RoPE (Barbero
            et al. 2024, arXiv 2410.06205), 0 is no position encoding and 1 is RoPE.
        rotary_fraction: fraction of a head's dimensions that rotate, its first ones (GPT-NeoX:
            0.25).
        causal: whether a token sees only those before it.
        normalization: of what a sublayer reads, or of the stream.
        norm_placement: "pre" normalizes what a sublayer reads, "post" the stream after the sublayer
            has written.
        residual: whether a sublayer's output is added to the stream; otherwise it replaces it.
        attn_only: leave out the MLPs.
        activation: of the MLP; "swiglu" and "geglu" are gated, with silu and gelu on the gate.
        attn_scale: factor on q.k before the softmax; 1 / sqrt(d_head) where None.
        tied_embeddings: whether the unembedding is the embedding.
        dropout: share of the activations that training leaves out.
        init: initialization of the weights.
        init_scale: standard deviation for "normal" and "uniform" (0.02 where None), gain for the
            others (1).
        rescale_output_projections: divides the output projections of attention and MLP by
            sqrt(2 * n_layers) at the start (Radford et al. 2019, GPT-2, section 2.3).
        norm_eps: added to the variance that a norm divides by.
        seed: of the weights at initialization.

    Wrong values raise `UserError` with one sentence that names the field and the remedy.

    Example:
        >>> TransformerConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=256, n_ctx=128).d_head
        16
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_vocab: int
    n_ctx: int
    d_mlp: int | None = None
    positions: Positions = "none"
    rotary_base: float = 10000.0
    rotary_kept: float = 1.0
    rotary_fraction: float = 1.0
    causal: bool = True
    normalization: Normalization = "layer"
    norm_placement: NormPlacement = "pre"
    residual: bool = True
    attn_only: bool = False
    activation: Activation = "gelu"
    attn_scale: float | None = None
    tied_embeddings: bool = False
    dropout: float = 0.0
    init: Initialization = "normal"
    init_scale: float | None = None
    rescale_output_projections: bool = False
    norm_eps: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        for field, (what, choices) in _CHOICES.items():
            self._check_choice(field, what, choices)
        for field in _SIZES:
            self._check_whole(field, 1, _LARGEST_SIZE, optional=field == "d_mlp")
        self._check_whole("seed", 0, _LARGEST_SEED)
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                raise FieldError(field, f"is {_shown(getattr(self, field))}: give True or False.")
        self._check_number("rotary_base", "above 1", lambda x: x > 1)
        self._check_number("rotary_kept", "from 0 to 1", lambda x: 0 <= x <= 1)
        self._check_number("rotary_fraction", "above 0 and up to 1", lambda x: 0 < x <= 1)
        self._check_number("dropout", "from 0 to just below 1", lambda x: 0 <= x < 1)
        self._check_number("norm_eps", "above 0", lambda x: x > 0)
        self._check_number("attn_scale", "above 0", lambda x: x > 0, optional=True)
        self._check_number("init_scale", "above 0", lambda x: x > 0, optional=True)
        self._check_widths()

    @property
    def d_head(self) -> int:
        """Width of one head's queries, keys and values."""
        return self.d_model // self.n_heads

    @property
    def mlp_width(self) -> int:
        """Width of the MLP's hidden layer, its default filled in."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    @property
    def attention_scale(self) -> float:
        """Factor on q.k before the softmax, its default filled in."""
        return 1 / math.sqrt(self.d_head) if self.attn_scale is None else self.attn_scale

    @property
    def rotary_dims(self) -> int:
        """How many of a head's dimensions a rotary encoding turns, in pairs."""
        return round(self.rotary_fraction * self.d_head)

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies its hidden layer by a gate."""
        return self.activation in GATED_ACTIVATIONS

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values; `from_dict` gives the same config back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: object) -> "TransformerConfig":
        """The config with these fields, for what was read from JSON.

        Raises:
            UserError: for anything but a mapping, an unknown or missing field, or a wrong value.
        """
        return from_mapping(cls, fields, "the model's config")

    def _check_choice(self, field: str, what: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if not isinstance(value, str):
            raise FieldError(field, f"is {_shown(value)}: choose from {', '.join(choices)}.")
        if value not in choices:
            raise unknown_name(what, value, choices)

    def _check_whole(self, field: str, least: int, most: int, optional: bool = False) -> None:
        value = getattr(self, field)
        if value is None and optional:
            return
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            raise FieldError(
                field, f"is {_shown(value)}: give a whole number from {least} to {most}."
            )
        # NumPy's integers come from sweeps; JSON cannot write them.
        object.__setattr__(self, field, int(value))

    def _check_number(self, field: str, range_: str, fits: Any, optional: bool = False) -> None:
        value = getattr(self, field)
        if value is None and optional:
            return
        number = _as_finite_float(value)
        if number is None or not fits(number):
            raise FieldError(field, f"is {_shown(value)}: give a number {range_}.")
        object.__setattr__(self, field, number)

    def _check_widths(self) -> None:
        if self.d_model % self.n_heads:
            raise UserError(
                f"d_model {self.d_model} does not divide into {self.n_heads} heads: "
                f"make d_model a multiple of n_heads."
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(
                f"sinusoidal positions need an even d_model, half sines and half cosines; "
                f"{self.d_model} is odd."
            )
        if self.positions == "rotary":
            exact = self.rotary_fraction * self.d_head
            if self.rotary_dims < 2 or self.rotary_dims % 2 or abs(exact - self.rotary_dims) > 1e-6:
                raise UserError(
                    f"rotary positions turn dimensions in pairs, but rotary_fraction "
                    f"{self.rotary_fraction:g} of a head's {self.d_head} dimensions is {exact:g}: "
                    f"make it an even whole number."
                )


def _as_finite_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _shown(value: object, limit: int = 60) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}..."
