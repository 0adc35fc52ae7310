"""Which heads do one thing most."""

import pandas as pd

from experiments.heads.cell import head_rows
from experiments.heads.checks import check_chance_levels
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import read_cell
from experiments.heads.tokens import head_tokens
from experiments.results.measurements import INTACT, table
from experiments.variants.ablation import Ablation
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError, unknown_name
from nope_interp.fields import is_whole
from nope_interp.positions.layers import layer_positions
from probes.head_rules import METRICS

_SHOWN = ["layer", "head", "value", "ci_low", "ci_high", "chance"]


def strongest_heads(
    variant: ModelVariant, config: HeadsConfig, detector: str, n: int, ablate: str | None
) -> pd.DataFrame:
    """The heads that a detector scores highest.

    Args:
        variant: the model with its tokens.
        config: how many sequences, of which length, and the seed.
        detector: one of `probes.head_rules.METRICS`.
        n: how many heads.
        ablate: positions to take away first; None reads the model as it is.

    Returns:
        One row for each head, as `LoadedModel.top_heads` describes it.

    Raises:
        UserError: for an unknown detector, fewer than one head, an ablation that the model does
            not allow, and heads without chance levels.
    """
    if detector not in METRICS:
        raise unknown_name("detector", detector, METRICS)
    if not is_whole(n, 1):
        raise UserError(f"{n!r} heads are asked for: give a whole number from 1.")
    check_chance_levels(variant.model, config.seq_len, variant.name)
    cell = read_cell(
        variant.model,
        head_tokens(variant, config),
        layer_positions(variant.model),
        seed=config.seed,
        batch_size=config.batch_size,
        condition=Ablation(ablate, seed=config.seed).of,
        losses=False,
    )
    context = variant.context("probe", config.seed, False, positions=ablate or INTACT)
    rows = table(head_rows(cell, context))
    chosen = rows[(rows["probe"] == "heads") & (rows["metric"] == detector)]
    best = chosen.sort_values("value", ascending=False, kind="stable").head(n)
    return best[_SHOWN].reset_index(drop=True)
