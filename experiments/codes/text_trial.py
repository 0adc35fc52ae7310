"""One code moved in one direction in text: its doses, its control, and rows that tell of both.

A code's effect is net of the control's, of which each sequence has a draw of its own: intervals
over sequences cover draws. Ranks are taken on a panel (`experiments.codes.ranks`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from einops import rearrange, reduce
from jaxtyping import Float

from experiments.codes.ranks import PANEL, PerDraw, Rank
from experiments.codes.text_runs import Crossing, TextRun, UnrelatedOrder, Within
from experiments.codes.way import Measured, Way, share
from experiments.probing.sites import Site
from experiments.results import interchange as names
from experiments.results.code_ablation import SIZE_MATCHED
from probes.bootstrap import SequenceBootstrap

# Draws of the control in a turn.
_TURN = 4
# In which column these begin, of two runs side by side: a move, and its control or its part. Then
# the same of what each writes behind the place.
_FIRST, _SECOND, _FIRST_WRITES, _SECOND_WRITES = range(0, 12, 3)
# Of three: a move, the move to an unrelated order, and the text in that order. Then, of the way to
# that order: the move to it, the other one, and the text in the other order.
_TOLD_ANOTHER, _IN_ANOTHER, _CROSSED = range(3, 12, 3)
_SHARES = (names.TOWARDS, names.STAYS, names.NEITHER)
# Of a way that text in an unrelated order leaves less of than this, little can be said.
_LEAST_LEFT = 0.2


@dataclass(frozen=True)
class ToldAnother:
    """The same code moved to an order to which the way does not lead.

    Attributes:
        within: makes the context.
        order: that order.
    """

    within: Within
    order: UnrelatedOrder


class Gone(NamedTuple):
    """How far a run goes of the way in what it predicts, of that in what is written behind a place,
    if any, and of that to the unrelated order, where this one is crossed."""

    predicted: Measured
    written: list[Measured]
    crossed: list[Measured]


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
        told_another: the move to an unrelated order.
        seed: of the intervals.
        back: whether the way is back to the text as it was.
    """

    run: TextRun
    way: Way
    written: Mapping[Site, Way]
    moved: Callable[[float], Within]
    drawn: Callable[[float, int, int], Within]
    doses: Sequence[float]
    told_another: ToldAnother
    seed: int
    back: bool = False

    @cached_property
    def own(self) -> Gone:
        """What the full move came to."""
        return self._gone(self.moved(self.doses[-1]), self.told_another.order.crossing)

    @cached_property
    def beside_another(self) -> Float[np.ndarray, "sequence column"]:
        """What the full move came to, the move to an unrelated order, and text in that order.

        Then the same of the way to that order, where it is crossed: there the order that is told
        and the unrelated one change places.
        """
        own, order = self.own, self.told_another.order
        told = self._gone(self.told_another.within, order.crossing)
        columns = [own.predicted, told.predicted, self.way.measured(order.predictions)]
        if order.crossing is not None:
            columns += [*told.crossed, *own.crossed, order.crossing.other]
        return np.concatenate(columns, axis=1)

    def rows(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of the tidy table, as `text_interchange_rows` describes them, without the rank.

        Args:
            context: fills all other columns.
        """
        return [*self._shares(context), *self._beyond_another(context), *self._smaller(context)]

    def rank(self, rows: Sequence[Mapping[str, Any]]) -> Rank:
        """The rank of the effect in these rows; none is needed where any order does as much."""
        nets = [row for row in rows if row["metric"] in (names.NET, names.THIS_ORDER)]
        net = min(nets, key=lambda row: float(row["ci_low"]))
        return Rank(net, self._level, self._turn)

    def _gone(self, within: Within, crossing: Crossing | None) -> Gone:
        found = self.run.read(list(self.written), within)
        return Gone(
            self.way.measured(found.predictions),
            [way.measured(found.written[site]) for site, way in self.written.items()],
            [] if crossing is None else [crossing.way.measured(found.predictions)],
        )

    def _level(self) -> float:
        """How far the code's own full move goes on the panel."""
        return float(_toward(self._on_panels(self.moved(self.doses[-1])))[0])

    def _turn(self, turn: int) -> PerDraw:
        """Those of the control, one for each draw of a turn."""
        within = self.drawn(self.doses[-1], turn, self._panel)
        return _toward(self._on_panels(within, _TURN))

    def _on_panels(self, within: Within, panels: int = 1) -> Float[np.ndarray, "panel sequence to"]:
        """How far some copies of the panel go."""
        which = list(range(self._panel)) * panels
        found = self.way.of(which).measured(self.run.of(which).read(within=within).predictions)
        return rearrange(found, "(panel sequence) to -> panel sequence to", panel=panels)

    @property
    def _panel(self) -> int:
        return min(PANEL, len(self.run.tokens))

    def _shares(self, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What share of the way a full move goes, stays or does neither, and so its control."""
        own, bootstrap = self.own, SequenceBootstrap(seed=self.seed)
        control = self._gone(self.drawn(self.doses[-1], 0, 1), crossing=None)
        both = [own.predicted, control.predicted, *own.written, *control.written]
        bootstrap.update(np.concatenate(both, axis=1))
        predicts, writes = (_FIRST, _SECOND), (_FIRST_WRITES, _SECOND_WRITES)
        told = [(of, of, predicts) for of in _SHARES]
        told = [(names.RESTORED, names.TOWARDS, predicts)] if self.back else told
        told += [(names.WRITTEN, names.TOWARDS, writes)] if own.written else []
        for metric, of, columns in told:
            for first, side in zip(columns, ("", SIZE_MATCHED), strict=True):
                score = bootstrap.score(metric, share(of, first), chance=math.nan, control=side)
                yield {**context, **vars(score)}
        net = {names.NET: _more_towards, names.BEYOND: share(names.TOWARDS)}
        for metric, function in (net if self.back else {**net, names.BROKEN: _broken}).items():
            yield {**context, **vars(bootstrap.score(metric, function, chance=0.0))}

    def _beyond_another(self, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """How much further a full move goes than one to an unrelated order, of what that leaves."""
        bootstrap = SequenceBootstrap(seed=self.seed).update(self.beside_another)
        told = {names.RESTORED: names.TOWARDS} if self.back else {of: of for of in _SHARES}
        for first, side in (
            (_TOLD_ANOTHER, names.TOLD_UNRELATED),
            (_IN_ANOTHER, names.IN_UNRELATED),
        ):
            for metric, of in told.items():
                score = bootstrap.score(metric, share(of, first), chance=math.nan, control=side)
                yield {**context, **vars(score)}
        score = bootstrap.score(names.THIS_ORDER, _beyond_another, chance=0.0)
        yield {**context, **vars(score)}

    def _smaller(self, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What share of the way smaller doses go on the panel, and so their controls."""
        for dose in self.doses[:-1]:
            for side, within in (("", self.moved(dose)), (SIZE_MATCHED, self.drawn(dose, 0, 1))):
                bootstrap = SequenceBootstrap(seed=self.seed).update(self._on_panels(within)[0])
                of, metric = share(names.TOWARDS), names.at_dose(dose)
                score = bootstrap.score(metric, of, chance=math.nan, control=side)
                yield {**context, **vars(score)}


def added_text_rows(
    whole: TextTrial, part: TextTrial, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The rows of what a code adds to a part of it: the share of the way that is then gone as well,
    and what of this is beyond an unrelated order.

    Args:
        whole: the code moved.
        part: the part moved in its stead.
        context: fills all other columns.

    Returns:
        Two rows.
    """
    ends = np.concatenate([whole.own.predicted, part.own.predicted], axis=1)
    added = SequenceBootstrap(seed=whole.seed).update(ends)
    ends = np.concatenate([whole.beside_another, part.beside_another], axis=1)
    beyond = SequenceBootstrap(seed=whole.seed).update(ends)
    scores = (
        added.score(names.ADDED, _more_towards, chance=0.0),
        beyond.score(names.ADDED_THIS_ORDER, _adds_beyond_another, chance=0.0),
    )
    return [{**context, **vars(score)} for score in scores]


def _toward(panels: Float[np.ndarray, "panel sequence to"]) -> PerDraw:
    """Each panel's share of the way.

    Not what lies along the way in nats: of that a broken run has much, whatever broke it.
    """
    return share(names.TOWARDS)(reduce(panels, "panel sequence to -> panel to", "mean"))


def _broken(means: np.ndarray) -> np.ndarray:
    """The share of a run that goes neither way less that of its control."""
    return np.asarray(share(names.NEITHER, _FIRST)(means) - share(names.NEITHER, _SECOND)(means))


def _beyond_another(means: np.ndarray) -> np.ndarray:
    """1 where a move goes all of the way, 0 where it goes as far as one to an unrelated order.

    Text in that order goes a part of the way itself: no more than the rest can be told by an order.
    """
    if means.shape[-1] > _CROSSED:
        return _leaning(means)
    columns = (_FIRST, _TOLD_ANOTHER, _IN_ANOTHER)
    own, told, text = (share(names.TOWARDS, first)(means) for first in columns)
    return np.asarray((own - told) / np.maximum(1 - text, _LEAST_LEFT))


def _leaning(means: np.ndarray) -> np.ndarray:
    """The same of two orders that change places: how much more each of two moves leans to the order
    that it tells than to the other one, over how much more the texts themselves do.

    What harms alike under both orders lies as far along both ways, and is in neither. Shares are of
    the longer way, or of what a run changes where that is more.
    """
    # On the way to the one order, then on that to the other: a move to either, and a text.
    own, told, text, told_there, own_there, other_text = range(6)
    along, changed, length = means[..., 0::3], means[..., 1::3], means[..., 2::3]
    to_own, to_other = length[..., own], length[..., own_there]
    both = np.maximum(np.maximum(to_own, to_other), np.finfo(float).tiny)

    def leans(here: int, there: int) -> np.ndarray:
        """Of one run, along the way to the order and along that to the unrelated one."""
        longest = np.maximum(both, changed[..., here])
        return np.asarray((along[..., here] - along[..., there]) / longest)

    texts = (to_own - along[..., other_text] + to_other - along[..., text]) / both
    return (leans(own, own_there) - leans(told, told_there)) / np.maximum(texts, 2 * _LEAST_LEFT)


def _adds_beyond_another(means: np.ndarray) -> np.ndarray:
    """The same of a move, less that of the move of a part."""
    whole, part = np.split(means, 2, axis=-1)
    return _beyond_another(whole) - _beyond_another(part)


def _more_towards(means: np.ndarray) -> np.ndarray:
    """The share of the way of the first run less that of the second."""
    return np.asarray(share(names.TOWARDS, _FIRST)(means) - share(names.TOWARDS, _SECOND)(means))
