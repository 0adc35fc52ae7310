"""One code moved in one direction in a task: its doses, its control, and rows that tell of both.

A code's effect is net of the control's, and of what is answered where nothing is moved. Intervals
are over sequences, of which each has control draws of its own. Ranks are taken on a panel
(`experiments.codes.ranks`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from einops import reduce

from experiments.codes.answering import Answers, Asking, Changes, PerExample
from experiments.codes.order import share_rows
from experiments.codes.ranks import PANEL, PerDraw, Rank
from experiments.results import interchange as names
from experiments.results.code_ablation import SIZE_MATCHED
from probes.bootstrap import SequenceBootstrap

# Draws of the control in a turn.
_TURN = 20


@dataclass(frozen=True)
class Trial:
    """One code moved in one direction.

    Attributes:
        asking: what is asked of the model.
        before: what it answers where the code is not moved.
        moved: makes the changes that move the code by a dose.
        drawn: makes those of the control, by a dose, with the draws of a turn, and how many
            sequences in a row share one.
        doses: shares of the way that it is moved, the last one all of it.
        seed: of the intervals.
        back: whether the own answer is to come back.
    """

    asking: Asking
    before: Answers
    moved: Callable[[float], Changes]
    drawn: Callable[[float, int, int], Changes]
    doses: Sequence[float]
    seed: int
    back: bool = False

    @cached_property
    def own(self) -> list[Answers]:
        """What is answered at each dose."""
        return [self.asking.answers(self.moved(dose)) for dose in self.doses]

    def rows(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of the tidy table, as `interchange_rows` describes them, without the rank.

        Args:
            context: fills all other columns.
        """
        first = [self.asking.answers(self.drawn(dose, 0, 1)) for dose in self.doses]
        return list(self._shares(first, context))

    def rank(self, rows: Sequence[Mapping[str, Any]]) -> Rank:
        """The rank of the net effect that stands in these rows, by log-odds of the full move."""
        net = next(row for row in rows if row["metric"] == names.NET)
        return Rank(net, self._level, self._turn)

    def _level(self) -> float:
        """What the code's own full move comes to on the panel."""
        (risen,) = self._on_panels(self.moved(self.doses[-1]), 1)
        return float(risen)

    def _turn(self, turn: int) -> PerDraw:
        """Those of the control, one for each draw of a turn."""
        return self._on_panels(self.drawn(self.doses[-1], turn, len(self._panel)), _TURN)

    def _on_panels(self, changes: Changes, panels: int) -> PerDraw:
        """How far log-odds rise, mean over each of some copies of the panel."""
        which = self._panel * panels
        risen = self.asking.of(which).answers(changes).log_odds - self.before.of(which).log_odds
        return reduce(risen, "(panel sequence) -> panel", "mean", panel=panels)

    @cached_property
    def _panel(self) -> list[int]:
        """The first sequences with an answer that counts."""
        found: list[int] = self.asking.n.nonzero()[0][:PANEL].tolist()
        return found

    def _shares(
        self, drawn: Sequence[Answers], context: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The shares of all answers that count, of the full move and of smaller ones."""
        full, control, n = self.own[-1], drawn[-1], self.asking.n
        aim = names.RESTORED if self.back else names.TOWARDS
        columns = {(aim, ""): full.follows, (aim, SIZE_MATCHED): control.follows}
        if self.back:
            columns[names.RESTORED, names.ORDER_DESTROYED] = self.before.follows
        else:
            for of, name in ((full, ""), (control, SIZE_MATCHED)):
                columns[names.STAYS, name] = of.stays
                columns[names.NEITHER, name] = n - of.follows - of.stays
            smaller = list(zip(self.doses, self.own, drawn, strict=True))[:-1]
            for dose, *both in smaller:
                for of, name in zip(both, ("", SIZE_MATCHED), strict=True):
                    columns[names.at_dose(dose), name] = of.follows
        weights = dict(zip(columns, np.eye(len(columns), dtype=int).tolist(), strict=True))
        less = {names.NET: (aim, SIZE_MATCHED)}
        if self.back:
            less[names.BEYOND] = (aim, names.ORDER_DESTROYED)
        else:
            less[names.BROKEN] = (names.NEITHER, SIZE_MATCHED)
        for metric, (what, control_of) in less.items():
            pairs = zip(weights[what, ""], weights[what, control_of], strict=True)
            weights[metric, ""] = [one - another for one, another in pairs]
        yield from _rows([*columns.values()], weights, n, self.seed, context)


def more_row(
    metric: str, one: Trial, follow: PerExample, other: PerExample, context: Mapping[str, Any]
) -> dict[str, Any]:
    """The row of how large a share of answers follows one change and not another.

    Args:
        metric: its name.
        one: a trial that asks for the same answers.
        follow: how many answers of each example follow the first change.
        other: how many follow the second.
        context: fills all other columns.
    """
    return _rows([follow, other], {(metric, ""): (1, -1)}, one.asking.n, one.seed, context)[0]


def _rows(
    columns: Sequence[PerExample],
    weights: Mapping[tuple[str, str], Sequence[int]],
    n: PerExample,
    seed: int,
    context: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Weighted sums of columns, as shares of all answers that count, with intervals."""
    bootstrap = SequenceBootstrap(seed=seed)
    bootstrap.update(np.stack([*columns, n], axis=1))
    return share_rows(bootstrap, {key: tuple(of) for key, of in weights.items()}, context)
