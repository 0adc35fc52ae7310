"""How the error of the laws depends on width and spread of the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.chi2023.models import distinct_tokens
from experiments.papers.config import ReproduceConfig
from experiments.papers.figures import figure
from experiments.results.findings import (
    Array,
    Figure,
    Panel,
    curve,
    largest_deviation,
    line,
    log_spaced,
    over_seeds,
)
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import stream
from nope_interp.theory.laws import LayerLaw

_SWEPT_WIDTHS = (96, 192, 384, 768)
_SWEPT_SPREADS = (0.01, 0.02, 0.03)
_LARGEST_LOGIT_VARIANCE = 0.5
_OUTPUT = "blocks.0.hook_attn_out"


def sweep_over_sizes(config: ReproduceConfig, cells: Cells, device: str) -> tuple[Figure, Measured]:
    """Measured over predicted, and its largest deviation from 1."""
    length = config.scaled("length", 128, least=16)
    seen = log_spaced(length, 12)
    ratios: dict[float, list[tuple[str, Array]]] = {spread: [] for spread in _SWEPT_SPREADS}
    for spread, width in product(_SWEPT_SPREADS, _SWEPT_WIDTHS):
        d_model = config.scaled("width", width, multiple_of=4, least=48)
        base = TransformerConfig(
            1, d_model, 4, d_vocab=4 * length, n_ctx=length, attn_only=True, init_scale=spread
        )
        law = LayerLaw.of(base, distinct_tokens=True)
        if law.logit_variance <= _LARGEST_LOGIT_VARIANCE:
            title = f"width {width}, spread {spread:g}"
            found = cells.per_seed(title, config.seeds, partial(_squares, base, seen, device))
            ratios[spread].append((f"d = {d_model}", found[_OUTPUT] / law.output_variance(seen)))
    together = np.concatenate([ratio for of in ratios.values() for _, ratio in of], axis=1)
    exact = np.ones(together.shape[1])
    return _widths(seen, ratios), over_seeds(together, largest_deviation(exact))


@figure("widths", "tokens seen, m", "measured / predicted", claims=("widths",), log="x")
def _widths(
    seen: Int[Array, " point"], ratios: Mapping[float, list[tuple[str, Array]]]
) -> Iterator[Panel]:
    """Widths and spreads.

    Mean square of the first attention output over the predicted one: 1 where the formula is exact.
    One layer; widths at which a logit's variance passes 0.5 are left out.
    """
    for spread, named in ratios.items():
        curves = (curve(name, "measured", seen, ratio) for name, ratio in named)
        yield Panel(f"s = {spread:g}", (line("exact", "chance", seen, 1.0), *curves))


def _squares(
    base: TransformerConfig, seen: Int[Array, " point"], device: str, seed: int
) -> dict[str, Float[Array, " point"]]:
    model = HookedTransformer(replace(base, seed=seed)).to(device)
    found: list[Array] = []

    def listen(activations: Tensor) -> None:
        squares = activations.double().cpu().square()
        found.append(reduce(squares, "b pos d -> pos", "mean").numpy()[seen - 1])

    stream(model, distinct_tokens(model.config, 8, base.n_ctx), {_OUTPUT: listen})
    return {_OUTPUT: found[0]}
