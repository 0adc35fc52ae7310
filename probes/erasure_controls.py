"""What an intervention does besides: matched controls of the same size, and side effects.

An intervention that hurts a model may do so because it took a position code away, or because it
moved the rows at all. Each control here moves them as far in a way that aims at no code.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from probes._stream import raised
from probes.controls import shuffled_positions
from probes.erasure import Intervention
from probes.erasure_directions import Leace, ScaledDirections
from probes.kept_codes import KeptCodes, with_rest_scaled
from probes.similarity import cosine_similarity


class NoiseOfSameSize:
    """Every row moved as far as an intervention moves it, in a random direction.

    x + |x' - x| u, with u uniform on the sphere, new for every row. Draws go on from call to call:
    the same bits come from a new control with the same seed, called on the same batches.
    """

    def __init__(self, intervention: Intervention, seed: int = 0) -> None:
        self.intervention = intervention
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """The rows so moved; raises what the intervention raises."""
        size = torch.linalg.vector_norm(raised(self.intervention(x)) - raised(x), dim=-1)
        noise = torch.randn(x.shape, generator=self._generator).to(size)
        length = torch.linalg.vector_norm(noise, dim=-1)
        return torch.addcmul(raised(x), noise, (size / length)[..., None]).to(x.dtype)


def random_subspace(projection: ScaledDirections | Leace, seed: int = 0) -> ScaledDirections:
    """As many random orthonormal directions scaled alike, or projected out, about the same centre.

    The subspace is uniform (Haar): the same rank, and unless rows vary alike in all directions not
    the same size. `NoiseOfSameSize` matches the size.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (projection.rank, len(projection.centre))
    basis = torch.linalg.qr(torch.randn(shape, generator=generator).mT).Q.mT
    factor = projection.factor if isinstance(projection, ScaledDirections) else 0.0
    return ScaledDirections(basis.to(projection.centre), projection.centre, factor)


class RescalingDealt:
    """An intervention on codes with its rescaling factors dealt to other rows.

    Every sequence gets the factors of the next one in the batch, in a random order: rows are scaled
    as much as before, but not as their position asks. A batch of one has only its own factors, and
    then an earlier row may get the factor of a later one. Draws go on from call to call, as in
    `NoiseOfSameSize`.
    """

    def __init__(self, kept: KeptCodes, seed: int = 0) -> None:
        self.kept = kept
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """The rows so scaled; raises what the intervention raises."""
        unscaled, rest, factor = self.kept.parts(x)
        batch, pos = factor.shape
        order = shuffled_positions(batch, torch.arange(pos), self._generator).to(factor.device)
        dealt = factor.roll(1, dims=0).gather(1, order)
        return with_rest_scaled(unscaled, rest, dealt).to(x.dtype)


def side_effects(
    x: Float[Tensor, "batch pos d_model"], changed: Float[Tensor, "batch pos d_model"]
) -> dict[str, Float[Tensor, " batch"]]:
    """How much an intervention changes besides what it aims at, per sequence.

    * norm: mean over rows of |x'| / |x| - 1, in size.
    * cosine: mean over pairs of different rows of |cos(x'_i, x'_j) - cos(x_i, x_j)|, 0 to 2.
    """
    x, changed = raised(x), raised(changed)
    before, after = (torch.linalg.vector_norm(rows, dim=-1) for rows in (x, changed))
    tiny = torch.finfo(x.dtype).tiny
    pos = x.shape[1]
    # The diagonal adds nothing: a row's cosine with itself stays 1.
    moved = (cosine_similarity(changed) - cosine_similarity(x)).abs().sum(dim=(1, 2))
    return {
        "norm": (after / before.clamp(min=tiny) - 1).abs().mean(dim=-1),
        "cosine": moved / (pos * (pos - 1)),
    }
