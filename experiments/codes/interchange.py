"""Do answers follow a position that is moved inside the model? In two directions.

- Noising: in a clean run some positions are told by one code to be others (`counterfactual`). A
  model that finds its place by this code answers as there; one that does not stays with its answer;
  one that breaks says something else.
- Denoising: the run does not know the order of these positions: nothing tells it by the mean or the
  variance of activations, and the tokens of a question are permuted, which misleads every other
  way of knowing it. One code alone is put back: each token is told where it belongs. A model that
  finds its place by this code answers right again, even where another code would do as well.

A control moves each activation as far, with directions of its own for each sequence, drawn as the
activations at the site vary. Effects are net of it, and of the run where nothing is moved; their
intervals, over sequences, cover draws.

At one site codes are those of the intact model. Through the whole stream, at the sites of
`in_depth.stream_sites`, moves are made in order of depth: what the moves below have already moved
is not moved again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from experiments.codes.answering import Answers, Asking, Changes, PerExample
from experiments.codes.counterfactual import Counterfactual
from experiments.codes.in_depth import Place, moves_in_depth, statistics_at, stream_sites
from experiments.codes.ranks import FEWEST_SEQUENCES, Ranked, fact, rank_rows
from experiments.codes.task import InterventionTask
from experiments.codes.trial import Trial, more_row
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.results import interchange as names
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.worth import WORTH_NAMING
from nope_interp.errors import UserError
from nope_interp.progress import progress
from probes.code_names import HALVES, IRREGULAR, JUDGED, MEAN_RESIDUAL, SMOOTH
from probes.codes.interchange import (
    Move,
    Moved,
    interchange,
    levelled,
    put_back,
    size_matched_moves,
    variation_at,
)
from probes.codes.statistics import CodeStatistics, Intervention
from probes.codes.trends import (
    Code,
    Functions,
    carries,
    functions_of,
    random_functions,
    sites_to_move,
)

# The shares of the way that codes are moved.
DOSES = (0.05, 0.3, 1.0)
# An interval is over sequences.
_FEWEST_COUNTED = 2
# Draws are made in turns, whose seeds lie so far apart.
_TURNS = 10_000
# How often a smooth trend is held against as many random functions of the position.
_RANDOM_FUNCTIONS = 8


def interchange_rows(
    task: InterventionTask,
    statistics: Mapping[Site, CodeStatistics],
    elsewhere: Sequence[Counterfactual],
    *,
    context: Mapping[str, Any],
    description: str | None = None,
    through_stream: bool = True,
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what becomes of answers where positions are told to be others.

    The condition (direction, code and positions) stands in the column `positions`, named by
    `experiments.results.interchange`. Rows of the whole stream are of layer -1. `carried` is the
    share of sites that tell position by the code at all, more than means of so many sequences would
    by chance. A code is moved at these sites, or, where there are none, at all. There is no other
    row where positions are too few for the code.

    - Noising: `towards`, `stays` and `neither` share out the moved answers that the clean model
      gets right; so they do under the control `SIZE_MATCHED`. `net` is towards less the control's,
      by chance 0, and `broken` neither less the control's. `at_dose` is towards where a code is
      moved by a part of the way (`DOSES`), and so it is under the control.
    - Denoising: `restored` is the share of these answers that is right; so it is under the control,
      and under `ORDER_DESTROYED`, where no code is put back. `net` is restored less the first,
      `beyond` less the second.
    - `rank among controls` is the p-value: the share of draws whose full move does as much as
      the code's, on the same examples; 1 where the net effect is not surely a tenth.
    - `added`, of each half of the mean residual: the share that follows where the whole is moved,
      or put back, less the share where the other half alone is.
    - `beyond random functions`, of a smooth trend: the share that follows it, less the mean share
      that follows as many random functions of the position. `added beyond random functions` is the
      same of what it adds. Both stand there only where they can change what is said.

    There are none of positions of which the clean model gets answers right in less than two
    sequences.

    Args:
        task: of a model of ours.
        statistics: of its fit sequences at each site, as from `statistics_at`.
        elsewhere: the positions that are moved, and what is answered then, as from
            `counterfactuals`.
        context: the columns that tell this model variant from others.
        description: label of the progress bar; None draws no bar.
        through_stream: move codes through the whole stream, too.

    Returns:
        The rows.

    Raises:
        UserError: for fewer than 20 sequences to score.
    """
    check_enough_to_draw(task)
    stream = stream_sites(task) if through_stream else []
    missing = [site for site in stream if site not in statistics]
    known = {**statistics, **(statistics_at(task, missing) if missing else {})}
    places = [Place(site.layer, site.hook, (site,)) for site in statistics]
    if through_stream:
        places.append(Place(EVERYWHERE, STREAM, tuple(stream)))
    ranks: list[Ranked] = []
    rows: list[dict[str, Any]] = []
    total = len(elsewhere) * len(places)
    with progress(None, description, "site", total) as bar:
        for one in elsewhere:
            run = _Run(task, one, known)
            for place in places if run.counts else ():
                rows += run.rows(place, {**context, "probe": names.PROBE}, ranks)
                bar.update()
    return rows + rank_rows(ranks, 2 * len(elsewhere) * len(places) * len(JUDGED))


def noising_rows(
    task: InterventionTask, elsewhere: Sequence[Counterfactual], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what becomes of answers in a clean run where positions are told to be
    others through the whole stream; as `interchange_rows`, without ranks and without the way back.

    Args:
        task: of a model of ours.
        elsewhere: as there.
        context: the columns that tell this model variant from others.

    Returns:
        The rows; none of positions of which the clean model gets answers right in less than two
        sequences.
    """
    sites = tuple(stream_sites(task))
    statistics = statistics_at(task, sites)
    context = {**context, "probe": names.PROBE, "layer": EVERYWHERE, "site": STREAM}
    runs = [_Run(task, one, statistics) for one in elsewhere]
    return [row for run in runs if run.counts for row in run.noised(sites, context)]


def check_enough_to_draw(task: InterventionTask) -> None:
    """Raise UserError where there are too few sequences to score: each has a draw of its own."""
    n = len(task.split.held_out)
    if n < FEWEST_SEQUENCES:
        of = "" if task.source is None else f" of {task.source.name}"
        raise UserError(
            f"{n} different examples{of} are too few to move codes in: it takes {FEWEST_SEQUENCES} "
            "held-out ones of one length, better some hundreds."
        )


class _Run:
    """One set of positions that is moved, in one model.

    Attributes:
        counts: whether the clean model gets enough of the answers right for an interval.
    """

    def __init__(
        self,
        task: InterventionTask,
        elsewhere: Counterfactual,
        statistics: Mapping[Site, CodeStatistics],
    ) -> None:
        chosen = torch.searchsorted(task.numbers(), elsewhere.among)
        self._codes = {site: codes.among(chosen) for site, codes in statistics.items()}
        self._variation = {site: variation_at(codes) for site, codes in statistics.items()}
        self._elsewhere, self._seed = elsewhere, task.seed
        clean = replace(task, positions=elsewhere.among)
        split = Split(*map(elsewhere.destroyed, (task.split.fit, task.split.held_out)))
        disordered = replace(clean, split=split)
        own = elsewhere.own
        right = Asking(clean, own, own, elsewhere.asked).right()
        counted = elsewhere.counted & right
        self.counts = int(counted.any(dim=1).sum()) >= _FEWEST_COUNTED
        self._clean, self._disordered = clean, disordered
        self._noising = Asking(clean, own, elsewhere.other, counted, elsewhere.to_stay)
        self._denoising = Asking(disordered, own, own, elsewhere.asked & right)

    def rows(
        self, place: Place, context: Mapping[str, Any], ranks: list[Ranked]
    ) -> Iterator[dict[str, Any]]:
        """Those of one site, or of the whole stream; ranks are added, each with its condition."""
        context = {**context, "layer": place.layer, "site": place.hook}
        base, moved = self._levelled(place), self._elsewhere.moved
        intact, destroyed = self._noising.answers({}), self._denoising.answers(_named(base))
        there: dict[str, Trial] = {}
        back: dict[str, Trial] = {}
        directions = ((names.noising, there), (names.denoising, back))
        for code in JUDGED:
            carried = [carries(self._codes[site], code) for site in place.sites]
            if sites := self._where(code, place.sites):
                moves, restored = self._moves(code, sites), self._put_back(code, base)
                there[code] = self._trial(self._noising, intact, moves, DOSES)
                trial = self._trial(self._denoising, destroyed, restored, (1.0,))
                back[code] = replace(trial, back=True)
            for told, trials in directions:
                condition = {**context, "positions": told(code, moved)}
                yield fact(names.CARRIED, sum(carried) / len(carried), condition)
                if code in trials:
                    yield from (found := trials[code].rows(condition))
                    ranks.append((trials[code].rank(found), condition["positions"]))
        if there.keys() >= {MEAN_RESIDUAL, *HALVES}:
            for half, other in zip(HALVES, reversed(HALVES), strict=True):
                added = []
                for told, trials in directions:
                    condition = {**context, "positions": told(half, moved)}
                    whole, rest = (trials[code].own[-1].follows for code in (MEAN_RESIDUAL, other))
                    added.append(more_row(names.ADDED, trials[half], whole, rest, condition))
                yield from added
                if half == SMOOTH:
                    needed = all(row["ci_low"] >= WORTH_NAMING for row in added)
                    yield from self._beyond_random(place, context, base, there, back, needed)

    def _beyond_random(
        self,
        place: Place,
        context: Mapping[str, Any],
        base: Mapping[Site, Moved],
        there: Mapping[str, Trial],
        back: Mapping[str, Trial],
        needed: bool,
    ) -> Iterator[dict[str, Any]]:
        """Rows of a smooth trend: does it more than as many random functions of the position?

        Args:
            place, context, base, there, back: as in `rows`.
            needed: whether what the trend adds counts.
        """
        sites = self._where(SMOOTH, place.sites)

        def noised(code: Code) -> PerExample:
            return _following(self._noising, self._moves(code, sites))

        def denoised(code: Code) -> PerExample:
            return _following(self._denoising, self._put_back(code, base))

        draws = self._random_functions()
        directions = ((names.noising, there, noised), (names.denoising, back, denoised))
        for told, trials, follows in directions:
            condition = {**context, "positions": told(SMOOTH, self._elsewhere.moved)}
            one = trials[SMOOTH]
            yield from _particular(one, follows, [some for some, _ in draws], condition)
            if needed:
                rest = trials[IRREGULAR].own[-1].follows
                others = np.mean([follows(left) for _, left in draws], axis=0)
                yield more_row(names.ADDED_PARTICULAR, one, others, rest, condition)

    def _random_functions(self) -> list[tuple[Functions, Float[Tensor, "pos rest"]]]:
        """Draws of as many functions of these positions as a trend has, and of the others."""
        n = len(self._elsewhere.among)
        rank = functions_of(SMOOTH, self._elsewhere.among).shape[1]
        generator = Generator().manual_seed(self._seed)
        return [random_functions(n, rank, generator) for _ in range(_RANDOM_FUNCTIONS)]

    def noised(self, sites: Sequence[Site], context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows of a clean run in which positions are moved at all of these sites, without ranks."""
        intact = self._noising.answers({})
        for code in JUDGED:
            condition = {**context, "positions": names.noising(code, self._elsewhere.moved)}
            if where := self._where(code, sites):
                trial = self._trial(self._noising, intact, self._moves(code, where), (1.0,))
                yield from trial.rows(condition)
                if code == SMOOTH:
                    yield from self._noised_at_random(trial, where, condition)

    def _noised_at_random(
        self, trend: Trial, sites: Sequence[Site], condition: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The row of how much more follows a smooth trend than as many random functions."""

        def follows(code: Code) -> PerExample:
            return _following(self._noising, self._moves(code, sites))

        draws = [some for some, _ in self._random_functions()]
        yield from _particular(trend, follows, draws, condition)

    def _where(self, code: str, sites: Sequence[Site]) -> list[Site]:
        """The sites among these at which a code is moved."""
        return sites_to_move({site: self._codes[site] for site in sites}, code)

    def _levelled(self, place: Place) -> dict[Site, Moved]:
        """At each site, activations that tell none of these positions by mean or variance."""
        return moves_in_depth(
            self._disordered, place.sites, lambda at, now: levelled(self._codes[at], current=now)
        )

    def _moves(self, code: Code, sites: Sequence[Site]) -> dict[Site, Move]:
        """At each site, what tells these positions by a code to be others."""
        codes, sources = self._codes, self._elsewhere.sources
        return moves_in_depth(
            self._clean, sites, lambda at, now: interchange(codes[at], code, sources, current=now)
        )

    def _put_back(self, code: Code, base: Mapping[Site, Moved]) -> dict[Site, Move]:
        """At each site, what tells these positions by a code alone where they belong."""
        codes, origins = self._codes, self._elsewhere.origins
        return moves_in_depth(
            self._disordered,
            tuple(base),
            lambda at, now: put_back(codes[at], code, origins, base[at], current=now),
        )

    def _trial(
        self,
        asking: Asking,
        before: Answers,
        moves: Mapping[Site, Move],
        doses: Sequence[float],
    ) -> Trial:
        return trial_of(asking, before, moves, self._variation, doses, self._seed)


def trial_of(
    asking: Asking,
    before: Answers,
    moves: Mapping[Site, Move],
    variation: Mapping[Site, Float[Tensor, "example d_model"]],
    doses: Sequence[float],
    seed: int,
) -> Trial:
    """Moves at these sites, beside their size-matched control.

    Args:
        asking: what is asked of the model.
        before: what it answers where nothing is moved.
        moves: at each site.
        variation: how activations vary there, as from `variation_at`.
        doses: as in `Trial`.
        seed: of the control's directions and of intervals.
    """

    def own(dose: float) -> Changes:
        return _named({site: move.by(dose) for site, move in moves.items()})

    def drawn(dose: float, turn: int, together: int) -> Changes:
        def generator(number: int) -> Generator:
            return Generator().manual_seed((seed * _TURNS + turn) * len(moves) + number)

        return _named(size_matched_moves(moves, variation, generator, dose, together))

    return Trial(asking, before, own, drawn, doses, seed)


def _particular(
    trend: Trial,
    follows: Callable[[Code], PerExample],
    draws: Sequence[Functions],
    condition: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """The row of how much more follows a smooth trend, where it is followed at all, than as many
    random functions of the position."""
    own = trend.own[-1].follows
    if own.sum() >= WORTH_NAMING * trend.asking.n.sum():
        others = np.mean([follows(some) for some in draws], axis=0)
        yield more_row(names.PARTICULAR, trend, own, others, condition)


def _following(asking: Asking, moves: Mapping[Site, Move]) -> PerExample:
    """How many answers of each example follow these moves, made all the way."""
    changes = {site: move.by(1.0) for site, move in moves.items()}
    return asking.answers(_named(changes)).follows


def _named(made: Mapping[Site, Intervention]) -> Changes:
    return {site.name: change for site, change in made.items()}
