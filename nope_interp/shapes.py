"""The shapes of tensors that signatures speak of, by name."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Activations = Float[Tensor, "batch pos d_model"]
AttentionMaps = Float[Tensor, "batch head query key"]
Tokens = Int[Tensor, "batch pos"]
Marked = Bool[Tensor, "batch pos"]
"""Which of the tokens something holds of."""
Sequences = Int[Tensor, "sequence pos"]
"""The tokens of a whole measurement, of which a batch holds some."""
PerSequence = Float[Tensor, " sequence"]
