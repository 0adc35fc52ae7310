"""The shapes of tensors that signatures speak of, by name."""

from jaxtyping import Float, Int
from torch import Tensor

Activations = Float[Tensor, "batch pos d_model"]
AttentionMaps = Float[Tensor, "batch head query key"]
Cosines = Float[Tensor, "batch pos pos"]
Positions = Int[Tensor, " pos"]
PerPosition = Float[Tensor, " pos"]
PerActivation = Float[Tensor, "batch pos"]
PerSequence = Float[Tensor, " batch"]
PositionalVectors = Float[Tensor, "pos d_model"]
