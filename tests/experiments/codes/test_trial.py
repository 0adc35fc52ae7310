"""Controls of moved codes: whose draw is whose, in tasks and on text."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.codes.answering import Asking, Changes
from experiments.codes.counterfactual import counterfactuals
from experiments.codes.in_depth import Place, statistics_at
from experiments.codes.interchange import trial_of
from experiments.codes.ranks import PANEL
from experiments.codes.text_moves import TextMoves
from experiments.codes.text_runs import Within
from experiments.codes.trial import Trial
from experiments.codes.way import share
from experiments.probing.sites import Site
from experiments.results.code_ablation import EVERYWHERE
from experiments.results.interchange import TOWARDS
from nope_interp.models.encodings import LearnedPositions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import ATTENTION_INPUT
from probes.code_names import MEAN_RESIDUAL, SIMILARITY
from probes.codes.interchange import Move, interchange, variation_at
from tests.experiments.codes.test_interchange import reversal
from tests.experiments.codes.test_text_interchange import LENGTH, one_layer, task_of
from tests.small_models import model as own_model

EMBEDDING = Site(0, "resid_pre")
BLOCK = Site(0, "resid_post")
READ = Site(0, ATTENTION_INPUT)
# Draws of the control in a turn.
IN_TASKS, ON_TEXT = 20, 4


def distinct(found: list[Tensor]) -> bool:
    return not any(torch.allclose(one, other) for one, other in combinations(found, 2))


# --- tasks


@pytest.fixture(scope="module")
def asking() -> Asking:
    """What a model that was never trained, with a table of positions, is asked of a question."""
    task = reversal(0)
    assert isinstance(task.model, HookedTransformer)
    assert isinstance(task.model.positions, LearnedPositions)
    with torch.no_grad():
        task.model.positions.table.mul_(30)
    one = counterfactuals(task)[1]
    counted = one.counted.clone()
    counted[[0, 5]] = False  # these are on no panel
    return Asking(replace(task, positions=one.among), one.own, one.other, counted)


@pytest.fixture(scope="module")
def move(asking: Asking) -> tuple[Move, Tensor]:
    """The table's move at the embedding, and how activations vary there."""
    codes = statistics_at(asking.task, [EMBEDDING])[EMBEDDING]
    sources = torch.arange(len(codes.positions)).roll(1)
    return interchange(codes, MEAN_RESIDUAL, sources), variation_at(codes)


def trial(asking: Asking, move: tuple[Move, Tensor], *sites: Site, seed: int = 0) -> Trial:
    moves, variation = (dict.fromkeys(sites, of) for of in move)
    return trial_of(asking, asking.answers({}), moves, variation, (1.0,), seed)


def test_a_panel_of_a_task_shares_a_draw_and_panels_of_a_turn_have_draws_of_their_own(
    asking: Asking, move: tuple[Move, Tensor]
) -> None:
    """Each panel's effect is the mean over its sequences of what the panel's draw does to each."""
    asked: list[tuple[float, int, int]] = []
    one = trial(asking, move, EMBEDDING)

    def recorded(dose: float, turn: int, together: int) -> Changes:
        asked.append((dose, turn, together))
        return one.drawn(dose, turn, together)

    panel = [number for number in range(PANEL + 2) if number not in (0, 5)]
    before = one.before.log_odds
    for turn in range(2):
        found = replace(one, drawn=recorded)._turn(turn)
        each = [
            asking.of([number] * IN_TASKS).answers(one.drawn(1.0, turn, 1)).log_odds
            - before[number]
            for number in panel
        ]
        np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-4, atol=1e-5)
        assert found.std() > 0.1 * np.abs(found).max()
    assert asked == [(1.0, 0, PANEL), (1.0, 1, PANEL)]
    own = asking.answers(one.moved(1.0)).log_odds
    assert one._level() == pytest.approx((own - before)[panel].mean())


def test_every_turn_site_and_seed_of_a_task_has_draws_of_its_own(
    asking: Asking, move: tuple[Move, Tensor]
) -> None:
    """The same move at two sites that vary alike."""
    sites = (EMBEDDING, BLOCK)
    one = trial(asking, move, *sites)
    x = torch.zeros(3, *move[0].told.shape)

    def drawn(of: Trial, turn: int) -> list[Tensor]:
        changes = of.drawn(1.0, turn, 20)
        return [changes[site.name](x) for site in sites]

    found = [change for turn in range(3) for change in drawn(one, turn)]
    assert distinct([*found, *drawn(trial(asking, move, *sites, seed=1), 0)])
    # They are drawn from nothing else.
    again = [change for turn in range(3) for change in drawn(one, turn)]
    assert all(map(torch.equal, found, again))


# --- text


@pytest.fixture(scope="module")
def moves() -> TextMoves:
    task = task_of(one_layer("learned"))
    return TextMoves(task, statistics_at(task, [EMBEDDING, READ]), [EMBEDDING])


@pytest.mark.parametrize(("code", "site"), [(MEAN_RESIDUAL, EMBEDDING), (SIMILARITY, READ)])
def test_a_panel_of_texts_shares_a_draw_and_panels_of_a_turn_have_draws_of_their_own(
    moves: TextMoves, code: str, site: Site
) -> None:
    """Each panel's share is that of the mean of what the panel's draw does to each sequence."""
    told = moves.disordering(Place(site.layer, site.hook, (site,)), code)
    asked: list[tuple[float, int, int]] = []

    def recorded(dose: float, turn: int, together: int) -> Within:
        asked.append((dose, turn, together))
        return told.drawn(dose, turn, together)

    def gone(number: int, copies: int, within: Within) -> np.ndarray:
        which = [number] * copies
        # A draw for each batch, as for a panel, or the generator would give other numbers.
        run = replace(told.run.of(which), batch_size=1)
        return told.way.of(which).measured(run.read(within=within).predictions)

    towards, every = share(TOWARDS), []
    for turn in range(2):
        found = replace(told, drawn=recorded)._turn(turn)
        each = [gone(number, ON_TEXT, told.drawn(1.0, turn, 1)) for number in range(PANEL)]
        np.testing.assert_allclose(found, towards(np.mean(each, axis=0)), rtol=1e-4, atol=1e-5)
        every += found.tolist()
    # Turns have draws of their own, too.
    assert len({round(of, 6) for of in every}) == 2 * ON_TEXT
    assert asked == [(1.0, 0, PANEL), (1.0, 1, PANEL)]
    own = [gone(number, 1, told.moved(1.0))[0] for number in range(PANEL)]
    assert told._level() == pytest.approx(towards(np.mean(own, axis=0)), abs=1e-5)


def test_every_turn_and_layer_of_a_text_has_content_of_its_own() -> None:
    """Similarity in two layers that read the same by the same weights."""
    model = own_model(attn_only=True, n_layers=2, n_ctx=LENGTH)
    first, second = (block.attn for block in model.blocks)
    with torch.no_grad():
        second.qkv.weight.copy_(first.qkv.weight)
        for attention in (first, second):
            attention.out.weight.zero_()
    reads = tuple(Site(layer, ATTENTION_INPUT) for layer in range(2))
    place = Place(EVERYWHERE, ATTENTION_INPUT, reads)
    task = task_of(model)
    trial = TextMoves(task, statistics_at(task, reads), ()).disordering(place, SIMILARITY)

    def queries(turn: int) -> list[Tensor]:
        seen: list[Tensor] = []
        names = [f"blocks.{layer}.attn.hook_q" for layer in range(2)]
        hooks = [(name, lambda x, hook: seen.append(x.clone())) for name in names]
        within = trial.drawn(1.0, turn, 20)
        with within(), model.hooks(fwd_hooks=hooks), torch.no_grad():
            model(task.split.held_out[:3])
        return seen

    found = [queries(turn) for turn in range(3)]
    assert distinct([x for of in found for x in of])
    assert all(map(torch.equal, found[1], queries(1)))
