"""Initialisation schemes by name, drawn from a generator of their own."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

Scheme = Callable[[Tensor, float, Generator], object]


def _normal(weight: Tensor, scale: float, generator: Generator) -> None:
    nn.init.normal_(weight, std=scale, generator=generator)


def _uniform(weight: Tensor, scale: float, generator: Generator) -> None:
    # +-sqrt(3) * scale has standard deviation `scale`, so that schemes compare at equal spread.
    bound = math.sqrt(3) * scale
    nn.init.uniform_(weight, -bound, bound, generator=generator)


SCHEMES: dict[str, Scheme] = {
    "normal": _normal,
    "uniform": _uniform,
    "xavier_normal": lambda w, gain, rng: nn.init.xavier_normal_(w, gain, rng),
    "xavier_uniform": lambda w, gain, rng: nn.init.xavier_uniform_(w, gain, rng),
    "kaiming_normal": lambda w, gain, rng: _normal(w, gain / math.sqrt(w.shape[1]), rng),
    "kaiming_uniform": lambda w, gain, rng: _uniform(w, gain / math.sqrt(w.shape[1]), rng),
    "orthogonal": lambda w, gain, rng: nn.init.orthogonal_(w, gain, rng),
}
_DEFAULT_SCALES = {"normal": 0.02, "uniform": 0.02}


class Initializer:
    """Draws weight matrices one after another: the same seed and order give the same bits.

    Args:
        scheme: a name in `SCHEMES`. "normal" and "uniform" have standard deviation `scale`;
            the Xavier schemes (Glorot & Bengio 2010, equation 16) scale * sqrt(2 / (rows +
            columns)); the Kaiming schemes (He et al. 2015, equation 10) scale / sqrt(columns), so
            that a gain of sqrt(2) is the paper's for ReLU; "orthogonal" (Saxe et al. 2014) is
            scale times a matrix with orthonormal rows or columns, whichever are fewer.
        scale: standard deviation or gain; 0.02 or 1 where None.
        seed: of a generator of its own: torch's global one is neither read nor moved.
    """

    def __init__(self, scheme: str, scale: float | None, seed: int) -> None:
        self._draw = SCHEMES[scheme]
        self._scale = _DEFAULT_SCALES.get(scheme, 1.0) if scale is None else scale
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, weight: Float[Tensor, "rows columns"], shrink: float = 1.0) -> None:
        """Fills a matrix in place, reading columns and writing rows; then divides by `shrink`."""
        fresh = torch.empty(weight.shape)
        self._draw(fresh, self._scale, self._generator)
        weight.copy_(fresh / shrink)
