"""One code moved in one direction in text: its doses, its control, and rows that tell of both.

A code's effect is net of the control's, of which each sequence has a draw of its own: intervals
over sequences cover draws. For ranks several sequences share a draw, whose effect is their mean.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.codes.ranks import rank_row
from experiments.codes.text_runs import TextRun, Within
from experiments.codes.way import PerSequence, Way, share
from experiments.probing.measure import Site
from experiments.results import interchange as names
from experiments.results import text_use
from experiments.results.code_ablation import SIZE_MATCHED
from probes.bootstrap import SequenceBootstrap

# Sequences in a row whose controls share a draw, for ranks.
_TOGETHER = 64
# A mean over the sequences that share a draw of the control.
PerDraw = Float[np.ndarray, " draw"]
# Along, changed and length of a run, for each sequence.
Measured = Float[np.ndarray, "sequence 3"]


@dataclass(frozen=True)
class TextTrial:
    """One code moved in one run.

    Attributes:
        run: as it is, under what it starts from.
        way: from what it predicts there to what it would predict elsewhere.
        written: the same of what is written behind the place; empty where that is no one site.
        moved: makes the context in which the code is moved by a dose.
        drawn: that of the control, by a dose, with the draws of a turn, and how many sequences in
            a row share one.
        doses: shares of the way that it is moved, the last one all of it.
        seed: of the intervals.
        back: whether the way is back to the text as it was.
    """

    run: TextRun
    way: Way
    written: Mapping[Site, Way]
    moved: Callable[[float], Within]
    drawn: Callable[[float, int, int], Within]
    doses: Sequence[float]
    seed: int
    back: bool = False

    @cached_property
    def own(self) -> list[list[Measured]]:
        """What each dose came to, in predictions and then in what is written."""
        return self._by_dose(self.moved)

    def rows(self, most_draws: int, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows of the tidy table, as `text_interchange_rows` describes them.

        Args:
            most_draws: of the control, for the rank.
            context: fills all other columns.
        """
        control = self._by_dose(lambda dose: self.drawn(dose, 0, 1))[-1]
        found = list(self._shares(control, context))
        yield from found
        net = next(row for row in found if row["metric"] == names.NET)

        def turn_of(turn: int) -> PerDraw:
            drawn = self._by_dose(lambda dose: self.drawn(dose, turn, _TOGETHER))
            return _by_draw(self._slopes(drawn))

        yield rank_row(net, float(self._slopes(self.own).mean()), [], turn_of, _reached, most_draws)

    def _by_dose(self, make: Callable[[float], Within]) -> list[list[Measured]]:
        return [self._measured(make(dose)) for dose in self.doses]

    def _measured(self, within: Within) -> list[Measured]:
        """How far a run goes the way in what it predicts, and then in what is written."""
        found = self.run.read(list(self.written), within)
        ways = [self.way, *self.written.values()]
        reached = [found.predictions, *found.written.values()]
        return [way.measured(of) for way, of in zip(ways, reached, strict=True)]

    def _slopes(self, found: Sequence[list[Measured]]) -> PerSequence:
        """Of the line through 0 that fits the shares of the way best.

        Not of what lies along the way in nats: of that a broken run has much, whatever broke it.
        """
        gone = np.stack([share(names.TOWARDS)(of_predictions) for of_predictions, *_ in found])
        doses = np.array(self.doses)
        return np.asarray(doses @ gone / np.square(doses).sum())

    def _shares(
        self, control: Sequence[Measured], context: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """What share of the way a full move goes, stays or does neither, and so its control."""
        own, bootstrap = self.own[-1], SequenceBootstrap(seed=self.seed)
        bootstrap.update(np.concatenate([own[0], control[0], *own[1:], *control[1:]], axis=1))
        told = [(metric, metric, 0) for metric in (names.TOWARDS, names.STAYS, names.NEITHER)]
        told = [(names.RESTORED, names.TOWARDS, 0)] if self.back else told
        told += [(text_use.WRITTEN, names.TOWARDS, 6)] if len(own) > 1 else []
        for metric, of, first in told:
            for number, side in enumerate(("", SIZE_MATCHED)):
                shares = share(of, first + 3 * number)
                score = bootstrap.score(metric, shares, chance=math.nan, control=side)
                yield {**context, **vars(score)}
        yield {**context, **vars(bootstrap.score(names.NET, _more_towards, chance=0.0))}


def added_text_row(whole: TextTrial, part: TextTrial, context: Mapping[str, Any]) -> dict[str, Any]:
    """The row of what a code adds to a part of it: the share of the way that is then gone as well.

    Args:
        whole: the code moved.
        part: the part moved in its stead.
        context: fills all other columns.
    """
    ends = np.concatenate([whole.own[-1][0], part.own[-1][0]], axis=1)
    bootstrap = SequenceBootstrap(seed=whole.seed).update(ends)
    return {**context, **vars(bootstrap.score(names.ADDED, _more_towards, chance=0.0))}


def _more_towards(means: np.ndarray) -> np.ndarray:
    """The share of the way of the first run less that of the second."""
    return np.asarray(share(names.TOWARDS)(means) - share(names.TOWARDS, 3)(means))


def _by_draw(slopes: PerSequence) -> PerDraw:
    """The mean over the sequences that share a draw."""
    firsts = np.arange(0, len(slopes), _TOGETHER)
    return np.add.reduceat(slopes, firsts) / np.diff([*firsts, len(slopes)])


def _reached(level: float, drawn: Sequence[PerDraw]) -> tuple[int, int]:
    """How many draws come as far as the level, and how many there are.

    Each is a draw's deviation from the mean of its sequences' draws, about the mean of them all:
    ways differ in length from sequence to sequence, and draws are to be ranked by their directions.
    Of one draw for the same sequences nothing is known.
    """
    if len(drawn) < 2:
        return 0, 0
    slopes = np.stack(drawn)
    deviations = (slopes - slopes.mean(axis=0)) * math.sqrt(len(drawn) / (len(drawn) - 1))
    return int((slopes.mean() + deviations >= level).sum()), slopes.size
