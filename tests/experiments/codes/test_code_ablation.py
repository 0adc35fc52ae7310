"""Codes taken away from models of which we know what they use."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from experiments.codes.ablation import site_by_site, through_the_stream
from experiments.codes.conditions import of_codes
from experiments.codes.first_token import (
    ANY_TOKEN,
    AT_EACH_POSITION,
    FROZEN,
    ONE_TOKEN,
    first_token_conditions,
)
from experiments.codes.in_depth import (
    FittedOnTheWay,
    fitted_in_depth,
    statistics_at,
    stream_sites,
)
from experiments.codes.shift import shift_rows
from experiments.codes.task import InterventionTask
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.probing.split import Split
from experiments.results.code_ablation import (
    EVERYWHERE,
    NONE_KEPT,
    OVER_CONTROL,
    SIDE_EFFECT,
    STREAM,
    only,
    without,
)
from experiments.results.measurements import FIRST_POSITION, table
from experiments.results.usage import Use, use_verdicts, uses_at
from nope_interp.constructions.planted import Planted, plant
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import intervene
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import stream
from probes.code_names import CODES
from probes.codes.controls import size_matched_removal
from probes.codes.filter import CodeFilter
from probes.codes.statistics import CodeStatistics, Intervention
from probes.scores import SHUFFLED

CONTEXT = {
    "experiment": "compare",
    "model": "planted",
    "variant": "trained",
    "tokens": "random",
    "begin_token": False,
    "seed": 0,
}
SITE = Site(0, "resid_post")
NAME = "blocks.0.hook_resid_post"


def task_on(
    planted: Planted, seed: int = 0, n_fit: int = 60, n_held_out: int = 30
) -> InterventionTask:
    fit = planted.sequences(n_fit, 2 * seed)
    split = Split(fit, planted.sequences(n_held_out, 2 * seed + 1))
    guessed = torch.full((n_held_out,), planted.chance)
    return InterventionTask(planted.model, split, planted.losses, guessed, seed)


def at_site(task: InterventionTask) -> list[dict[str, Any]]:
    return site_by_site(task, statistics_at(task, [SITE]), context=CONTEXT)


def words_at_site(planted: Planted, seed: int) -> dict[str, str]:
    assert tuple(planted.sites) == (NAME,)
    rows = at_site(task_on(planted, seed))
    uses = uses_at(table(rows), SITE.layer, SITE.hook)
    return {use.code: use.word for use in uses}


# ---------------------------------------------------------------- planted truth


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("kind", "code"),
    zip(("variance", "similarity", "counting", "positional vectors"), CODES, strict=True),
)
def test_the_planted_code_is_named_and_the_others_are_cleared(
    kind: str, code: str, seed: int
) -> None:
    words = words_at_site(plant(kind, seed), seed)
    assert words == {other: "used" if other == code else "not used" for other in CODES}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_variance_that_is_readable_and_unused_is_cleared(seed: int) -> None:
    words = words_at_site(plant("unread variance", seed), seed)
    assert words == {code: "used" if code == "smooth trend" else "not used" for code in CODES}


@pytest.fixture(scope="module")
def counting() -> pd.DataFrame:
    # Of fewer sequences the noise that a probe has fitted is taken for the code.
    task = task_on(plant("counting"), n_fit=150, n_held_out=60)
    rows = through_the_stream(task, context=CONTEXT)
    return table([*rows, *at_site(task)])


def test_what_lies_below_a_site_is_run_once_and_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = HookedTransformer(TransformerConfig(2, 16, 2, d_vocab=11, n_ctx=8, init_scale=0.3))
    tokens = torch.randint(11, (30, 8), generator=torch.Generator().manual_seed(0))
    losses = partial(sequence_losses, batch_size=5)
    task = InterventionTask(model, Split(tokens[:20], tokens[20:]), losses, torch.full((10,), 2.4))
    sites = [Site(0, "resid_pre"), Site(0, "attn_out"), Site(0, STREAM), Site(1, STREAM)]
    statistics = statistics_at(task, sites)
    runs: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    found = table(site_by_site(task, statistics, context=CONTEXT))
    once = len(runs)
    runs.clear()
    monkeypatch.setattr(model, "remembered_below", lambda layer: nullcontext())
    pd.testing.assert_frame_equal(found, table(site_by_site(task, statistics, context=CONTEXT)))
    # Behind block 0 its two batches are run once, in place of once for each of 17 conditions.
    assert len(runs) - once == 2 * 2 * (17 - 1)


def test_through_the_whole_stream_the_planted_code_is_named_too(counting: pd.DataFrame) -> None:
    (verdict,) = use_verdicts(counting)
    assert {use.code: use.word for use in verdict.of_stream} == {
        code: "used" if code == "smooth trend" else "not used" for code in CODES
    }
    assert "Used: smooth trend (necessity 100%" in verdict.sentence
    assert verdict.sentence.endswith("Used at a single site: smooth trend (layer 0 resid_post).")
    assert {(use.layer, use.site) for use in verdict.uses} == {
        (EVERYWHERE, STREAM),
        (SITE.layer, SITE.hook),
    }


def test_losses_without_the_code_are_at_chance_or_worse(counting: pd.DataFrame) -> None:
    stream_rows = counting[(counting["probe"] == "loss") & (counting["layer"] == EVERYWHERE)]
    nats = stream_rows[stream_rows["metric"] == "nats"].set_index(["positions", "control"])
    chance = nats["chance"].iloc[0]
    assert nats.loc[("intact", ""), "value"] < 0.5 * chance
    for condition in (
        without("smooth trend"),
        NONE_KEPT,
        only("variance"),
        "without t and 1/m, by LEACE",
    ):
        assert nats.loc[(condition, ""), "value"] > chance - 0.1
    for condition in (without("variance"), only("smooth trend")):
        assert nats.loc[(condition, ""), "value"] < 0.5 * chance
    # As large, but of other positions.
    assert nats.loc[(only("smooth trend"), SHUFFLED), "value"] > chance - 0.1


def test_the_code_taken_away_can_be_read_no_more_and_the_others_stay(
    counting: pd.DataFrame,
) -> None:
    readable = counting[
        (counting["probe"] == "counting")
        & (counting["metric"] == "r2")
        & (counting["control"] == "")
    ].set_index("positions")["value"]
    assert readable[without("smooth trend")] < 0.2 < 0.5 < readable[without("variance")]


def test_who_counts_by_the_begin_token_needs_it_and_what_heads_give_it() -> None:
    task = replace(task_on(plant("counting")), begin_token=True)
    intact = task.losses(task.model, task.split.held_out).mean()
    conditions = {
        (name, control): losses.mean() for name, control, losses in first_token_conditions(task)
    }
    names = {(FROZEN, ""), (FROZEN, AT_EACH_POSITION), (ANY_TOKEN, ""), (ONE_TOKEN, "")}
    assert conditions.keys() == names
    # Its head weighs the begin token, which it knows, by 1/m, whatever the content.
    for gone in ((FROZEN, ""), (ANY_TOKEN, ""), (ONE_TOKEN, "")):
        assert conditions[gone] > task.chance - 0.1
    assert float(conditions[FROZEN, AT_EACH_POSITION]) == pytest.approx(float(intact), abs=1e-3)


def test_who_does_not_count_needs_no_share_of_the_first_token() -> None:
    task = task_on(plant("positional vectors"))
    intact = task.losses(task.model, task.split.held_out).mean()
    conditions = {(name, control): losses for name, control, losses in first_token_conditions(task)}
    assert conditions.keys() == {(FROZEN, ""), (FROZEN, AT_EACH_POSITION)}
    assert abs(conditions[FROZEN, ""].mean() - intact) < 0.1 * (task.chance - intact)


def moved_by(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float]:
    """How far norms and cosines of activations moved, by hand."""
    apart = ~np.eye(before.shape[1], dtype=bool)
    cosines = [
        np.stack([cosine_similarity(x)[apart] for x in rows.numpy()]) for rows in (before, after)
    ]
    norms = after.norm(dim=-1) / before.norm(dim=-1)
    return float((norms - 1).abs().mean()), float(np.abs(cosines[1] - cosines[0]).mean())


def coming_to(
    task: InterventionTask, name: str, tokens: torch.Tensor, below: Mapping[str, Intervention]
) -> torch.Tensor:
    """The activations that come to a site while those below it are changed."""
    seen: list[torch.Tensor] = []
    with intervene(task.model, below, task.positions):
        stream(task.model, tokens, {name: seen.append}, batch_size=len(tokens))
    return torch.cat(seen)[:, FIRST_POSITION:]


def test_side_effects_are_those_of_each_intervention(untrained: InterventionTask) -> None:
    """Of one site: the sequences' activations before and after, put together by hand."""
    statistics = statistics_at(untrained, [SITE])
    found = table(site_by_site(untrained, statistics, context=CONTEXT))
    before = coming_to(untrained, NAME, untrained.split.held_out, {})
    kept = [code for code in CODES if code != "similarity"]
    norm, cosine = moved_by(before, statistics[SITE].kept(kept)(before))
    of_arm = found[
        (found["probe"] == SIDE_EFFECT)
        & (found["positions"] == without("similarity"))
        & (found["control"] == "")
    ].set_index("metric")["value"]
    assert of_arm["cosine"] == pytest.approx(cosine, rel=1e-3)
    assert of_arm["norm"] == pytest.approx(norm, rel=1e-3)
    assert of_arm["cosine"] > 0.01


def test_side_effects_through_the_stream_are_the_mean_over_its_sites() -> None:
    """Of the two sites of one layer, each after what the one before it has changed."""
    model = HookedTransformer(TransformerConfig(1, 16, 2, d_vocab=20, n_ctx=10, init_scale=0.3))
    tokens = torch.randint(20, (60, 10), generator=torch.Generator().manual_seed(0))
    split = Split(tokens[:40], tokens[40:])
    task = InterventionTask(model.eval(), split, sequence_losses, torch.full((20,), math.log(20)))
    found = table(through_the_stream(task, context=CONTEXT, codes_only=True))
    effects = found[(found["probe"] == SIDE_EFFECT) & (found["control"] == "")]
    for condition in (one for one in of_codes(task.seed) if not one.control):
        made = fitted_in_depth(task, condition, stream_sites(task))
        (first, one), (second, other) = made.items()
        there = coming_to(task, first, split.held_out, {})
        then = coming_to(task, second, split.held_out, {first: one})
        moved = np.array([moved_by(there, one(there)), moved_by(then, other(then))])
        own = effects[effects["positions"] == condition.name].set_index("metric")["value"]
        np.testing.assert_allclose(own[["norm", "cosine"]], moved.mean(axis=0), rtol=1e-3)


def sizes_by_hand(change: Intervention, codes: CodeStatistics) -> torch.Tensor:
    """How far the examples move, mean by position: where vectors are subtracted the length, else as
    shares of their deviations' lengths."""
    means = codes.positional_vectors().float()
    lengths = torch.stack([(change(x[None])[0] - x).norm(dim=-1) for x in codes.examples()])
    made = change.made if isinstance(change, FittedOnTheWay) else change
    assert isinstance(made, CodeFilter)
    if made.removed.any():
        return lengths.mean(dim=0)
    return (lengths / (codes.examples() - means).norm(dim=-1)).clamp(max=2).mean(dim=0)


@pytest.fixture(scope="module")
def brittle() -> InterventionTask:
    """A model that bears no content but its own."""
    return task_on(plant("brittle"), n_fit=40, n_held_out=20)


def test_a_control_at_a_site_moves_activations_as_far_as_the_removal(
    brittle: InterventionTask,
) -> None:
    ((_, codes),) = statistics_at(brittle, [SITE]).items()
    found = table(at_site(brittle)).set_index(["positions", "control", "metric"])["value"]
    held_out, losses = brittle.split.held_out, []
    for code in CODES:
        change = codes.kept([other for other in CODES if other != code])
        control = size_matched_removal(change, sizes_by_hand(change, codes), codes, brittle.seed)
        with intervene(brittle.model, {NAME: control}, brittle.positions):
            losses.append(float(brittle.losses(brittle.model, held_out).mean()))
    controls = [found[without(code), "size-matched", "nats"] for code in CODES]
    np.testing.assert_allclose(controls, losses, rtol=1e-4)
    # Each of them is felt.
    assert min(controls) > found["intact", "", "nats"] + 1e-3


def test_a_control_through_the_stream_moves_activations_as_far_at_every_site(
    brittle: InterventionTask,
) -> None:
    """Sizes are those of the removal's own pass; the control is fitted on what comes in its own."""
    model, (fit, held_out) = brittle.model, (brittle.split.fit, brittle.split.held_out)
    rows = table(through_the_stream(brittle, context=CONTEXT, codes_only=True))
    found = rows.set_index(["positions", "control", "metric"])["value"].sort_index()
    # One that is held against other content, and one against vectors elsewhere.
    names = {without("similarity"), without("smooth trend")}
    for condition in (one for one in of_codes(0) if one.takes_code and one.name in names):
        made = fitted_in_depth(brittle, condition, stream_sites(brittle))
        below: dict[str, Intervention] = {}
        controls: dict[str, Intervention] = {}
        for site, (name, removal) in enumerate(made.items()):
            of_removal, own = CodeStatistics(), CodeStatistics()
            of_removal.update(coming_to(brittle, name, fit, below), brittle.numbers())
            came = coming_to(brittle, name, fit, deepcopy(controls))
            own.update(came, brittle.numbers())
            sizes = sizes_by_hand(removal, of_removal)
            assert isinstance(removal.made, CodeFilter)
            below[name] = removal
            # Directions of its own at every site.
            controls[name] = size_matched_removal(
                removal.made, sizes, own, brittle.seed * 1000 + site
            )
            controls[name](came)  # the examples that content is taken from go on
        begun, moved = deepcopy(controls), []
        with intervene(model, controls, brittle.positions):
            losses = float(brittle.losses(model, held_out).mean())
        for nth, name in enumerate(made):
            again = deepcopy(begun)
            before = {other: again[other] for other in [*made][:nth]}
            came = coming_to(brittle, name, held_out, before)
            moved.append(moved_by(came, again[name](came)))
        told = found[condition.name, "size-matched"]
        wanted = np.mean(moved, axis=0)
        np.testing.assert_allclose(told[["norm", "cosine"]], wanted, rtol=1e-3, atol=1e-6)
        # Of what is off by a hundred thousandth the last layer makes a nat.
        assert told["nats"] == pytest.approx(losses, rel=0.02)


def test_a_position_that_is_moved_inside_the_model_moves_at_its_end() -> None:
    """The first layer writes m along a direction, from which everything later takes it: before
    that there is nothing to move, after it the position read at the end follows by all of it."""
    task = task_on(plant("counting"))
    statistics = statistics_at(task, [Site(0, "resid_pre"), SITE])
    rows = shift_rows(task, statistics, context=CONTEXT)
    followed = {(row["site"], row["control"]): row["value"] for row in rows}
    assert followed["resid_post", ""] == pytest.approx(1, abs=0.01)
    for nothing in (("resid_pre", ""), ("resid_pre", "mixed"), ("resid_post", "mixed")):
        assert followed[nothing] == pytest.approx(0, abs=0.01)


def test_a_position_that_vectors_do_not_tell_stays_where_it_is() -> None:
    """Position comes from sizes alone, whose vectors are noise."""
    task = task_on(plant("variance"))
    rows = shift_rows(task, statistics_at(task, [Site(0, "resid_pre")]), context=CONTEXT)
    assert [row["value"] for row in rows] == pytest.approx([0, 0], abs=0.1)


def test_vectors_that_no_layer_reads_are_followed_by_none() -> None:
    """They stay in the stream up to its end, where any probe reads them as moved."""
    task = task_on(plant("positional vectors"))  # the unembedding alone reads them
    site = Site(0, "resid_pre")
    assert shift_rows(task, statistics_at(task, [site]), context=CONTEXT) == []


def test_sequences_too_short_for_a_shift_have_no_rows(untrained: InterventionTask) -> None:
    statistics = statistics_at(untrained, [Site(0, "resid_pre")])
    assert shift_rows(untrained, statistics, context=CONTEXT) == []


# ---------------------------------------------------------------- arithmetic


def test_shares_are_those_of_the_losses(counting: pd.DataFrame) -> None:
    rows = counting[(counting["probe"] == "loss") & (counting["layer"] == SITE.layer)]
    value = rows.set_index(["positions", "control", "metric"])["value"]
    intact, none = value["intact", "", "nats"], value[NONE_KEPT, "", "nats"]
    chance = task_on(plant("counting")).chance
    np.testing.assert_allclose(rows.loc[rows["metric"] == "nats", "chance"], chance, rtol=1e-6)
    lead = value["intact", "", "lead"]
    assert lead == pytest.approx(chance - intact, abs=1e-6)
    assert none - intact > lead  # a broken model loses more than a guess
    for code in CODES:
        of_code = value[without(code), ""]
        lost = of_code["nats"] - intact
        assert of_code["increase"] == pytest.approx(lost, abs=1e-9)
        assert of_code["necessity"] == pytest.approx(lost / lead)
        for control, metric in OVER_CONTROL.items():
            above = of_code["nats"] - value[without(code), control, "nats"]
            assert of_code[metric] == pytest.approx(above, abs=1e-9)
        regained = (none - value[only(code), "", "nats"]) / lead
        assert value[only(code), "", "sufficiency"] == pytest.approx(regained, abs=1e-9)
    (verdict,) = use_verdicts(counting)
    assert max(use.necessity[2] for use in verdict.uses if use.necessity is not None) == 1


@pytest.fixture(scope="module")
def untrained() -> InterventionTask:
    config = TransformerConfig(n_layers=3, d_model=32, n_heads=2, d_vocab=50, n_ctx=12)
    tokens = torch.randint(50, (60, 12), generator=torch.Generator().manual_seed(0))
    split = Split(tokens[:40], tokens[40:])
    guessed = torch.full((20,), math.log(50))
    return InterventionTask(HookedTransformer(config).eval(), split, sequence_losses, guessed)


def test_where_nothing_is_lost_nothing_is_shared_out(untrained: InterventionTask) -> None:
    """An untrained model's losses do not depend on position: what differs is chance."""
    still = InterventionTask(
        untrained.model,
        untrained.split,
        lambda model, tokens: sequence_losses(untrained.model, tokens) * 0 + 1,
        torch.full((20,), 2.0),
    )
    rows = table(through_the_stream(still, context=CONTEXT))
    assert not rows["metric"].isin(["necessity", "sufficiency"]).any()
    (verdict,) = use_verdicts(rows)
    assert {use.word for use in verdict.of_stream} == {"undecided"}
    assert all(use.necessity is None for use in verdict.of_stream)
    assert verdict.sentence.endswith("no code has a share in it.")


def test_the_same_seed_gives_the_same_rows(untrained: InterventionTask) -> None:
    once, again = (table(through_the_stream(untrained, context=CONTEXT)) for _ in range(2))
    pd.testing.assert_frame_equal(once, again)


def test_interventions_in_depth_are_fitted_behind_each_other(untrained: InterventionTask) -> None:
    """Below, means over the fit sequences are gone: what is left of them is what a layer adds."""
    (condition,) = (condition for condition in of_codes(0) if condition.name == NONE_KEPT)
    made = fitted_in_depth(untrained, condition, stream_sites(untrained))
    assert list(made) == [
        "blocks.0.hook_resid_pre",
        "blocks.0.hook_resid_mid",
        "blocks.0.hook_resid_post",
        "blocks.1.hook_resid_mid",
        "blocks.1.hook_resid_post",
        "blocks.2.hook_resid_mid",
    ]
    means: dict[str, np.ndarray] = {}
    for name, change in made.items():
        seen: list[torch.Tensor] = []
        with intervene(untrained.model, made, ALL_BUT_FIRST):
            stream(
                untrained.model,
                untrained.split.fit,
                {name: lambda x, seen=seen: seen.append(x[:, FIRST_POSITION:])},
                batch_size=40,
            )
        assert change is not None
        means[name] = torch.cat(seen).mean(dim=0).numpy()
    for mean in means.values():
        np.testing.assert_allclose(mean, np.broadcast_to(mean.mean(axis=0), mean.shape), atol=2e-3)


# ---------------------------------------------------------------- words


Numbers = tuple[float, float, float]
NOTHING: Numbers = (0.0, -0.01, 0.01)
MUCH: Numbers = (0.9, 0.8, 1.0)


def rows_of_uses(
    numbers: dict[str, tuple[Numbers, Numbers, Numbers]],
    lead: Numbers = (1.0, 0.9, 1.1),
    coverage: float = 1.0,
) -> pd.DataFrame:
    """The rows of a code ablation whose codes have these shares of necessity and sufficiency, and
    these increases over their controls. As it is the model loses 2 nats."""
    rows = []
    common = {**CONTEXT, "layer": EVERYWHERE, "site": STREAM, "probe": "loss", "control": ""}

    def add(condition: str, metric: str, found: Numbers, control: str = "") -> None:
        value, low, high = found
        own = {"positions": condition, "metric": metric, "control": control, "value": value}
        rows.append({**common, **own, "ci_low": low, "ci_high": high, "chance": 0.0, "n": 500})

    add("intact", "nats", (2.0, 1.9, 2.1))
    add("intact", "lead", lead)
    add("intact", "coverage", (coverage, coverage, coverage))
    for code, (necessity, sufficiency, over) in numbers.items():
        for metric, found in (("increase", necessity), ("necessity", necessity)):
            add(without(code), metric, found)
        for metric in ("over_size_matched", "over_rescaled"):
            add(without(code), metric, over)
        for control in ("size-matched", "random rescaling"):
            add(without(code), "increase", NOTHING, control)
        add(only(code), "sufficiency", sufficiency)
        add(only(code), "sufficiency", NOTHING, SHUFFLED)
    add(NONE_KEPT, "increase", (1.0, 0.9, 1.1))
    return table(rows)


def use_of(necessity: Numbers, sufficiency: Numbers, over: Numbers) -> Use:
    """The use that these numbers come to, beside a code that is surely used."""
    others = dict.fromkeys(CODES[1:], (MUCH, MUCH, MUCH))
    return uses_at(
        rows_of_uses({CODES[0]: (necessity, sufficiency, over), **others}), EVERYWHERE, STREAM
    )[0]


def test_codes_that_stand_in_for_each_other_are_not_called_unused() -> None:
    """Without all four much is lost, without any one nothing."""
    rows = rows_of_uses(dict.fromkeys(CODES, (NOTHING, NOTHING, NOTHING)))
    assert {use.word for use in uses_at(rows, EVERYWHERE, STREAM)} == {"undecided"}


@pytest.mark.parametrize(("coverage", "word"), [(0.5, "not used"), (0.4, "undecided")])
def test_what_is_predicted_from_rows_left_alone_clears_no_code(coverage: float, word: str) -> None:
    numbers = dict.fromkeys(CODES[1:], (NOTHING, NOTHING, NOTHING))
    rows = rows_of_uses({CODES[0]: (MUCH, MUCH, MUCH), **numbers}, coverage=coverage)
    used, *others = (use.word for use in uses_at(rows, EVERYWHERE, STREAM))
    assert used == "used"
    assert set(others) == {word}


def test_a_total_effect_below_a_tenth_of_the_lead_decides_nothing() -> None:
    rows = rows_of_uses(dict.fromkeys(CODES, (MUCH, MUCH, MUCH)), lead=(20.0, 19.9, 20.1))
    assert {use.word for use in uses_at(rows, EVERYWHERE, STREAM)} == {"undecided"}


def test_the_guesser_is_paired_by_sequence() -> None:
    """Sequences differ in how hard they are, for the model and for the guesser alike."""
    planted = plant("counting")

    def uneven(model: HookedModel, tokens: torch.Tensor) -> torch.Tensor:
        return planted.losses(model, tokens) + tokens.float().mean(dim=1)

    task = task_on(planted)
    guessed = uneven(planted.model, task.split.held_out) + 1
    found = table(at_site(replace(task, losses=uneven, guessed=guessed)))
    lead = found[found["metric"] == "lead"]
    assert (lead["ci_high"] - lead["ci_low"]).max() < 1e-4
    assert guessed.std() > 0.1


@pytest.mark.parametrize(
    ("lead", "word"),
    [
        ((0.2, 0.1, 0.3), "used"),
        ((0.1, 0.01, 0.19), "undecided"),  # widened for four codes it reaches zero
        ((-0.5, -0.6, -0.4), "undecided"),
    ],
)
def test_a_model_that_does_no_better_than_a_guesser_uses_nothing(lead: Numbers, word: str) -> None:
    rows = rows_of_uses(dict.fromkeys(CODES, (MUCH, MUCH, MUCH)), lead)
    assert {use.word for use in uses_at(rows, EVERYWHERE, STREAM)} == {word}
    (verdict,) = use_verdicts(rows)
    assert ("does not surely beat the guesser" in verdict.sentence) == (word == "undecided")


@pytest.mark.parametrize(
    ("necessity", "sufficiency", "over", "word"),
    [
        ((0.5, 0.4, 0.6), (0.5, 0.4, 0.6), (0.1, 0.05, 0.15), "used"),
        # No more than as much other content costs.
        ((0.5, 0.4, 0.6), (0.5, 0.4, 0.6), (-0.1, -0.2, 0.0), "undecided"),
        # Another code stands in for it.
        ((0.0, -0.01, 0.01), (0.5, 0.4, 0.6), (0.0, -0.01, 0.01), "undecided"),
        ((0.0, -0.01, 0.01), (0.0, -0.01, 0.01), (0.0, -0.01, 0.01), "not used"),
        # Too wide to tell.
        ((0.1, -0.2, 0.4), (0.0, -0.01, 0.01), (0.1, -0.2, 0.4), "undecided"),
    ],
)
def test_words_follow_their_rules(
    necessity: Numbers, sufficiency: Numbers, over: Numbers, word: str
) -> None:
    assert use_of(necessity, sufficiency, over).word == word
