"""Initialisation schemes by name, drawn from a generator of their own."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from nope_interp.errors import unknown_name

Scheme = Callable[[Tensor, float, Generator], object]


def _uniform(weight: Tensor, scale: float, generator: Generator) -> None:
    # +-sqrt(3) * scale has standard deviation `scale`, so that schemes compare at equal spread.
    bound = math.sqrt(3) * scale
    nn.init.uniform_(weight, -bound, bound, generator=generator)


def _kaiming_normal(weight: Tensor, scale: float, generator: Generator) -> None:
    nn.init.normal_(weight, std=scale / math.sqrt(weight.shape[1]), generator=generator)


def _kaiming_uniform(weight: Tensor, scale: float, generator: Generator) -> None:
    _uniform(weight, scale / math.sqrt(weight.shape[1]), generator)


SCHEMES: dict[str, Scheme] = {
    "normal": lambda w, scale, generator: nn.init.normal_(w, std=scale, generator=generator),
    "uniform": _uniform,
    "xavier_normal": lambda w, gain, generator: nn.init.xavier_normal_(w, gain, generator),
    "xavier_uniform": lambda w, gain, generator: nn.init.xavier_uniform_(w, gain, generator),
    "kaiming_normal": _kaiming_normal,
    "kaiming_uniform": _kaiming_uniform,
    "orthogonal": lambda w, gain, generator: nn.init.orthogonal_(w, gain, generator),
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

    Raises:
        UserError: for an unknown scheme.
    """

    def __init__(self, scheme: str, scale: float | None, seed: int) -> None:
        if scheme not in SCHEMES:
            raise unknown_name("initialization", scheme, SCHEMES)
        self._draw = SCHEMES[scheme]
        self._scale = _DEFAULT_SCALES.get(scheme, 1.0) if scale is None else scale
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, weight: Float[Tensor, "rows columns"], shrink: float = 1.0) -> None:
        """Fills a matrix in place, reading columns and writing rows; then divides by `shrink`."""
        fresh = torch.empty(weight.shape)
        self._draw(fresh, self._scale, self._generator)
        weight.copy_(fresh / shrink)
