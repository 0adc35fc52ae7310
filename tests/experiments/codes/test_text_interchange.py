"""Positions moved in text: in models whose answer elsewhere is known from their weights."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from experiments.codes import text_runs
from experiments.codes.in_depth import Place, made_in_depth, statistics_at
from experiments.codes.task import InterventionTask
from experiments.codes.text_interchange import text_interchange_rows, text_noising_rows
from experiments.codes.text_moves import TextMoves
from experiments.codes.text_runs import (
    behind_more_text,
    exceeds_noise,
    in_another_order,
    with_prefix,
)
from experiments.codes.text_trial import _adds_beyond_another, _beyond_another
from experiments.codes.way import share
from experiments.probing.sites import Site
from experiments.results import interchange as names
from experiments.results.code_ablation import SIZE_MATCHED
from experiments.results.measurements import table
from experiments.results.text_use import OVER_NOISE, SAME_LENGTH, WAY
from experiments.results.worth import WORTH_NAMING
from nope_interp import query_blocks
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.models.losses import next_log_probabilities
from nope_interp.tasks.sources import TextSource
from probes.code_names import HALVES, JUDGED
from probes.codes.interchange import Change, interchange, variation_at
from tests import typecheck
from tests.experiments.codes.on_text import CONTEXT, embedded, on_text
from tests.huggingface import bridged_model
from tests.small_models import D_VOCAB
from tests.small_models import model as own_model

LENGTH = 32
EMBEDDING, BEFORE_MLP = Site(0, "resid_pre"), Site(0, "resid_mid")


@cache
def letters() -> TextSource:
    """A text of letters drawn by themselves: their mean is the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    return TextSource(torch.randint(D_VOCAB, (60_000,), generator=generator), None)


def task_of(model: Any) -> InterventionTask:
    return on_text(model, letters(), n_fit=200, n_held_out=40, seq_len=LENGTH)


def one_layer(positions: str) -> Any:
    """Attention alone: what it reads of earlier tokens is a sum, in whatever order they stand."""
    return own_model(positions=positions, attn_only=True, n_layers=1, n_ctx=LENGTH)


@pytest.fixture(scope="module")
def learned() -> pd.DataFrame:
    """Of a model that knows positions by its table and in no other way."""
    task = task_of(one_layer("learned"))
    return table(text_interchange_rows(task, statistics_at(task, [EMBEDDING]), context=CONTEXT))


def at_embedding(rows: pd.DataFrame, condition: str) -> pd.DataFrame:
    here = rows[(rows["layer"] == 0) & (rows["positions"] == condition)]
    return here.set_index(["metric", "control"])


def test_a_table_of_positions_is_followed_all_of_the_way_and_put_back(
    learned: pd.DataFrame,
) -> None:
    for condition, metric in (
        (names.noising("mean residual", "earlier tokens"), names.TOWARDS),
        (names.denoising("mean residual", "earlier tokens"), names.RESTORED),
    ):
        found = at_embedding(learned, condition)
        assert found.loc[(metric, ""), "value"] > 0.9, condition
        assert found.loc[(metric, SIZE_MATCHED), "value"] < 0.4, condition
        assert found.loc[(names.NET, ""), "ci_low"] > 0.5, condition
    words = {
        use.moved: use.word
        for use in names.uses(learned)
        if (use.code, use.layer) == ("mean residual", 0)
    }
    assert words["earlier tokens"] == "used"


def test_a_table_that_tells_an_unrelated_order_goes_as_far_as_text_in_that_order(
    learned: pd.DataFrame,
) -> None:
    found = at_embedding(learned, names.noising("mean residual", "earlier tokens"))
    told, text = (
        found.loc[(names.TOWARDS, control), "value"]
        for control in (names.TOLD_UNRELATED, names.IN_UNRELATED)
    )
    # Any order goes a part of the way to another one, since both have lost the text's.
    assert 0.2 < text < 0.8
    assert told == pytest.approx(text, abs=0.02)
    own = found.loc[(names.TOWARDS, ""), "value"]
    beyond = found.loc[(names.THIS_ORDER, "")]
    # The mean over this way and that to the unrelated order, where the two change places.
    assert beyond["value"] == pytest.approx((own - told) / (1 - text), abs=0.05)
    assert beyond["ci_low"] > 0.8
    back = at_embedding(learned, names.denoising("mean residual", "earlier tokens"))
    own, told, text = (
        back.loc[(names.RESTORED, control), "value"]
        for control in ("", names.TOLD_UNRELATED, names.IN_UNRELATED)
    )
    assert told == pytest.approx(text, abs=0.05)
    assert back.loc[(names.THIS_ORDER, ""), "value"] == pytest.approx((own - told) / (1 - text))
    further = at_embedding(learned, names.noising("mean residual", "text by 8 positions"))
    told, text = (
        further.loc[(names.TOWARDS, control), "value"]
        for control in (names.TOLD_UNRELATED, names.IN_UNRELATED)
    )
    assert told == pytest.approx(text, abs=0.02)


def test_later_layers_write_what_they_would_elsewhere(learned: pd.DataFrame) -> None:
    found = names.followed(learned).set_index(["code", "layer", "moved"])
    moved = found.loc[("mean residual", 0, "earlier tokens")]
    assert moved["written"] > 0.9
    assert moved["written_size_matched"] < 0.5


def test_a_smaller_move_goes_less_of_the_way(learned: pd.DataFrame) -> None:
    told = names.doses(learned).set_index(["code", "layer", "moved", "dose"])
    by_dose = told.loc[("mean residual", 0, "earlier tokens")]
    assert list(by_dose.index) == [0.05, 0.3, 1.0]
    least, small, whole = (by_dose.loc[dose] for dose in by_dose.index)
    assert least["towards"] < small["towards_low"]
    assert small["towards_high"] < whole["towards_low"]
    assert small["size_matched"] < small["towards_low"]


def test_what_the_last_attention_reads_is_moved_at_all_positions() -> None:
    """Those that are asked read the others' keys and values."""
    task, site = task_of(one_layer("learned")), Site(0, "attn_in")
    rows = table(text_interchange_rows(task, statistics_at(task, [site]), context=CONTEXT))
    here = rows[rows["site"] == "attn_in"]
    found = at_embedding(here, names.noising("mean residual", "earlier tokens"))
    assert found.loc[(names.TOWARDS, ""), "value"] > 0.8


def test_similarity_is_fitted_in_all_layers_in_whichever_order_they_are_named() -> None:
    task = task_of(own_model(n_ctx=LENGTH))
    sites = [Site(layer, "attn_in") for layer in reversed(range(task.model.cfg.n_layers))]
    statistics = statistics_at(task, sites)
    found = TextMoves(task, statistics, ())._alike
    assert set(found) == set(sites)
    for site, of in found.items():
        means = statistics[site].positional_vectors()
        torch.testing.assert_close(of.means, means, rtol=1e-4, atol=1e-5)


def test_behind_all_attention_what_is_asked_is_moved_alone_as_if_all_were() -> None:
    """The text further on, at the last site before an MLP: other positions reach no prediction."""
    task, site = task_of(own_model(positions="learned", n_layers=1, n_ctx=LENGTH)), BEFORE_MLP
    codes = statistics_at(task, [site])[site]
    moves = TextMoves(task, {site: codes}, ())
    elsewhere = moves.shifted
    trials = moves.trials(Place(site.layer, site.hook, (site,)), "mean residual")
    trial = trials[names.noising("mean residual", elsewhere.moved),]()
    own = torch.arange(LENGTH - 1)
    whole = interchange(codes, "mean residual", torch.cat([own[8:], own[23:]])).at(own[:23])
    first = len(own[:23]) + 1 - trial.run.asked
    # A draw of the control is another one in another batch.
    batches = trial.run.tokens.split(trial.run.batch_size)

    def predicted(change: Change) -> Tensor:
        with intervene(task.model, {site.name: change}, slice(1, None)):
            return torch.cat([next_log_probabilities(task.model, some, first) for some in batches])

    start = trial.run.read().predictions
    for dose in (0.3, 1.0):
        variation, generator = variation_at(codes), moves._generator(0, 0)
        control = whole.size_matched(variation, generator, dose)
        for change, within in (
            (whole.by(dose), trial.moved(dose)),
            (control, trial.drawn(dose, 0, 1)),
        ):
            found = trial.run.read(within=within).predictions
            torch.testing.assert_close(found, predicted(change), rtol=1e-4, atol=1e-5)
            assert (found - start).abs().max() > 0.1


def test_what_a_half_adds_is_what_the_other_one_alone_lacks(learned: pd.DataFrame) -> None:
    def towards(code: str) -> float:
        found = at_embedding(learned, names.noising(code, "earlier tokens"))
        return float(found.loc[(names.TOWARDS, ""), "value"])

    for half, other in (HALVES, reversed(HALVES)):
        found = at_embedding(learned, names.noising(half, "earlier tokens"))
        lacks = towards("mean residual") - towards(other)
        assert found.loc[(names.ADDED, ""), "value"] == pytest.approx(lacks)


def assert_rows_tell_of_one_another(rows: pd.DataFrame) -> None:
    """Shares share out the way, effects are net of them, and ranks are of draws where it counts."""
    where = ["layer", "site", "positions"]
    codes = [
        (str(condition), of.set_index(["metric", "control"]))
        for (_, _, condition), of in rows.groupby(where, observed=True)
        if names.CARRIED in set(of["metric"])
    ]
    assert len(codes) >= 10
    for condition, of in codes:
        value = of["value"]
        back = condition.startswith("put back")
        aim = names.RESTORED if back else names.TOWARDS
        followed = value[aim]
        assert value[names.NET, ""] == pytest.approx(followed[""] - followed[SIZE_MATCHED])
        assert value[names.BEYOND, ""] == followed[""]
        if back or not condition.endswith("earlier tokens"):  # the two orders do not change places
            left = max(1 - followed[names.IN_UNRELATED], 0.2)
            further = (followed[""] - followed[names.TOLD_UNRELATED]) / left
            assert value[names.THIS_ORDER, ""] == pytest.approx(further)
        if back:
            assert not {names.TOWARDS, names.STAYS, names.NEITHER} & {
                metric for metric, _ in of.index
            }
        else:
            neither = value[names.NEITHER]
            shares = followed + value[names.STAYS] + neither
            np.testing.assert_allclose(shares, 1)
            assert len(shares) == 4  # the move, and three controls
            assert value[names.BROKEN, ""] == pytest.approx(neither[""] - neither[SIZE_MATCHED])
        rank = of.loc[(names.RANK, "")]
        worth = min(of.loc[(net, ""), "ci_low"] for net in (names.NET, names.THIS_ORDER))
        assert (rank["n"] > 0) == (worth >= WORTH_NAMING)
        # The code is one among as many draws.
        among = rank["value"] * (1 + rank["n"])
        assert among == pytest.approx(round(among))
        assert 1 <= round(among) <= 1 + rank["n"]


def test_rows_of_a_condition_tell_of_one_another(learned: pd.DataFrame) -> None:
    assert_rows_tell_of_one_another(learned)


def test_ways_are_held_against_noise_and_against_a_tenth_of_another_order(
    learned: pd.DataFrame,
) -> None:
    value = learned.set_index(["positions", "metric", "control"])["value"].sort_index()
    further, ordered = "text by 8 positions", "earlier tokens"
    for moved in (further, ordered):
        way, noise = (value[moved, WAY, control] for control in ("", SAME_LENGTH))
        assert value[moved, OVER_NOISE, ""] == pytest.approx(way - noise)
    assert value[further, WAY, SAME_LENGTH] > 0
    for over, part in ((names.OVER_TENTH, 0.1), (names.OVER_THOUSANDTH, 0.001)):
        beyond = value[further, WAY, ""] - part * value[ordered, WAY, ""]
        assert value[further, over, ""] == pytest.approx(beyond)


def test_what_a_site_is_not_found_to_carry_is_moved_all_the_same() -> None:
    """At the embedding of a model without positions there is none, and nothing follows."""
    task = task_of(one_layer("none"))
    rows = table(text_interchange_rows(task, statistics_at(task, [EMBEDDING]), context=CONTEXT))
    for code in ("mean residual", "smooth trend", "variance"):
        for named in (names.noising, names.denoising):
            found = at_embedding(rows, named(code, "earlier tokens"))
            assert found.loc[(names.CARRIED, ""), "value"] == 0
            assert abs(found.loc[(names.NET, ""), "value"]) < 0.05
    of_order = [use for use in names.uses(rows) if use.moved == "earlier tokens"]
    # Order changes nothing here: any change goes further than that way, the control's, too.
    assert {use.word for use in of_order} == {"undecided"}
    assert all("a random move as large may break" in use.why for use in of_order)


def test_without_positions_order_changes_nothing_to_follow() -> None:
    noised, denoised = in_another_order(task_of(one_layer("none")))
    np.testing.assert_allclose(noised.way.length, 0, atol=1e-9)
    np.testing.assert_allclose(denoised.way.length, 0, atol=1e-9)


def test_tokens_of_the_other_order_stand_where_it_says() -> None:
    task = task_of(one_layer("learned"))
    noised, denoised = in_another_order(task)
    clean, disordered = noised.run.tokens, denoised.run.tokens
    assert torch.equal(clean, task.split.held_out)
    assert torch.equal(
        disordered[:, [0, *range(LENGTH - 8, LENGTH)]], clean[:, [0, *range(24, 32)]]
    )
    assert torch.equal(disordered[:, 1:], clean[:, 1 + denoised.sources])
    assert torch.equal(disordered[:, 1 + noised.sources], clean[:, 1:])
    assert (noised.sources[:23] != torch.arange(23)).sum() > 15
    # The run predicts what the model does: the last positions, as it is called.
    expected = next_log_probabilities(task.model, clean, LENGTH - 8)
    torch.testing.assert_close(noised.way.start, expected)


def test_of_a_large_vocabulary_fewer_tokens_keep_their_place_and_all_of_them_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who looks a token back would see the same ones in any order, and follow no code."""
    task = task_of(one_layer("learned"))
    monkeypatch.setattr(text_runs, "_BYTES", 3 * 4 * D_VOCAB * len(task.split.held_out))
    for elsewhere in in_another_order(task):
        assert elsewhere.run.asked == 3
        for sources in (elsewhere.sources, elsewhere.unrelated.sources):
            moved = sources != torch.arange(LENGTH - 1)
            assert not moved[-3:].any()
            assert moved[:-3].sum() > 20
            assert moved[-8:-3].any()


def test_text_behind_more_text_is_the_same_text() -> None:
    task = task_of(one_layer("learned"))
    elsewhere = behind_more_text(task)
    assert elsewhere.moved == "text by 8 positions"
    assert torch.equal(elsewhere.run.tokens, task.split.held_out[:, :24])
    assert torch.equal(elsewhere.sources, torch.arange(23) + 8)
    generator = torch.Generator().manual_seed(0)
    longer = with_prefix(elsewhere.run.tokens, task.split.fit, 8, generator)
    assert longer.shape == (40, LENGTH)
    kept = [0, *range(9, LENGTH)]
    assert torch.equal(longer[:, kept], elsewhere.run.tokens)
    prefixes = {tuple(row) for row in task.split.fit[:, 1:9].tolist()}
    assert {tuple(row) for row in longer[:, 1:9].tolist()} <= prefixes
    assert len({tuple(row) for row in longer[:, 1:9].tolist()}) > 30


@pytest.mark.parametrize("by", [1, 5, LENGTH // 2])
def test_text_stands_as_far_on_as_is_asked(by: int) -> None:
    task = task_of(one_layer("learned"))
    elsewhere = behind_more_text(task, by=by)
    assert elsewhere.moved == f"text by {by} positions"
    assert torch.equal(elsewhere.run.tokens, task.split.held_out[:, :-by])
    assert torch.equal(elsewhere.sources, torch.arange(LENGTH - by - 1) + by)
    moves = TextMoves(task, statistics_at(task, [EMBEDDING]), [EMBEDDING], by)
    assert moves.shifted.moved == elsewhere.moved
    assert torch.equal(moves.shifted.way.start, elsewhere.way.start)


def test_text_cannot_stand_nowhere_or_out_of_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    task = task_of(one_layer("learned"))
    for by in (0, -1, LENGTH // 2 + 1, 1.5):
        with pytest.raises(UserError, match=rf"by is {by}: .* of the 32 tokens .* 1 to 16\."):
            behind_more_text(task, by=by)


def gone(along: float, changed: float, length: float = 1.0) -> list[float]:
    return [along, changed, length]


def test_an_order_that_harms_more_is_not_followed_for_it() -> None:
    """Told, the one harms three times as much as the other, in what both ways have in common."""
    much, little, text = gone(0.6, 0.6), gone(0.2, 0.2), gone(0.3, 1.0)
    alone = np.array([[*much, *little, *text]])
    assert _beyond_another(alone) == pytest.approx(0.4 / 0.7)
    crossed = np.array([[*much, *little, *text, *little, *much, *text]])
    assert _beyond_another(crossed) == pytest.approx(0)
    # One way is longer, by what the other has not: harm is along both alike.
    longer = [gone(*of[:2], 1.5) for of in (little, much, gone(0.3, 1.0))]
    crossed = np.array([[*much, *little, *gone(0.3, 1.5), *longer[0], *longer[1], *longer[2]]])
    assert _beyond_another(crossed) == pytest.approx(0)


def test_two_orders_that_are_followed_all_of_their_ways_are_1_whatever_their_lengths() -> None:
    short, long = gone(1.0, 1.0, 1.0), gone(1.5, 1.5, 1.5)
    aside = gone(0.3, 1.5, 1.0), gone(0.3, 1.0, 1.5)  # each text along the other's way
    crossed = np.array([[*short, *aside[0], *aside[0], *long, *aside[1], *aside[1]]])
    assert _beyond_another(crossed) == pytest.approx(1)
    # Whoever stays where it is goes nowhere.
    still = gone(0.0, 0.0, 1.0), gone(0.0, 0.0, 1.5)
    part = np.array([[*still[0], *still[0], *aside[0], *still[1], *still[1], *aside[1]]])
    assert _beyond_another(part) == pytest.approx(0)
    both = np.concatenate([crossed, part], axis=1)
    assert _adds_beyond_another(both) == pytest.approx(1)


def test_what_is_asked_keeps_its_tokens_in_an_unrelated_order() -> None:
    model = own_model(n_ctx=128)
    task = on_text(model, letters(), n_fit=16, n_held_out=8, seq_len=128)
    for elsewhere in (behind_more_text(task), *in_another_order(task)):
        asked, sources = elsewhere.run.asked, elsewhere.unrelated.sources
        assert asked in (8, 16)
        assert torch.equal(sources[-asked:], torch.arange(len(sources))[-asked:])
        assert (sources[:-asked] != torch.arange(len(sources))[:-asked]).float().mean() > 0.9


def test_text_is_moved_in_a_hybrid() -> None:
    task = on_text(bridged_model("qwen3_5"), letters(), n_fit=64, n_held_out=16, seq_len=LENGTH)
    rows = table(text_noising_rows(task, context=CONTEXT))
    moved = rows[rows["metric"] == names.NET]
    assert len(moved) == len(JUDGED) + 1
    assert np.isfinite(moved["value"]).all()


def test_the_unrelated_order_is_crossed_where_the_way_leads_to_an_order() -> None:
    task = task_of(one_layer("learned"))
    there, back = in_another_order(task)
    assert back.unrelated.crossing is None
    assert behind_more_text(task).unrelated.crossing is None
    crossing = there.unrelated.crossing
    assert crossing is not None
    # It leads to the text in that order, which goes all of it.
    np.testing.assert_allclose(
        crossing.way.measured(there.unrelated.predictions),
        crossing.way.length[:, None].repeat(3, 1),
    )
    towards = share(names.TOWARDS)(crossing.other.mean(axis=0))
    other = share(names.TOWARDS)(there.way.measured(there.unrelated.predictions).mean(axis=0))
    assert 0.1 < towards < 0.9
    assert towards == pytest.approx(other, abs=0.2)


def test_where_prefixes_of_one_length_differ_as_much_there_is_nothing_to_follow() -> None:
    """A model whose attention sees the prefix's tokens and no position of any: all that a prefix
    changes it changes by its content, and by being there."""
    here = task_of(one_layer("learned"))
    way = behind_more_text(here).way
    assert (way.noise > 0).all()  # two halves, each of prefixes of its own
    assert exceeds_noise(way, seed=0)
    blind = one_layer("none")
    with torch.no_grad():
        blind.blocks[0].attn.out.weight.zero_()  # reads nothing of any other token
    nothing = behind_more_text(task_of(blind)).way
    assert not exceeds_noise(nothing, seed=0)
    rows = table(text_interchange_rows(task_of(blind), {}, context=CONTEXT))
    of_ways = rows["metric"].isin([WAY, OVER_NOISE, names.OVER_TENTH, names.OVER_THOUSANDTH])
    assert set(rows[of_ways]["positions"]) == {"text by 8 positions", "earlier tokens"}
    assert not rows[~of_ways]["positions"].str.endswith("text by 8 positions").any()
    lengths = rows[rows["metric"] == WAY]["value"]
    np.testing.assert_allclose(lengths, 0, atol=1e-9)


def test_the_embedded_model_is_read_at_all_of_its_stream() -> None:
    task = on_text(embedded(), n_fit=30, n_held_out=20, seq_len=LENGTH)
    rows = table(text_interchange_rows(task, {}, context=CONTEXT))
    conditions = set(rows["positions"])
    assert names.noising("similarity", "earlier tokens") in conditions
    assert names.denoising("similarity", "text by 8 positions") in conditions
    assert names.noising("mean residual", "text by 8 positions") in conditions
    # 1/m is held against other trends at every site of the stream.
    nearer = rows["metric"].str.startswith("nearer than")
    assert set(rows[nearer]["site"]) == {"resid_mid", "resid_post"}
    assert set(rows[~nearer]["site"]) == {"resid_post", "attn_in"}
    assert_rows_tell_of_one_another(rows)


def test_the_same_seed_gives_the_same_numbers() -> None:
    task = on_text(one_layer("learned"), letters(), n_fit=60, n_held_out=20, seq_len=LENGTH)
    first, again = (table(text_interchange_rows(task, {}, context=CONTEXT)) for _ in range(2))
    pd.testing.assert_frame_equal(first, again)


def test_few_or_short_sequences_are_refused() -> None:
    few = on_text(embedded(), n_fit=60, n_held_out=19, seq_len=LENGTH)
    with pytest.raises(UserError, match="19 held-out sequences are too few"):
        text_interchange_rows(few, {}, context=CONTEXT)
    short = on_text(embedded(), n_fit=60, n_held_out=20, seq_len=31)
    with pytest.raises(UserError, match="31 tokens are too short to move"):
        text_interchange_rows(short, {}, context=CONTEXT)


def test_all_sequences_that_are_fitted_on_at_once_are_read_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes are fitted on the way in one pass, whose maps would grow with the square."""
    model = bridged_model("gpt2", vocab_size=257)
    task = on_text(model, letters(), n_fit=20, n_held_out=20, seq_len=LENGTH)
    sites = [Site(0, "resid_post"), Site(1, "resid_post")]

    def fitted() -> Tensor:
        seen: list[Tensor] = []

        def keep_mean(x: Tensor) -> Tensor:
            seen.append(x.mean(dim=(0, 1)))
            return x

        made_in_depth(task, {site.name: keep_mean for site in sites})  # type: ignore[dict-item]
        return torch.stack(seen)

    whole, rows = fitted(), list[int]()
    monkeypatch.setattr(query_blocks, "_CELLS", 1)
    hook = "blocks.0.attn.hook_pattern"
    # A hook of TransformerLens's would be shown all queries at once.
    handle = task.model.hook_dict[hook].register_forward_hook(
        lambda point, given, x: rows.append(x.shape[-2])
    )
    torch.testing.assert_close(fitted(), whole, atol=1e-5, rtol=1e-5)
    handle.remove()
    assert max(rows) == 16
