"""From what was read of heads to what is kept of them: labels, rows of the table, and pairs."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.heads.cell import (
    HeadCell,
    dependence_rows,
    early_rows,
    head_rows,
    label_rows,
    own_label_rows,
)
from nope_interp.hooked_model import HookedModel
from nope_interp.models.composition import adds_up, k_composition
from probes.head_rules import Rule
from probes.heads.detectors import HeadScores
from probes.heads.labels import Dependence, HeadLabel, dependence, early_labels, label_heads

# A head that keeps all of its positions shows nothing of whether it needs them.
_UNTOLD = Dependence("", np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Judged:
    """What the heads are called.

    Attributes:
        labels: by our rules.
        early: by these on fewer sequences, with how many these are.
        own: by the user's own rules; empty where there are none.
    """

    labels: list[HeadLabel]
    early: list[tuple[int, list[str]]]
    own: list[HeadLabel]

    def rows(self, context: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows of the tidy table; context fills the columns that are the same in all of them."""
        yield from label_rows(self.labels, context)
        yield from early_rows(self.labels, self.early, context)
        yield from own_label_rows(self.own, context)


def judged_by(
    scores: Mapping[int, HeadScores],
    nulls: Mapping[int, HeadScores] | None,
    rules: Sequence[Rule],
) -> Judged:
    """What the rules make of the heads' scores.

    Args:
        scores: one for each layer that has heads.
        nulls: those of the random-init variant, if it was read.
        rules: the user's own.
    """
    own = label_heads(scores, nulls, rules) if rules else []
    return Judged(label_heads(scores, nulls), early_labels(scores, nulls), own)


def rows_of_run(
    context: dict[str, Any],
    cells: Mapping[str, HeadCell],
    nulls: Mapping[str, HeadCell],
    untrained: str,
    judged: Mapping[str, Judged],
    heads: Collection[int] | None,
    each: Collection[int],
) -> Iterator[dict[str, Any]]:
    """Rows of the tidy table: every score and label, and what is left of them under an ablation.

    Args:
        context: fills the columns that are the same in all rows.
        cells: what the model in question showed, by condition, the intact one first.
        nulls: what its random-init variant showed.
        untrained: what that variant is called.
        judged: the labels, by condition.
        heads: those that positions are taken from; None for all.
        each: the layers that are ablated alone; empty where the whole model is.
    """
    for title, cell in cells.items():
        here = context | {"positions": title}
        yield from head_rows(cell, here)
        yield from judged[title].rows(here)
    for title, cell in nulls.items():
        yield from head_rows(cell, context | {"variant": untrained, "positions": title})
    # What is left with the head's own layer ablated, and with the whole model. What is added to the
    # embedding cannot be taken from one layer: there it is the whole model.
    intact, *ablated = cells
    for name in ablated:
        here = context | {"positions": name}
        whole = cells[name].scores
        ablations = {"dependence": cells[intact].alone or whole, "retention, whole model": whole}
        for probe, scores in ablations.items():
            left = {
                (found.layer, found.head): dependence(
                    found.label, cells[intact].scores[found.layer], scores[found.layer], found.head
                )
                if scores is whole
                or (found.layer in each and (heads is None or found.head in heads))
                else _UNTOLD
                for found in judged[intact].labels
            }
            yield from dependence_rows(left, here, probe)


def edges_of(model: HookedModel, labels: Sequence[HeadLabel]) -> list[dict[str, Any]]:
    """K-composition from every previous-token head to every later induction head.

    Chance is what a tenth of the other pairs of heads of the same two layers exceed: trained
    weights lean in few directions, so that random ones are no measure of them.

    Args:
        model: whose weights are composed.
        labels: of its heads.

    Returns:
        A pair each, with its score and its chance, which is NaN where these layers have one head
        each and so no other pair; none where a model's writes do not add up.
    """
    if not adds_up(model):
        return []
    writers, readers = (
        [(found.layer, found.head) for found in labels if found.label == label]
        for label in ("previous-token", "induction")
    )
    found = []
    for (layer, head), (later, to) in itertools.product(writers, readers):
        if layer < later:
            scores = k_composition(model, layer, later)
            others = np.delete(scores.numpy().ravel(), head * scores.shape[1] + to)
            where = {"from_layer": layer, "from_head": head, "to_layer": later, "to_head": to}
            chance = float(np.quantile(others, 0.9)) if len(others) else np.nan
            found.append({**where, "score": float(scores[head, to]), "chance": chance})
    return found
