"""What the heads of a model do as it trains."""

from collections.abc import Callable, Iterator
from typing import Any

from experiments.heads.cell import head_rows, label_rows
from experiments.heads.checks import n_heads
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import read_cell
from experiments.heads.tokens import head_tokens
from experiments.results.measurements import Row
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import layer_positions
from probes.heads.detectors import HeadScores
from probes.heads.labels import label_heads

_N_SEQUENCES = 16  # few, as there are a dozen models to read


def head_history(
    variant: ModelVariant, config: ProbingConfig, begin_token: bool
) -> Callable[[HookedModel, Row], Iterator[Row]]:
    """What reads the heads of a variant's models in the order of their steps.

    Args:
        variant: the model in question, for its tokens.
        config: how its models are read.
        begin_token: whether sequences start with one.

    Returns:
        A function of a model and the columns that its rows share. Its rows are of the probe
        "heads", every detector's score of every head, and of the probe "label", what the head is
        called, as the metric, with the model at step 0 for the untrained one, and its confidence.
        Sequences too short to tell heads apart have neither.
    """
    if config.seq_len < HeadsConfig.least["seq_len"]:
        return lambda model, context: iter(())
    asked = {"begin_token": begin_token, "n_sequences": _N_SEQUENCES}
    tokens = head_tokens(variant, HeadsConfig.like(config, **asked))
    untrained: dict[int, HeadScores] = {}

    def rows(model: HookedModel, context: Row) -> Iterator[Row]:
        how: dict[str, Any] = {
            "seed": config.seed,
            "batch_size": config.batch_size,
            "losses": False,
        }
        cell = read_cell(model, tokens, layer_positions(model), **how)
        if not untrained:
            untrained.update(cell.scores)
        # One head is too few for a spread.
        null = untrained if n_heads(model) > 1 else None
        labels = label_rows(label_heads(cell.scores, null), context)
        every = (*head_rows(cell, context), *labels)
        yield from (row for row in every if row["probe"] in ("heads", "label"))

    return rows
