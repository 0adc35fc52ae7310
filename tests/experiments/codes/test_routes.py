"""Which heads read position, and by which route: in models made by hand of which that is known."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pytest
import torch

import nope_interp as ni
from experiments.codes.text_interchange import route_rows
from experiments.loaded import LoadedModel
from experiments.results import interchange as names
from experiments.results.code_ablation import SIZE_MATCHED
from experiments.results.measurements import table
from experiments.results.text_use import by_route, routes_read
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.constructions.planted.parts import silent
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import LearnedPositions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.sources import TextSource
from tests.experiments.codes.on_text import CONTEXT, on_text
from tests.paths import ROOT

LENGTH, D_VOCAB, PERIOD = 32, 12, 8
# Components of the stream: tokens, positions, a flag, and what is answered.
TOKENS, PLACES, FLAG = slice(0, 12), slice(12, 44), 44
ANSWERS = slice(45, 57)
# Scores so high that the softmax is a choice.
SURE = 50.0
# The reader is the second head; the first one attends to all alike, and writes nothing.
READER = 1
# What rounding leaves of a share.
NOTHING = 1e-5
SIZES = {"n_fit": 13 * D_VOCAB, "n_held_out": 7 * D_VOCAB, "seq_len": LENGTH}


@pytest.fixture(scope="module")
def source() -> TextSource:
    """Windows in which most tokens are those of eight places before, each with every letter put in
    another's place in turn: where all are read, the mean token is the same everywhere."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(D_VOCAB, (20, PERIOD), generator=generator)]
    for _ in range(LENGTH // PERIOD - 1):
        other = torch.randint(D_VOCAB, (20, PERIOD), generator=generator)
        kept = torch.rand((20, PERIOD), generator=generator) < 0.9
        rows.append(torch.where(kept, rows[-1], other))
    turned = (torch.cat(rows, dim=1)[:, None] + torch.arange(D_VOCAB)[:, None]) % D_VOCAB
    return TextSource(turned.flatten(), None)


def blank(n_layers: int) -> HookedTransformer:
    """Attention alone; the stream says which token stands where, and nothing is written yet."""
    config = TransformerConfig(
        n_layers,
        64,
        2,
        d_vocab=D_VOCAB,
        n_ctx=LENGTH,
        positions="learned",
        normalization="none",
        attn_only=True,
        attn_scale=1.0,
    )
    model = silent(config).eval()
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        model.W_E[:, TOKENS] = torch.eye(D_VOCAB)
        model.positions.table[:, PLACES] = torch.eye(LENGTH)
        model.W_U[ANSWERS] = 5 * torch.eye(D_VOCAB)
    return model


def copy_what_is_read(model: HookedTransformer, layer: int) -> None:
    attention = model.blocks[layer].attn
    attention.W_V[READER, TOKENS, :D_VOCAB] = torch.eye(D_VOCAB)
    attention.W_O[READER, :D_VOCAB, ANSWERS] = torch.eye(D_VOCAB)


@torch.no_grad()
def periodic() -> HookedTransformer:
    """What comes next stands seven places before: queries ask for that place, keys tell theirs."""
    model = blank(1)
    attention = model.blocks[0].attn
    asked = torch.eye(LENGTH)[: LENGTH - PERIOD + 1]
    attention.W_Q[READER, PLACES][PERIOD - 1 :] = SURE * asked
    attention.W_K[READER, PLACES] = torch.eye(LENGTH)
    copy_what_is_read(model, 0)
    return model


@torch.no_grad()
def flagged() -> HookedTransformer:
    """The tokens of six places are counted, which queries of the first layer flag.

    These attend to the first token, which alone has a value. The second layer attends to flags.
    """
    model = blank(2)
    first, second = (block.attn for block in model.blocks)
    counted = torch.full((LENGTH,), -SURE)
    counted[[2, 5, 9, 12, 17, 22]] = SURE
    first.W_Q[READER, PLACES, 0] = counted
    for weight in (first.W_K, first.W_V):
        weight[READER, PLACES, 0] = torch.eye(LENGTH)[0]
    first.W_O[READER, 0, FLAG] = 1
    second.W_Q[READER, PLACES, 0] = SURE
    second.W_K[READER, FLAG, 0] = 1
    copy_what_is_read(model, 1)
    return model


def loaded_of(model: HookedTransformer, source: TextSource) -> LoadedModel:
    spec = ModelSpec("nowhere", "cpu")
    variant = ModelVariant("small", "trained", model, None, (source,), "learned", spec)
    return LoadedModel(variant, ProbingConfig())


def assert_followed(found: pd.DataFrame, followed: Mapping[tuple[int, int, str], float]) -> None:
    """These routes of all, by layer, head and route, and no other."""
    towards = found.set_index(["layer", "head", "route"])["towards"].to_dict()
    assert towards == pytest.approx({**dict.fromkeys(towards, 0.0), **followed}, abs=NOTHING)


@pytest.mark.parametrize(
    ("make", "followed"),
    [
        (periodic, {(0, READER, "keys"): 1.0}),
        (flagged, {(0, READER, "queries"): 1.0, (1, READER, "keys"): 1.0}),
    ],
)
def test_routes_that_read_places_are_followed_and_no_others(
    source: TextSource,
    make: Callable[[], HookedTransformer],
    followed: dict[tuple[int, int, str], float],
) -> None:
    model = make()
    rows = table(route_rows(on_text(model, source, **SIZES), context=CONTEXT))
    found = routes_read(rows)
    assert_followed(found, followed)
    # Of the last layer the tokens that are asked have queries of their own place, as `periodic`'s.
    assert len(found) == (model.cfg.n_layers * 3 - 1) * model.cfg.n_heads
    assert not ((found["layer"] == model.cfg.n_layers - 1) & (found["route"] == "queries")).any()
    first = found.iloc[: len(followed)][["layer", "head", "route"]]
    assert set(first.itertuples(index=False, name=None)) == set(followed)
    assert found["net"].is_monotonic_decreasing
    np.testing.assert_allclose(found["net"], found["towards"] - found["size_matched"], atol=1e-9)
    # What tokens tell is read by values, and so the control, which may go the other way. How far a
    # draw goes depends on the processor, too, whose library gives directions of equal variation.
    again = routes_read(table(route_rows(on_text(model, source, **SIZES, seed=1), context=CONTEXT)))
    assert max(of["size_matched"].abs().max() for of in (found, again)) > 1e-3

    of = rows.set_index(["layer", "head", "positions", "metric", "control"]).sort_index()
    for row in found.to_dict("records"):
        here = of.loc[(row["layer"], row["head"], by_route(row["route"]))]
        assert row["size_matched"] == here.loc[(names.TOWARDS, SIZE_MATCHED), "value"]
        nets = (here.loc[(metric, "")] for metric in (names.NET, names.THIS_ORDER))
        net, rank = min(nets, key=lambda of: of["ci_low"]), here.loc[(names.RANK, "")]
        assert row["net"] == net["value"]
        assert (row["net_low"], row["net_high"]) == (net["ci_low"], net["ci_high"])
        # As many draws as pass together, of which none does as much.
        passes = (row["layer"], row["head"], row["route"]) in followed
        assert rank["n"] == (20 * len(found) / len(followed) if passes else 0)
        assert rank["value"] == 1 / (1 + rank["n"])
        assert row["q"] == pytest.approx(
            rank["value"] * len(found) / len(followed) if passes else 1
        )
        assert (row["q"] <= 0.05) == passes


def test_a_loaded_model_says_which_of_its_heads_read_places(source: TextSource) -> None:
    loaded = loaded_of(periodic(), source)
    assert_followed(loaded.position_routes(**SIZES), {(0, READER, "keys"): 1.0})
    with pytest.raises(UserError, match="19 held-out sequences are too few to move positions in"):
        loaded.position_routes(n_fit=100, n_held_out=19)
    with pytest.raises(UserError, match="sequences of 31 tokens are too short to move positions"):
        loaded.position_routes(n_fit=100, n_held_out=50, seq_len=31)


def test_routes_of_who_reads_no_place_no_order_or_no_text(source: TextSource) -> None:
    model = periodic()
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        model.positions.table.zero_()
    assert routes_read(table(route_rows(on_text(model, source, **SIZES), context=CONTEXT))).empty
    # Its losses with earlier tokens permuted differ by rounding.
    with pytest.raises(UserError, match="has not learned order"):
        loaded_of(model, source).position_routes(**SIZES)
    task = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    with pytest.raises(UserError, match="routes are read on text, and this model was trained on a"):
        task.position_routes()
