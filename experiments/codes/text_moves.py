"""Codes of a language model that are moved in text: what is tried, and what it is held against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Generator

from experiments.codes.in_depth import Place, moves_in_depth
from experiments.codes.interchange import DOSES
from experiments.codes.task import InterventionTask
from experiments.codes.text_runs import (
    Elsewhere,
    TextRun,
    Within,
    behind_more_text,
    exceeds_noise,
    in_another_order,
)
from experiments.codes.text_trial import TextTrial, ToldAnother
from experiments.codes.way import Way, way_between
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.probing.split import Split
from experiments.results import interchange as names
from experiments.results.measurements import FIRST_POSITION
from nope_interp.interventions.intervene import Where, intervene
from nope_interp.interventions.reading import SCORES, read_changed
from nope_interp.models.composition import adds_up
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import ATTENTION_INPUT
from nope_interp.streams import stream
from probes.code_names import MEAN_RESIDUAL, SIMILARITY
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.interchange import (
    Change,
    Move,
    Moved,
    interchange,
    levelled,
    put_back,
    size_matched_moves,
    variation_at,
)
from probes.codes.similarity import Correlations, SimilarityFit, moved_similarity
from probes.codes.statistics import CodeStatistics, Intervention
from probes.codes.trends import carries, sites_to_move
from probes.shapes import Positions

# Seeds of draws: turns come one after the other, and each draws at every site.
_TURNS, _SITES = 10_000, 1_000


class TextMoves:
    """Codes of a language model moved in text.

    Args:
        task: a model on text.
        statistics: of its fit sequences at each site that is asked of and at all of the stream, and
            at the inputs of attention for similarity.
        stream: the sites of the stream.
        by: how many tokens further on text is to stand, as `behind_more_text` takes it.
    """

    def __init__(
        self,
        task: InterventionTask,
        statistics: Mapping[Site, CodeStatistics],
        stream: Sequence[Site],
        by: int | None = None,
    ) -> None:
        self._task, self._codes, self._by = task, statistics, by
        self._variation = {site: variation_at(codes) for site, codes in statistics.items()}
        self._behind = stream if adds_up(task.model) else []
        self.noised, self.denoised = in_another_order(task, self._behind)
        # Only what codes are fitted on is read of these.
        self._disordered = replace(task, split=Split(self._ordered(task.split.fit), task.split.fit))
        self._level: dict[tuple[Site, ...], dict[Site, Moved]] = {}

    @cached_property
    def shifted(self) -> Elsewhere:
        """The text further on: ten runs, which not all who move text need."""
        return behind_more_text(self._task, self._behind, self._by)

    @cached_property
    def further_on(self) -> bool:
        """Whether text that stands further on is predicted in another way, beyond what prefixes of
        one length differ by."""
        return exceeds_noise(self.shifted.way, self._task.seed)

    @cached_property
    def _alike(self) -> dict[Site, Correlations]:
        """How alike positions are in what attention reads, from one pass over all fit sequences."""
        task, found = self._task, dict[Site, Correlations]()

        def read(activations: torch.Tensor, site: Site) -> None:
            fit = SimilarityFit()
            fit.update(activations[:, task.positions], task.numbers())
            found[site] = fit.correlations()

        reads = {site.layer: site for site in self._codes if site.hook == ATTENTION_INPUT}
        stream(
            task.model,
            task.split.fit,
            {site.name: partial(read, site=site) for site in reads.values()},
            batch_size=len(task.split.fit),
            until=reads[max(reads)].name,
        )
        return found

    def trials(self, place: Place, code: str) -> dict[tuple[str, ...], Callable[[], TextTrial]]:
        """What is tried of one code at one place, by the names of the condition.

        The way back to the text as it was stands for both ways of moving it: there is one.
        """
        there = [self.noised, *([self.shifted] if self.further_on else [])]
        found: dict[tuple[str, ...], Callable[[], TextTrial]] = {
            (names.noising(code, one.moved),): partial(self._moved, one, code, place.sites)
            for one in there
        }
        back = tuple(names.denoising(code, one.moved) for one in there)
        return {**found, back: partial(self._back, code, place.sites)}

    def disordering(self, place: Place, code: str) -> TextTrial:
        """A clean run that is told by one code at one place to be in the other order."""
        return self._moved(self.noised, code, place.sites)

    def by_route(self, layer: int, route: str, head: int) -> TextTrial:
        """The positional part of what one head's queries, keys or values are made of, moved: the
        mean of what attention reads, past the normalization, which so keeps its value."""
        site = Site(layer, ATTENTION_INPUT)

        def moves(sources: Positions) -> dict[Site, Move]:
            told = self._of_all(sources)
            return {site: interchange(self._codes[site], MEAN_RESIDUAL, told)}

        within = partial(self._in_scores, routes=(route,), heads=(head,))
        return self._trial(self.noised, self.noised.way, {}, moves, (1.0,), within)

    def carries(self, site: Site, code: str) -> bool:
        """Whether a site tells position by a code at all."""
        return code == SIMILARITY or carries(self._codes[site], code)

    def _ordered(self, tokens: torch.Tensor) -> torch.Tensor:
        """Sequences in the other order of their tokens."""
        ordered = tokens.clone()
        ordered[:, ALL_BUT_FIRST] = tokens[:, ALL_BUT_FIRST][:, self.denoised.sources]
        return ordered

    def _moved(self, elsewhere: Elsewhere, code: str, sites: Sequence[Site]) -> TextTrial:
        """Positions told by a code to be where they stand elsewhere."""
        if code == SIMILARITY:
            return self._resembling(elsewhere, sites)
        sites = sites_to_move({site: self._codes[site] for site in sites}, code)

        def moves(sources: Positions) -> dict[Site, Move]:
            told, codes = self._of_all(sources), self._codes
            return moves_in_depth(
                self._task, sites, lambda at, now: interchange(codes[at], code, told, current=now)
            )

        within = partial(self._within, run=elsewhere.run)
        return self._trial(elsewhere, elsewhere.way, elsewhere.written, moves, DOSES, within)

    def _back(self, code: str, sites: Sequence[Site]) -> TextTrial:
        """Tokens in another order told by one code alone, where they stand, then where they
        belong."""
        elsewhere = self.denoised
        if code == SIMILARITY:
            return replace(self._resembling(elsewhere, sites), back=True)

        bare = self._bare(tuple(sites))

        def told(at: Positions) -> dict[Site, Move]:
            def put(site: Site, current: CodeStatistics | None) -> Move:
                return put_back(self._codes[site], code, at, bare[site], current=current)

            return moves_in_depth(self._disordered, sites, put)

        standing = told(torch.arange(len(elsewhere.sources)))
        base = {site: move.by(1.0) for site, move in standing.items()}

        def moves(sources: Positions) -> dict[Site, Move]:
            return {site: move.on(base[site]) for site, move in told(sources).items()}

        # The clean run is where the way of the noised one starts.
        start = elsewhere.run.read(within=self._within(base, elsewhere.run)).predictions
        way = way_between(start, self.noised.way.start)
        within = partial(self._within, run=elsewhere.run)
        return replace(self._trial(elsewhere, way, {}, moves, (1.0,), within), back=True)

    def _bare(self, sites: tuple[Site, ...]) -> dict[Site, Moved]:
        """What leaves no code at sites of the disordered text, whichever is then put back."""
        if sites not in self._level:
            self._level[sites] = moves_in_depth(
                self._disordered, sites, lambda at, now: levelled(self._codes[at], current=now)
            )
        return self._level[sites]

    def _trial(
        self,
        elsewhere: Elsewhere,
        way: Way,
        written: Mapping[Site, Way],
        moves: Callable[[Positions], Mapping[Site, Move]],
        doses: Sequence[float],
        within: Callable[[Mapping[Site, Change]], Within],
    ) -> TextTrial:
        """A run moved to where its tokens stand elsewhere, and to an unrelated order."""
        at, unrelated = torch.arange(len(elsewhere.sources)), elsewhere.unrelated
        there = {site: move.at(at) for site, move in moves(elsewhere.sources).items()}
        another = {site: move.at(at).by(1.0) for site, move in moves(unrelated.sources).items()}

        def own(dose: float) -> Within:
            return within({site: move.by(dose) for site, move in there.items()})

        def drawn(dose: float, turn: int, together: int) -> Within:
            generator = partial(self._generator, turn)
            return within(size_matched_moves(there, self._variation, generator, dose, together))

        behind = {site: of for site, of in written.items() if [site] == list(there)}
        told = ToldAnother(within(another), unrelated)
        return TextTrial(elsewhere.run, way, behind, own, drawn, doses, told, self._task.seed)

    def _resembling(self, elsewhere: Elsewhere, sites: Sequence[Site]) -> TextTrial:
        """Queries and keys that resemble one another as elsewhere."""

        def resembling(sources: Positions) -> dict[Site, Intervention]:
            return {site: moved_similarity(self._alike[site], sources) for site in sites}

        changes = resembling(elsewhere.sources)
        at = torch.arange(len(elsewhere.sources))

        def drawn(_: float, turn: int, together: int) -> Within:
            mixed: dict[Site, Intervention] = {}
            for number, (site, change) in enumerate(changes.items()):
                codes, generator = self._codes[site].among(at), self._generator(turn, number)
                mixed[site] = OtherContent(sizes_of(change, codes), codes, generator, together)
            return self._in_scores(mixed)

        own, unrelated = self._in_scores(changes), elsewhere.unrelated
        another = self._in_scores(resembling(unrelated.sources))
        told = ToldAnother(another, unrelated)
        run, way, seed = elsewhere.run, elsewhere.way, self._task.seed
        return TextTrial(run, way, {}, lambda _: own, drawn, (1.0,), told, seed)

    def _generator(self, turn: int, site: int) -> Generator:
        seed = (self._task.seed * _TURNS + turn) * _SITES + site
        return Generator().manual_seed(seed)

    def _of_all(self, sources: torch.Tensor) -> torch.Tensor:
        """Sources of all positions fitted on: later ones than the run's keep their own, which under
        a causal mask no earlier one sees."""
        every = torch.arange(len(self._task.numbers()))
        every[: len(sources)] = sources
        return every

    def _within(self, changes: Mapping[Site, Change], run: TextRun) -> Within:
        """Changes in place, behind all attention at the positions alone that a run asks."""
        asked = torch.arange(run.tokens.shape[1] - FIRST_POSITION)[-run.asked :]
        named: dict[str, Intervention] = {}
        where: dict[str, Where] = {}
        for site, change in changes.items():
            last = self._behind_attention(site)
            named[site.name] = change.at(asked) if last else change
            where[site.name] = slice(-run.asked, None) if last else ALL_BUT_FIRST
        return partial(intervene, self._task.model, named, where)

    def _behind_attention(self, site: Site) -> bool:
        """Whether no attention follows, nor anything else that reads several positions."""
        model = self._task.model
        before = site.hook in ("resid_pre", ATTENTION_INPUT)
        last = site.layer == model.cfg.n_layers - 1 and not before
        return last and isinstance(model, HookedTransformer)

    def _in_scores(
        self,
        changes: Mapping[Site, Intervention],
        routes: Sequence[str] = SCORES,
        heads: Sequence[int] | None = None,
    ) -> Within:
        """What attention reads changed, for queries and keys alone or for other routes."""
        layers = {site.layer: change for site, change in changes.items()}
        return partial(read_changed, self._task.model, layers, routes, ALL_BUT_FIRST, heads)
