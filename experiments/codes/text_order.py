"""Does a language model know the order of what it reads? Nothing is said of its codes before.

Whoever knows which token follows which sees one token of context and no order. A model has to do
better than that bigram, and has to do worse where all earlier tokens are permuted and the last one
is kept, so that a bag of earlier words is all there is besides.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.codes.task import InterventionTask
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.text_use import (
    ABOVE_BIGRAM,
    BIGRAM,
    LOST_BY_PERMUTATION,
    NATS,
    NATS_AT_ENDS,
    PERMUTED,
    PROBE,
)
from nope_interp.errors import UserError
from nope_interp.interventions.heads import is_causal
from nope_interp.models.losses import bigram_losses, next_log_probabilities, token_losses
from nope_interp.shapes import PerSequence
from nope_interp.tasks.sources import TextSource
from probes.bootstrap import NamedBootstrap

# So many tokens of each sequence are predicted behind permuted ones, in its second half.
_ENDS = 8
# The begin token or attention sink, two tokens to permute, one to keep, one to predict.
_SHORTEST = 5


def text_order_rows(
    task: InterventionTask, source: TextSource, *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: whether a language model knows the order of earlier tokens.

    Metric `NATS`, per token of the held-out sequences: the model's own, and with the control
    `BIGRAM` that of a smoothed bigram fitted on all the text that is not held out. Metric
    `NATS_AT_ENDS`, of tokens in the second half: the model's own, and with the control `PERMUTED`
    where all tokens before the last one are in an order drawn for each sequence; the first token
    stays. `ABOVE_BIGRAM` and `LOST_BY_PERMUTATION` are the differences, by chance 0. Intervals are
    over sequences.

    Args:
        task: a model on text.
        source: the text.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for sequences of fewer than 5 tokens.
    """
    tokens = task.split.held_out
    if tokens.shape[1] < _SHORTEST:
        raise UserError(
            f"sequences of {tokens.shape[1]} tokens are too short to permute: give {_SHORTEST} at "
            "least (--seq-len)."
        )
    every = token_losses(task.model, tokens, batch_size=task.batch_size)
    own, permuted = _at_ends(task, tokens, every)
    columns = {
        (NATS, ""): every.mean(dim=1),
        (NATS, BIGRAM): bigram_losses(source.known, tokens, task.model.cfg.d_vocab),
        (NATS_AT_ENDS, ""): own,
        (NATS_AT_ENDS, PERMUTED): permuted,
    }
    losses = NamedBootstrap(
        {name: of.double().numpy() for name, of in columns.items()}, seed=task.seed
    )
    context = {**context, "layer": EVERYWHERE, "site": STREAM, "probe": PROBE}
    differences = {
        ABOVE_BIGRAM: losses.difference((NATS, BIGRAM), (NATS, "")),
        LOST_BY_PERMUTATION: losses.difference((NATS_AT_ENDS, PERMUTED), (NATS_AT_ENDS, "")),
    }
    rows = []
    for metric, control in columns:
        score = losses.score(metric, losses.mean((metric, control)), chance=task.chance)
        rows.append({**context, **vars(score), "control": control})
    for metric, difference in differences.items():
        rows.append({**context, **vars(losses.score(metric, difference, chance=0.0))})
    return rows


def _at_ends(
    task: InterventionTask, tokens: Tensor, losses: Float[Tensor, "sequence predicted"]
) -> tuple[PerSequence, PerSequence]:
    """What is lost on tokens of each sequence, behind the tokens before them and permuted ones.

    What a causal model loses on a token is known from the whole sequence.
    """
    causal = is_causal(task.model)
    length = tokens.shape[1]
    ends = torch.linspace(max(length // 2, _SHORTEST - 1), length - 1, _ENDS).int().unique()
    generator = torch.Generator().manual_seed(task.seed)
    own, permuted = [], []
    for end in ends.tolist():
        before, wanted = tokens[:, :end], tokens[:, end]
        shuffled, middle = before.clone(), before[:, 1:-1]
        order = torch.rand(middle.shape, generator=generator).argsort(dim=1)
        shuffled[:, 1:-1] = middle.gather(1, order)
        own.append(losses[:, end - 1] if causal else _lost(task, before, wanted))
        permuted.append(_lost(task, shuffled, wanted))
    return torch.stack(own).mean(dim=0), torch.stack(permuted).mean(dim=0)


def _lost(task: InterventionTask, before: Tensor, wanted: Tensor) -> PerSequence:
    """On the token that comes next, in nats."""
    device = next(task.model.parameters()).device
    parts = zip(before.split(task.batch_size), wanted.split(task.batch_size), strict=True)
    return torch.cat(
        [
            -next_log_probabilities(task.model, some.to(device), some.shape[1] - 1)[:, 0]
            .cpu()
            .gather(1, following[:, None])[:, 0]
            for some, following in parts
        ]
    )
