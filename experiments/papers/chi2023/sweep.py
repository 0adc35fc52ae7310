"""How the error of the laws depends on width and spread of the weights."""

from dataclasses import replace
from functools import partial

import numpy as np
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.chi2023.models import distinct_tokens
from experiments.papers.config import ReproduceConfig
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
    ratios, panels = [], []
    for spread in _SWEPT_SPREADS:
        series = [line("exact", "chance", seen, 1.0)]
        for width in _SWEPT_WIDTHS:
            d_model = config.scaled("width", width, multiple_of=4, least=48)
            base = TransformerConfig(
                1, d_model, 4, d_vocab=4 * length, n_ctx=length, attn_only=True, init_scale=spread
            )
            law = LayerLaw.of(base, distinct_tokens=True)
            if law.logit_variance <= _LARGEST_LOGIT_VARIANCE:
                title = f"width {width}, spread {spread:g}"
                found = cells.per_seed(title, config.seeds, partial(_squares, base, seen, device))
                ratios.append(found[_OUTPUT] / law.output_variance(seen))
                series.append(curve(f"d = {d_model}", "measured", seen, ratios[-1]))
        panels.append(Panel(f"s = {spread:g}", tuple(series)))
    figure = Figure(
        "widths",
        "Widths and spreads",
        "Mean square of the first attention output over the predicted one: 1 where the formula is "
        "exact. One layer; widths at which a logit's variance passes 0.5 are left out.",
        "tokens seen, m",
        "measured / predicted",
        tuple(panels),
        claims=("widths",),
        log="x",
    )
    together = np.concatenate(ratios, axis=1)
    return figure, over_seeds(together, largest_deviation(np.ones(together.shape[1])))


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
