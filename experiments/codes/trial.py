"""One code moved in one direction in a task: its doses, its control, and rows that tell of both.

A code's effect is net of the control's. Intervals are over sequences, of which each has control
draws of its own.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from experiments.codes.answering import Answers, Asking, Changes, PerExample
from experiments.codes.order import share_rows
from experiments.codes.ranks import Rank
from experiments.results import interchange as names
from experiments.results.code_ablation import SIZE_MATCHED
from probes.bootstrap import NamedBootstrap, SequenceBootstrap


@dataclass(frozen=True)
class Trial:
    """One code moved in one direction.

    Attributes:
        asking: what is asked of the model.
        before: what it answers where the code is not moved.
        moved: makes the changes that move the code by a dose.
        drawn: makes those of the control, by a dose, with the draws of a turn.
        doses: shares of the way that it is moved, the last one all of it.
        seed: of the intervals.
    """

    asking: Asking
    before: Answers
    moved: Callable[[float], Changes]
    drawn: Callable[[float, int], Changes]
    doses: Sequence[float]
    seed: int

    @cached_property
    def own(self) -> list[Answers]:
        """What is answered at each dose."""
        return self._by_dose(self.moved)

    def rows(self, most_draws: int, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows of the tidy table, as `interchange_rows` describes them.

        Args:
            most_draws: of the control, for the rank.
            context: fills all other columns.
        """
        first = self._by_dose(lambda dose: self.drawn(dose, 0))
        found = list(self._shares(first, context))
        yield from found
        own, drawn = self._slopes(self.own), self._slopes(first)
        bootstrap = NamedBootstrap({"": own, SIZE_MATCHED: drawn}, seed=self.seed)
        for control in ("", SIZE_MATCHED):
            score = bootstrap.score(names.SLOPE, bootstrap.mean(control), chance=math.nan)
            yield {**context, **vars(score), "control": control}
        net = next(row for row in found if row["metric"] == names.NET)

        def turn_of(turn: int) -> PerExample:
            return self._slopes(self._by_dose(lambda dose: self.drawn(dose, turn)))

        rank = Rank(net, lambda: float(own.mean()), turn_of, [drawn])
        yield rank.among(most_draws).row()

    def _by_dose(self, make: Callable[[float], Changes]) -> list[Answers]:
        return [self.asking.answers(make(dose)) for dose in self.doses]

    def _slopes(self, found: Sequence[Answers]) -> PerExample:
        """In nats for a full move, of the examples with an answer that counts.

        Of the line through 0 that fits best. Small doses alone would say little: where attention is
        sure of its token, it hardly moves before it jumps to another.
        """
        rises = np.stack([of.log_odds - self.before.log_odds for of in found])
        slope: PerExample = np.array(self.doses) @ rises / np.square(self.doses).sum()
        return slope[self.asking.n > 0]

    def _shares(
        self, drawn: Sequence[Answers], context: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The shares of all answers that count, of the full move and of smaller ones."""
        full, control, n = self.own[-1], drawn[-1], self.asking.n
        back = self.asking.aim is self.asking.own and not self.asking.away
        aim = names.RESTORED if back else names.TOWARDS
        columns = {(aim, ""): full.follows, (aim, SIZE_MATCHED): control.follows}
        if back:
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
        weights[names.NET, ""] = [1, -1] + [0] * (len(columns) - 2)
        yield from _rows([*columns.values()], weights, n, self.seed, context)


def added_row(whole: Trial, part: Trial, context: Mapping[str, Any]) -> dict[str, Any]:
    """The row of what a code adds to a part of it: the share of answers that then follow as well.

    Args:
        whole: the code moved.
        part: the part moved in its stead.
        context: fills all other columns.
    """
    follows = [trial.own[-1].follows for trial in (whole, part)]
    return _rows(follows, {(names.ADDED, ""): (1, -1)}, whole.asking.n, whole.seed, context)[0]


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
