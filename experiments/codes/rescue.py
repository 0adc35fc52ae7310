"""Where answers fail beyond the training lengths: does a trained position's code help?

In examples longer than any trained on, every position is told by one code to be one of an example
of the longest trained length (`experiments.codes.longer`), and keeps its content. If answers
return, the code is what failed. Both are the model's own runs: what a code is, at trained positions
and at those of longer examples, is fitted on examples that are not scored.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.linalg import block_diag
from torch import Tensor

from experiments.codes.answering import Answers, Asking
from experiments.codes.in_depth import Place, made_in_depth, stream_sites
from experiments.codes.interchange import trial_of
from experiments.codes.longer import PLACES, BothLengths, Kind, Positions, both_lengths
from experiments.codes.ranks import Ranked, rank_rows
from experiments.codes.task import InterventionTask
from experiments.codes.trial import Trial
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.interchange import NET
from experiments.results.intervals import Interval
from experiments.results.rescue import RETURNED, REVERSED, rescues
from experiments.results.worth import WORTH_NAMING
from experiments.variants.config import ProbingConfig
from nope_interp.errors import UserError
from nope_interp.models.losses import sequence_losses
from nope_interp.models.marked import before
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.examples import Examples
from probes.bootstrap import SequenceBootstrap, few_sequences
from probes.code_names import JUDGED
from probes.codes.interchange import Move, interchange, together, variation_at
from probes.codes.statistics import CodeStatistics
from probes.codes.trends import carries


def rescued_lengths(
    model: HookedTransformer,
    task: AnswerTask,
    length: int,
    config: ProbingConfig,
    where: Sequence[Site],
) -> pd.DataFrame:
    """Do answers to longer examples return where a code tells trained positions?

    Args:
        model: of ours, trained on the task.
        task: with the lengths that it was trained on.
        length: of the longer examples.
        config: how many examples, and the seed.
        where: single sites, beside the whole stream.

    Returns:
        The table of `experiments.results.rescue.rescues`.

    Raises:
        UserError: for a length that was trained on or does not fit, examples that differ in their
            number of tokens, too few of them, and a model that does not fail there.
    """
    examples = both_lengths(task, length, config, model.config.n_ctx)
    within, beyond = (_asking(model, examples, some, config.seed) for some in examples.scored)
    run = _Run(examples, within, beyond)
    run.check_fails(task.name, length)
    return rescues(run.rows(where))


def _asking(model: HookedTransformer, examples: BothLengths, some: Examples, seed: int) -> Asking:
    """Every symbol of the answer, each asked for behind the right ones.

    What all answers share, such as the end, is no question: a move gives away where it stands.
    """
    task = InterventionTask(
        model,
        Split(examples.fit[:, : some.tokens.shape[1]], some.tokens),
        sequence_losses,
        torch.full((len(some.tokens),), torch.nan),
        seed,
        positions=slice(None),
    )
    differs = (some.tokens != some.tokens[0]).any(dim=0)
    own, asked = some.tokens.roll(-1, dims=1), before(some.answer & differs)
    return Asking(task, own, own, asked)


class _Both:
    """A move of longer examples, made from the activations of all fit examples as they come, those
    of the trained length first; or none.

    Attributes:
        codes: statistics of trained examples' positions, and then of longer ones'.
        made: the move, once they have come.
    """

    def __init__(
        self, make: Callable[[CodeStatistics], Move | None], lengths: tuple[int, int]
    ) -> None:
        self.codes = CodeStatistics()
        self.made: Move | None = None
        self._make, self._lengths = make, lengths

    def __call__(self, activations: Float[Tensor, "both pos d_model"]) -> Tensor:
        trained, longer = activations.chunk(2)
        joined = torch.cat([trained[:, : self._lengths[0]], longer], dim=1)
        self.codes.update(joined, torch.arange(joined.shape[1]))
        self.made = self._make(self.codes)
        return activations if self.made is None else torch.cat([trained, self.made(longer)])


class _Run:
    """One model at one length beyond those trained on.

    Args:
        examples: of both lengths.
        within: what is asked of the model at the trained length.
        beyond: the same of longer examples.
    """

    def __init__(self, examples: BothLengths, within: Asking, beyond: Asking) -> None:
        self._examples, self._kinds, self._numbers = examples, examples.kinds, examples.numbers
        self._beyond, self._seed = beyond, beyond.task.seed
        self._before = beyond.answers({})
        self._known = [within.answers({}).follows, within.n, beyond.n, self._before.follows]

    def check_fails(self, name: str, length: int) -> None:
        """Raise UserError where the model does not surely lose a tenth of its answers."""
        shares = self._shares(self._before, self._before)
        if shares(lambda within, beyond, *_: within - beyond)[1] >= WORTH_NAMING:
            return
        right, n, n_beyond, right_beyond = (float(of.sum()) for of in self._known)
        raise UserError(
            f"{right_beyond / n_beyond:.0%} of the answer symbols of {name} with length {length} "
            f"are right, and {right / n:.0%} at the longest trained length. That is not surely a "
            "tenth less: give a greater length, or a model that fails."
        )

    def rows(self, where: Sequence[Site]) -> list[dict[str, Any]]:
        """One for each way of matching, place and code, with the p-value of its rank."""
        stream = tuple(stream_sites(self._beyond.task))
        places = [Place(site.layer, site.hook, (site,)) for site in where]
        places.append(Place(EVERYWHERE, STREAM, stream))
        intact = {site: self._statistics(site) for site in dict.fromkeys((*where, *stream))}
        found: list[dict[str, Any]] = []
        ranks: list[Ranked] = []
        for mapped, place, code in product(PLACES, places, JUDGED):
            row: dict[str, Any] = {
                "code": code,
                "layer": place.layer,
                "site": place.hook,
                "mapped": mapped,
            }
            carried = {
                site: intact[site]
                for site in place.sites
                if any(carries(codes, code) for _, _, codes in self._of_kinds(intact[site]))
            }
            trial = self._trial(code, mapped, carried) if carried else None
            row |= self._told(trial)
            if trial is not None and mapped != REVERSED:
                least = min(row[RETURNED][1], row[NET][1])
                ranks.append((trial.rank([{"metric": NET, "ci_low": least}]), str(len(found))))
            found.append(row)
        for rank in rank_rows(ranks, len(found)):
            found[int(rank["positions"])]["p"] = rank["value"]
        return found

    def _told(self, trial: Trial | None) -> dict[str, Any]:
        """Accuracies, and the shares that returned; where there is nothing to move, none did."""
        moved, control = self._before, self._before
        if trial is not None:
            moved, control = trial.own[-1], self._beyond.answers(trial.drawn(1.0, 0, 1))
        of = self._shares(moved, control)
        every = ("within", "beyond", "moved", "size_matched")
        shares = {name: of(lambda *shown, at=at: shown[at])[0] for at, name in enumerate(every)}
        returned = of(lambda within, beyond, moved, _: (moved - beyond) / (within - beyond))
        net = of(lambda within, beyond, moved, control: (moved - control) / (within - beyond))
        exact = {
            f"exact_{name}": float((found.follows == self._beyond.n).mean())
            for name, found in (("beyond", self._before), ("moved", moved))
        }
        return {**shares, **exact, RETURNED: returned, NET: net, "p": math.nan}

    def _shares(self, moved: Answers, control: Answers) -> Callable[[Callable[..., Any]], Interval]:
        """Functions of the shares that are right within, beyond, moved and under the control, with
        their intervals over examples."""
        bootstrap = SequenceBootstrap(seed=self._seed)
        trained, longer = self._known[:2], (*self._known[2:], moved.follows, control.follows)
        # No longer example belongs to one of the trained length: each is a row of its own.
        parts = [np.stack(of, axis=1) for of in (trained, longer)]
        bootstrap.update(block_diag(*parts))

        def of(function: Callable[..., Any]) -> Interval:
            def value(means: Any) -> Any:
                within, n_within, n, *others = means.T
                return function(within / n_within, *(other / n for other in others))

            found = float(bootstrap.value_of(value))
            # Drawn out for the fewer of the two, as either one's interval would be.
            few, every = (few_sequences(0.025, n) for n in (min(map(len, parts)), bootstrap.n))
            low, high = (
                found + (bound - found) * few / every
                for bound in map(float, bootstrap.interval_of(value))
            )
            return found, low, high

        return of

    def _statistics(self, site: Site) -> CodeStatistics:
        """Of the intact model's activations: those of trained examples beside longer ones."""
        reader = _Both(lambda codes: None, self._examples.lengths)
        made_in_depth(self._beyond.task, {site.name: reader})
        return reader.codes

    def _of_kinds(self, codes: CodeStatistics) -> Iterator[tuple[Kind, Positions, CodeStatistics]]:
        """Each kind, its rows, and what the statistics say of it."""
        for kind in self._kinds:
            rows = torch.cat([kind.trained, self._examples.lengths[0] + kind.longer])
            yield kind, rows, codes.among(rows, self._numbers[rows])

    def _trial(self, code: str, mapped: str, intact: Mapping[Site, CodeStatistics]) -> Trial:
        """What gives longer examples the code of trained ones at all of these sites."""
        moves = {
            site: _Both(partial(self._move, code, mapped, codes), self._examples.lengths)
            for site, codes in intact.items()
        }
        made_in_depth(self._beyond.task, {site.name: move for site, move in moves.items()})
        made = {site: move.made for site, move in moves.items() if move.made is not None}
        variation = {site: variation_at(codes) for site, codes in intact.items()}
        return trial_of(self._beyond, self._before, made, variation, (1.0,), self._seed)

    def _move(
        self, code: str, mapped: str, intact: CodeStatistics, current: CodeStatistics
    ) -> Move:
        """What changes longer examples at a site, from statistics of what comes there."""
        parts = []
        for (kind, rows, own), (_, _, come) in zip(
            self._of_kinds(intact), self._of_kinds(current), strict=True
        ):
            if carries(own, code):
                move = interchange(own, code, kind.sources(mapped), current=come)
                parts.append((kind.longer, move.at(torch.arange(len(kind.trained), len(rows)))))
        return together(parts, self._examples.lengths[1])
