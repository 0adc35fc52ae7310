"""`move`: positions of the prompt are given the code of others; what follows, beside a control."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from experiments.codes.position_code import set_position
from experiments.explore.answers import MoveAnswer, Probed, ProbedLayer
from experiments.explore.asked import Move, State
from experiments.explore.one_pass import PatternsOf, pattern_distance
from experiments.explore.playground import Playground
from experiments.explore.reading import both, pass_of
from experiments.explore.text import STREAM, PositionProbes, code_at, fitted_on, probes_for
from experiments.probing.sites import Site
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.interventions.intervene import Running, intervene
from nope_interp.models.losses import next_log_probabilities
from nope_interp.sites import layer_ranges, layers_with, pattern_hook

# Directions that the control is drawn in, all from this seed.
_DRAWS, _SEED = 4, 0


@dataclass(frozen=True)
class _Followed:
    """What became of some copies of the prompt.

    Attributes:
        patterns: distances to the unmoved attention by layer, `[copy head]` each.
        read: where probes read the moved positions to be, `[layer copy moved]`.
        predicted: logarithms of probabilities behind the last token, `[copy d_vocab]`.
    """

    patterns: dict[int, Float[Tensor, "copy head"]] = field(repr=False)
    read: Float[Tensor, "layer copy moved"] = field(repr=False)
    predicted: Float[Tensor, "copy d_vocab"] = field(repr=False)


def move(playground: Playground, state: State) -> MoveAnswer:
    """Move the state's positions, and change them as much in directions that aim at no code.

    Args:
        playground: whose model.
        state: what the page shows; its move. Its change is not in force meanwhile.

    Returns:
        The answer.

    Raises:
        UserError: without a move, for positions that the prompt or the code does not have, and as
            `fit_code` and `set_position`.
    """
    if state.move is None:
        raise UserError("no position is moved: pick a token and a place for it.")
    asked, ids = state.move, playground.tokens(state.prompt)
    n, moves = ids.shape[1], state.move.positions
    for position in moves:
        if position >= n:
            raise UserError(f"the prompt has {n} tokens, and none at position {position}.")
    before = pass_of(playground, ids)
    site = site_of(playground, asked)
    code = code_at(playground, asked.code, site, n_coded(n, asked))
    probes = probes_for(playground, n)
    follow = partial(_follow, playground.model, before.patterns, probes, sorted(moves))
    unmoved = follow(ids, intervene(playground.model, {}))
    told = partial(set_position, playground.model, code, moves)
    moved = follow(ids, told())
    copies = repeat(ids, "1 pos -> copy pos", copy=_DRAWS)
    control = follow(copies, told(control=_SEED))
    away = [_distance(one, unmoved.predicted[0]) for one in control.predicted]
    return MoveAnswer(
        patterns=_of_copies(playground, moved.patterns),
        control_patterns=_of_copies(playground, control.patterns),
        probes=_probed(probes, moves, unmoved, moved, control),
        predictions=both(playground, unmoved.predicted[0], moved.predicted[0]),
        distance=_distance(moved.predicted[0], unmoved.predicted[0]),
        control_distance=sum(away) / len(away),
        control_low=min(away),
        control_high=max(away),
        draws=_DRAWS,
        notes=_notes(fitted_on(playground, n_coded(n, asked))["n"], probes),
    )


def site_of(playground: Playground, asked: Move) -> Site:
    """Where a code is moved; raises UserError for a layer, or a site in it, that is not there."""
    n_layers, known = playground.model.cfg.n_layers, playground.model.hook_dict
    if asked.layer >= n_layers:
        raise UserError(f"the model has no layer {asked.layer}: choose from 0 to {n_layers - 1}.")
    site = Site(asked.layer, asked.site)
    others = layers_with(site.name, known)
    if site.name not in known and others:
        raise UserError(
            f"layer {asked.layer} has no {asked.site}: choose from {layer_ranges(others)}, or "
            "another site."
        )
    return site


def n_coded(n_tokens: int, asked: Move) -> int:
    """How many positions need a code: those of the prompt, and those whose code is given."""
    return max(n_tokens, max(asked.positions.values()) + 1)


@torch.no_grad()
def _follow(
    model: HookedModel,
    patterns: PatternsOf,
    probes: PositionProbes,
    positions: Sequence[int],
    ids: Int[Tensor, "copy pos"],
    within: AbstractContextManager[Running],
) -> _Followed:
    """Run copies of the prompt in a context, and hold what is seen against the unmoved patterns."""
    distances: dict[int, Tensor] = {}
    read: dict[int, Tensor] = {}

    def compare(pattern: Tensor, hook: object, layer: int) -> None:
        distances[layer] = pattern_distance(patterns[layer], pattern.float().cpu())

    def place(stream: Tensor, hook: object, layer: int) -> None:
        read[layer] = torch.from_numpy(probes.probes[layer].predict(stream[:, positions]))

    layers = range(model.cfg.n_layers)
    hooks = [(pattern_hook(at), partial(compare, layer=at)) for at in attention_layers(model)]
    hooks += [(Site(layer, STREAM).name, partial(place, layer=layer)) for layer in layers]
    device = next(model.parameters()).device
    with within as running, model.hooks(fwd_hooks=hooks):
        predicted = next_log_probabilities(model, ids.to(device), ids.shape[1] - 1)[:, 0].cpu()
        running.verify()
    return _Followed(distances, torch.stack([read[layer] for layer in layers]), predicted)


def _of_copies(
    playground: Playground, patterns: Mapping[int, Float[Tensor, "copy head"]]
) -> list[list[float]]:
    """Their mean, `[layer][head]`."""
    layers = range(playground.model.cfg.n_layers)
    return [patterns[at].mean(dim=0).tolist() if at in patterns else [] for at in layers]


def _probed(
    probes: PositionProbes,
    moves: dict[int, int],
    unmoved: _Followed,
    moved: _Followed,
    control: _Followed,
) -> list[ProbedLayer]:
    return [
        ProbedLayer(
            layer=layer,
            error=error,
            moved=[
                Probed(
                    position=position,
                    to=moves[position],
                    before=float(unmoved.read[layer, 0, at]),
                    after=float(moved.read[layer, 0, at]),
                    control=float(control.read[layer, :, at].mean()),
                )
                for at, position in enumerate(sorted(moves))
            ],
        )
        for layer, error in enumerate(probes.errors)
    ]


def _distance(one: Float[Tensor, " d_vocab"], other: Float[Tensor, " d_vocab"]) -> float:
    return float((one.exp() - other.exp()).abs().sum() / 2)


def _notes(n_code: int, probes: PositionProbes) -> list[str]:
    return [
        # Fewer for the code where it is of positions behind the prompt: its sequences are longer.
        f"The code is fitted on {n_code} sequences of the model's text, probes on {probes.n}. A "
        f"probe that always answers the middle errs by {probes.chance:.1f} positions.",
        # Always: a page keeps this answer when something is taken away later.
        "While a position is moved, nothing is taken away.",
    ]
