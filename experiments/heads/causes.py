"""Do some heads need others? Those are removed, and what is left of these is measured.

A head is removed where its output is its mean, over positions and the sequences of a batch: what it
tells of any position or token is gone. The control removes as many other heads of the same layers,
drawn anew for each sequence, so that intervals over sequences cover the draws.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Generator, Tensor

from experiments.heads.checks import check_chance_levels
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import read_cell
from experiments.heads.tokens import head_tokens
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError, unknown_name, warn
from nope_interp.interventions.heads import by_head, head_outputs
from nope_interp.interventions.intervene import Function, intervene
from nope_interp.positions.layers import layer_positions
from nope_interp.sites import layer_ranges
from probes.head_rules import RULES, SHUFFLED_OFFSETS
from probes.heads.detectors import HeadScores
from probes.heads.labels import label_heads, share_interval

# What heads put out before it is written to the residual stream, in one row or apart.
HeadOutputs = Float[Tensor, "batch pos *head_d"]
# Labels of heads whose score has a chance level: above it there is something that can be lost.
LOSABLE = tuple(rule.label for rule in RULES if SHUFFLED_OFFSETS in rule.nulls)

_METRIC = {rule.label: rule.metric for rule in RULES}


def without_heads(
    variant: ModelVariant, config: HeadsConfig, removed: str, read: str
) -> pd.DataFrame:
    """What is left of the habit of heads with one label where all with another are removed.

    Args:
        variant: the model.
        config: what it is read on.
        removed: the label of the heads that are removed.
        read: the label of those that are read, one of `LOSABLE`.

    Returns:
        One row for each head that is read: layer, head, its score (value) and what equal weights
        give (chance); the share of the score above chance that is left without the removed heads
        of earlier layers, with its 95% interval over sequences (left); the same under the control
        (control), and by how much less is left than under it (net). The last two are NaN, with a
        warning, where an earlier layer has fewer other heads than are removed of it.

    Raises:
        UserError: for an unknown label, heads without chance levels, and where no head of the one
            comes after one of the other.
    """
    for label, known in ((removed, _METRIC), (read, LOSABLE)):
        if not isinstance(label, str) or label not in known:
            raise unknown_name("label", label, known)
    model, n_heads = variant.model, variant.model.cfg.n_heads
    check_chance_levels(model, config.seq_len, variant.name)
    how: dict[str, Any] = {"seed": config.seed, "batch_size": config.batch_size, "losses": False}
    cell = partial(read_cell, model, head_tokens(variant, config), layer_positions(model), **how)
    intact = cell().scores
    labels = label_heads(intact)
    by_layer: dict[int, list[int]] = {}
    for found in labels:
        if found.label == removed:
            by_layer.setdefault(found.layer, []).append(found.head)
    later = [
        (found.layer, found.head)
        for found in labels
        if found.label == read and found.layer > min(by_layer, default=found.layer)
    ]
    if not later:
        raise UserError(
            f"no {read} head of {variant.name} comes after one that is {removed}: choose other "
            "labels."
        )

    def under(functions: Mapping[str, Function]) -> dict[int, HeadScores]:
        return cell(condition=partial(intervene, functions=functions)).scores

    gone = under(
        {
            head_outputs(layer): partial(removing, heads=of, n_heads=n_heads)
            for layer, of in by_layer.items()
        }
    )
    drawn = under(
        {
            head_outputs(layer): OthersRemoved(of, n_heads, config.seed + layer)
            for layer, of in by_layer.items()
        }
    )
    rows = [
        {
            "layer": layer,
            "head": head,
            **_left(_METRIC[read], head, intact[layer], gone[layer], drawn[layer]),
        }
        for layer, head in later
    ]
    best = pd.DataFrame(rows)
    _forget_control(best, [layer for layer, of in by_layer.items() if 2 * len(of) > n_heads])
    return best.sort_values("net", ascending=False, kind="stable").reset_index(drop=True)


def _forget_control(rows: pd.DataFrame, short: Sequence[int]) -> None:
    """What is read behind layers that are short of other heads has no control."""
    behind = rows["layer"] > min(short, default=np.inf)
    if not behind.any():
        return
    where = layer_ranges(short)
    warn(f"too few other heads in {where}: what comes after has no control.")
    for name in ("control", "net"):
        rows.loc[behind, [name, f"{name}_low", f"{name}_high"]] = np.nan


def removing(z: HeadOutputs, heads: Sequence[int], n_heads: int) -> Tensor:
    """Heads with their mean over the sequences and positions in place of their outputs.

    Args:
        z: outputs of all heads of a layer.
        heads: which are removed.
        n_heads: of the layer.
    """
    changed = z.clone()
    apart, chosen = by_head(changed, n_heads), list(heads)
    apart[:, :, chosen] = apart[:, :, chosen].mean(dim=(0, 1))
    return changed


class OthersRemoved:
    """As many other heads of a layer removed, drawn for each sequence; draws go on from batch to
    batch.

    Args:
        heads: those that stay.
        n_heads: of the layer. Where fewer than as many are left, all of these are removed.
        seed: of the draws.
    """

    def __init__(self, heads: Sequence[int], n_heads: int, seed: int) -> None:
        self._others = torch.tensor([head for head in range(n_heads) if head not in heads])
        self._n, self._n_heads = min(len(heads), len(self._others)), n_heads
        self._generator = Generator().manual_seed(seed)

    def __call__(self, z: HeadOutputs) -> Tensor:
        """The outputs, some of them their mean."""
        order = torch.rand(len(z), len(self._others), generator=self._generator).argsort(dim=1)
        chosen = torch.zeros(len(z), self._n_heads, dtype=torch.bool)
        chosen.scatter_(1, self._others[order[:, : self._n]], True)
        apart = by_head(z, self._n_heads)
        means = reduce(apart, "batch pos head d -> head d", "mean")
        at = rearrange(chosen.to(z.device), "batch head -> batch 1 head 1")
        return torch.where(at, means, apart).reshape_as(z)


def _left(
    metric: str, head: int, intact: HeadScores, gone: HeadScores, drawn: HeadScores
) -> dict[str, float]:
    """What is left of a head's score above chance, without the others and under the control."""
    at = (head, intact.column(metric))
    chance = float(intact.chance[at])

    def share(of: HeadScores) -> tuple[float, np.ndarray]:
        # Paired: one seed, the same sequences in the same batches.
        resampled = (of.replicates[:, *at] - chance) / (intact.replicates[:, *at] - chance)
        return float((of.value[at] - chance) / (intact.value[at] - chance)), resampled

    (left, lefts), (control, controls) = share(gone), share(drawn)
    found = {"value": float(intact.value[at]), "chance": chance}
    for name, value, resampled in (
        ("left", left, lefts),
        ("control", control, controls),
        ("net", control - left, controls - lefts),
    ):
        low, high = share_interval(value, resampled, int(intact.n[at]))
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return found
