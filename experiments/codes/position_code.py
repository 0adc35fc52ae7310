"""A position code of a model, fitted from its own runs, and positions that are given another's.

    code = fit_code(model, tokens, "mean residual", layer=0)
    with set_position(model, code, {40: 41}):
        logits = model(tokens)

Position 40 keeps its content and tells, by this code, that it is position 41.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.probing.measure import feed
from experiments.probing.sites import Site, chosen_layers
from experiments.results.measurements import FIRST_POSITION
from nope_interp.errors import UserError, shown, unknown_name
from nope_interp.fields import checked_seed, is_whole
from nope_interp.hooked_model import HookedModel, check_hooked
from nope_interp.interventions.intervene import Running, intervene
from nope_interp.interventions.reading import ROUTES, SCORES, read_changed
from nope_interp.shapes import Sequences
from nope_interp.sites import ATTENTION_INPUT
from probes.code_names import SIMILARITY
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.interchange import Move, interchange, variation_at
from probes.codes.similarity import SimilarityFit, moved_similarity
from probes.codes.statistics import CodeStatistics, Intervention
from probes.codes.trends import MOVABLE, carries
from probes.errors import ProbeError
from probes.shapes import Positions
from probes.streaming import StreamingFit

NAMES = (*MOVABLE, SIMILARITY)


@dataclass(frozen=True)
class PositionCode:
    """What tells one position from another at a site of a model; made by `fit_code`.

    Attributes:
        name: one of `NAMES`.
        site: where in the model.
        positions: those that it was fitted at, counted from 0.
        statistics: of the activations there.
        similarity: of the same activations, where it is the code that is fitted.
    """

    name: str
    site: Site
    positions: Positions = field(repr=False)
    statistics: CodeStatistics = field(repr=False)
    similarity: SimilarityFit = field(repr=False)

    def moved(self, moves: Mapping[int, int], dose: float = 1.0) -> tuple[Intervention, Positions]:
        """What gives positions the code of others, and which activations it takes.

        Args:
            moves: for each position that is moved, the one whose code it gets.
            dose: the share of the way that they are moved; similarity goes all of it.

        Returns:
            The intervention, and the positions that it is for.

        Raises:
            UserError: for positions that were not fitted at, for a site that carries nothing of
                the code, and for what the code itself refuses.
        """
        sources, at = self._sources(moves)
        try:
            if self.name == SIMILARITY:
                if dose != 1:
                    raise UserError("similarity moves all of the way: leave dose out.")
                if len(at) < 2:
                    raise UserError(
                        f"position {int(self.positions[0])} is the first that was fitted at, and "
                        "has no earlier one to resemble: move a later one."
                    )
                told = moved_similarity(self.similarity.correlations(), sources[at])
                return told, self.positions[at]
            move = self._move(sources)
            return move.at(at).by(dose), self.positions[at]
        except ProbeError as error:
            raise UserError(f"{error}.") from error

    def control(
        self, moves: Mapping[int, int], dose: float = 1.0, *, seed: int = 0
    ) -> tuple[Intervention, Positions]:
        """What changes the same positions as much as `moved`, in directions that aim at no code.

        Args:
            moves: as in `moved`.
            dose: as in `moved`.
            seed: of the directions, which are drawn for each sequence.

        Returns:
            The intervention, and the positions that it is for.

        Raises:
            UserError: as `moved`.
        """
        change, positions = self.moved(moves, dose)
        sources, at = self._sources(moves)
        generator = torch.Generator().manual_seed(seed)
        if self.name == SIMILARITY:
            among = self.statistics.among(at)
            return OtherContent(sizes_of(change, among), among, generator), positions
        variation = variation_at(self.statistics)
        return self._move(sources).at(at).size_matched(variation, generator, dose), positions

    def _sources(self, moves: Mapping[int, int]) -> tuple[Positions, Int[Tensor, " at"]]:
        """Whose code each position that was fitted at gets, and which activations are taken."""
        if not isinstance(moves, Mapping):
            raise UserError(
                f"moves are {moves}: give the position whose code each gets, such as {{40: 41}}."
            )
        try:
            moves = {index(position): index(source) for position, source in moves.items()}
        except TypeError as error:
            raise UserError(
                f"moves are {moves}: give whole numbers, such as {{40: 41}}."
            ) from error
        fitted = {int(position): number for number, position in enumerate(self.positions)}
        for position in (*moves, *moves.values()):
            if position not in fitted:
                raise UserError(
                    f"position {position} has no code of its own: give one of "
                    f"{int(self.positions[0])} to {int(self.positions[-1])} whose token differs "
                    "between the sequences that the code was fitted on."
                )
        if not moves:
            raise UserError("no position is moved: give at least one, such as {40: 41}.")
        sources = torch.arange(len(self.positions))
        for position, source in moves.items():
            sources[fitted[position]] = fitted[source]
        at = torch.tensor(sorted(fitted[position] for position in moves))
        # Correlations are with all positions before.
        return sources, torch.arange(int(at[-1]) + 1) if self.name == SIMILARITY else at

    def _move(self, sources: Positions) -> Move:
        if not carries(self.statistics, self.name):
            raise UserError(
                f"{self.site.name} carries nothing of {self.name!r} that could be moved: "
                "positions differ there by no more than draws of sequences do."
            )
        return interchange(self.statistics, self.name, sources)


def fit_code(
    model: HookedModel,
    tokens: Sequences,
    name: str = "mean residual",
    *,
    layer: int = 0,
    site: str = "resid_post",
    batch_size: int = 32,
) -> PositionCode:
    """A position code, fitted from a model's own runs.

    Left out are the first position, where the begin token or an attention sink stands, and those
    where all sequences have the same token: the mean there tells the token as well.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        tokens: sequences of equal length, better some hundreds.
        name: "mean residual", "smooth trend", "irregular part", "variance", "1/m", "t",
            "log m", "slow cosine" or "similarity". Of similarity all activations of the site are
            kept in memory, of the others only sums.
        layer: which block, from 0.
        site: where in it: "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", or
            "attn_in", what its attention reads.
        batch_size: sequences in a forward pass.

    Returns:
        The code, for `set_position`.

    Raises:
        UserError: for an unknown name, site or layer, for similarity elsewhere than at "attn_in",
            and for too few sequences or positions.
    """
    check_hooked(model)
    if not is_whole(layer):
        raise UserError(f"layer is {shown(layer)}: give a whole number.")
    (layer,) = chosen_layers(model.cfg.n_layers, [layer])
    code = unfitted_code(tokens, name, Site(layer, site))
    feed_code(model, tokens, code, batch_size=batch_size)
    return code


def check_code(name: str, site: Site) -> None:
    """Refuse a code that there is not, or that is not moved at a site.

    Args:
        name: as `fit_code` takes it.
        site: where.

    Raises:
        UserError: for an unknown name, and for similarity elsewhere than at "attn_in".
    """
    if name not in NAMES:
        raise unknown_name("position code", name, NAMES)
    if name == SIMILARITY and site.hook != ATTENTION_INPUT:
        raise UserError(
            f"similarity is moved in the scores alone, not at {site.name}: fit it at site "
            f"{ATTENTION_INPUT!r}."
        )


def unfitted_code(tokens: Sequences, name: str, site: Site) -> PositionCode:
    """A position code that has seen nothing yet; `feed_code` fits it, all at once or by and by.

    Args:
        tokens: all sequences that it is to be fitted on.
        name: as `fit_code` takes it.
        site: where.

    Returns:
        The code.

    Raises:
        UserError: as `check_code`, and for too few sequences or positions.
    """
    check_code(name, site)
    if not isinstance(tokens, Tensor) or tokens.ndim != 2:
        what = f"have {tokens.ndim} axes" if isinstance(tokens, Tensor) else f"are {shown(tokens)}"
        raise UserError(f"tokens {what}: give a tensor, [sequence, position].")
    differs = (tokens != tokens[:1]).any(dim=0)
    differs[:FIRST_POSITION] = False
    positions = differs.nonzero()[:, 0]
    if len(positions) < 2:
        raise UserError(
            f"tokens have shape {tuple(tokens.shape)} and differ at {len(positions)} positions: "
            "give at least two different sequences, of three tokens or more."
        )
    return PositionCode(name, site, positions, CodeStatistics(), SimilarityFit())


def feed_code(
    model: HookedModel, tokens: Sequences, code: PositionCode, *, batch_size: int = 32
) -> None:
    """Fit a code on some of the sequences that it was made for.

    Args:
        model: a HookedTransformer or a TransformerBridge, in evaluation mode.
        tokens: these sequences.
        code: from `unfitted_code`.
        batch_size: sequences in a forward pass.

    Raises:
        UserError: for an unknown site or layer.
    """
    fitted: list[StreamingFit] = [code.statistics]
    if code.name == SIMILARITY:
        fitted.append(code.similarity)
    fed = {code.site: fitted}
    feed(model, tokens, fed, "update", batch_size=batch_size, positions=code.positions)


@contextmanager
def set_position(
    model: HookedModel,
    code: PositionCode,
    moves: Mapping[int, int],
    *,
    dose: float = 1.0,
    routes: Collection[str] | None = None,
    heads: Collection[int] | None = None,
    control: int | None = None,
) -> Iterator[Running]:
    """A context in which positions tell, by one code, that they stand elsewhere.

    Content stays, and so do all other codes. At "attn_in" the code can be given to queries, keys or
    values alone; similarity is given to queries and keys there, so that it acts in the scores and
    what is pooled stays.

    Args:
        model: the one that the code was fitted from.
        code: from `fit_code`.
        moves: for each position that is moved, the one whose code it gets.
        dose: the share of the way that positions are moved.
        routes: at "attn_in", those of "queries", "keys" and "values" that read the moved code; None
            for all, of similarity for queries and keys.
        heads: at "attn_in", the heads that read it; None for all.
        control: a seed; positions are then changed as much, in directions drawn from it for each
            sequence that aim at no code. None moves the code.

    Yields:
        What says, by `verify()`, whether the site was reached.

    Raises:
        UserError: for what is no fitted code, for positions that it was not fitted at, for a site
            that carries nothing of it, for a dose or a seed that is no such number, for routes or
            heads at another site than "attn_in", for values that are to read similarity, and, when
            the model runs, for sequences without these positions.

    Example:
        >>> from nope_interp import HookedTransformer, TransformerConfig
        >>> config = TransformerConfig(1, 16, 2, d_vocab=9, n_ctx=8, positions="learned")
        >>> model, tokens = HookedTransformer(config).eval(), torch.arange(80).view(10, 8) ** 2 % 9
        >>> code = fit_code(model, tokens, "mean residual", site="resid_pre")
        >>> with set_position(model, code, {4: 5}):
        ...     moved = model(tokens)
        >>> (moved != model(tokens)).any(dim=(0, 2)).tolist()
        [False, False, False, False, True, True, True, True]
    """
    if not isinstance(code, PositionCode):
        raise UserError(f"code is {shown(code)}: give what fit_code made.")
    if isinstance(routes, str):
        raise UserError(f"routes are {routes!r}: give a list, such as [{routes!r}].")
    if control is None:
        change, positions = code.moved(moves, dose)
    else:
        seed = checked_seed(control, "control")
        change, positions = code.control(moves, dose, seed=seed)
    if code.site.hook == ATTENTION_INPUT:
        if routes is None:
            routes = SCORES if code.name == SIMILARITY else ROUTES
        if code.name == SIMILARITY and not set(routes) <= set(SCORES):
            raise UserError(
                f"similarity is moved in the scores alone, not by routes {list(routes)}: choose "
                f"among {', '.join(SCORES)}."
            )
        changes = {code.site.layer: change}
        with read_changed(model, changes, routes, positions, heads) as running:
            yield running
        return
    if routes is not None or heads is not None:
        raise UserError(
            f"{code.site.name} is read by all heads in all ways: fit the code at site "
            f"{ATTENTION_INPUT!r} to choose routes and heads."
        )
    with intervene(model, {code.site.name: change}, positions) as running:
        yield running
