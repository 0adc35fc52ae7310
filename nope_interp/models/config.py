"""One frozen, validated description of a transformer. Importing this module loads no torch."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, no_type_check

from nope_interp.errors import UserError
from nope_interp.fields import Positive, Range, Seed, check_fields, from_mapping

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

# What a user says that a model has; "auto" leaves it to what the model itself says.
DeclaredPositions = Literal["auto", "none", "learned", "sinusoidal", "rotary", "alibi", "t5"]

POSITIONS: tuple[str, ...] = get_args(Positions)
DECLARED: tuple[str, ...] = get_args(DeclaredPositions)
GATED_ACTIVATIONS = ("swiglu", "geglu")

# No model that fits in memory needs a larger size, and torch overflows on much larger ones.
Size = Annotated[int, Range(least=1, most=2**24)]


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
        activation: the MLP's activation function; "swiglu" and "geglu" are gated, with silu and
            gelu on the gate.
        attn_scale: factor on q.k before the softmax; 1 / sqrt(d_head) where None.
        tied_embeddings: whether the unembedding is the embedding.
        dropout: share of the activations that training leaves out.
        init: initialization of the weights.
        init_scale: standard deviation for "normal" and "uniform" (0.02 where None), gain for the
            others (1).
        rescale_output_projections: divides the output projections of attention and MLP by
            sqrt(2 * n_layers) at the start (Radford et al. 2019, GPT-2, section 2.3).
        norm_eps: added to the variance that a norm divides by.
        seed: the seed of the weights at initialization.

    Raises:
        UserError: for values of a wrong type, out of range or that contradict each other, with the
            field and the remedy.

    Example:
        >>> TransformerConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=256, n_ctx=128).d_head
        16
    """

    n_layers: Size
    d_model: Size
    n_heads: Size
    d_vocab: Size
    n_ctx: Size
    d_mlp: Size | None = None
    positions: Positions = "none"
    rotary_base: Annotated[float, Range(above=1)] = 10000.0
    rotary_kept: Annotated[float, Range(least=0, most=1)] = 1.0
    rotary_fraction: Annotated[float, Range(above=0, most=1)] = 1.0
    causal: bool = True
    normalization: Normalization = "layer"
    norm_placement: NormPlacement = "pre"
    residual: bool = True
    attn_only: bool = False
    activation: Activation = "gelu"
    attn_scale: Positive | None = None
    tied_embeddings: bool = False
    dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    init: Initialization = "normal"
    init_scale: Positive | None = None
    rescale_output_projections: bool = False
    norm_eps: Positive = 1e-5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
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
        """The fields as plain JSON values, which `from_dict` reads back.

        Returns:
            Values by name.
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: object) -> "TransformerConfig":
        """The config with these fields, for what was read from JSON.

        Args:
            fields: values by name.

        Returns:
            The config.

        Raises:
            UserError: for anything but a mapping, an unknown or missing field, or a wrong value.
        """
        return from_mapping(cls, fields, "the model's config")

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
