"""What heads lose with frequencies, against a model that runs without them."""

from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange

from experiments.papers.barbero2024 import removal
from experiments.papers.barbero2024.removal import read_removed, removed
from nope_interp.constructions.barbero import positional_head, rotary_frequencies, strength_needed
from nope_interp.hooked_model import HookedModel
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import layer_positions
from nope_interp.sites import pattern_hook
from nope_interp.streams import read_at
from tests.huggingface import bridged_model

SIZES: dict[str, Any] = {"n_layers": 2, "d_model": 32, "n_heads": 2, "d_vocab": 60, "n_ctx": 40}
PERIOD = 16


@pytest.fixture(scope="module")
def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(60, (6, 40), generator=generator)
    once = torch.randint(60, (6, PERIOD), generator=generator)
    return text, torch.cat((text[:, :3], once, once), dim=1)


def read(model: HookedModel, tokens: tuple[torch.Tensor, torch.Tensor]) -> dict[str, np.ndarray]:
    return read_removed(model, layer_positions(model), *tokens, PERIOD, 0)


def dimensions(rotated: int) -> list[list[int]]:
    """None, those of the highest quarter of the frequencies, and those of the lowest quarter."""
    first = np.arange(rotated // 2)
    quarter = rotated // 8
    chosen = [first[:0], first[:quarter], first[len(first) - quarter :]]
    return [[*some.tolist(), *(some + rotated // 2).tolist()] for some in chosen]


@pytest.mark.parametrize("family", ["own", "gemma3"])  # windows, and heads that share keys
def test_removed_is_what_a_layer_does_without_these_dimensions_of_its_queries(
    tokens: tuple[torch.Tensor, torch.Tensor], family: str
) -> None:
    own = TransformerConfig(**SIZES, positions="rotary", init_scale=0.5)
    model: HookedModel = HookedTransformer(own).eval() if family == "own" else bridged_model(family)
    found = read(model, tokens)
    for layer, positions in enumerate(layer_positions(model)):
        assert positions.rotary_dims is not None
        for state, columns in enumerate(dimensions(positions.rotary_dims)):

            def without(queries: torch.Tensor, hook: object) -> torch.Tensor:
                queries = queries.clone()
                queries[..., columns] = 0  # noqa: B023
                return queries

            for of, first, metrics in (
                (tokens[0], 8, {"previous_token": 1, "diagonal": 0}),
                (tokens[1], 3 + PERIOD, {"induction": PERIOD - 1, "duplicate_token": PERIOD}),
            ):
                with model.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_rot_q", without)]):
                    [[pattern]] = read_at(model, of, {pattern_hook(layer): torch.clone}).values()
                queries = torch.arange(first, of.shape[1])
                others = pattern[..., 1:].sum(-1)
                for metric, back in metrics.items():
                    on_key = pattern[:, :, queries, queries - back]
                    row = removal._METRICS.index(metric)
                    np.testing.assert_allclose(
                        found["on_target"][row, state, :, layer],
                        (on_key / others[..., queries]).mean(-1),
                        atol=2e-6,
                    )
                    if not columns:
                        plain = on_key.mean(dim=(0, 2))
                        np.testing.assert_allclose(found["weight"][row, layer], plain, atol=2e-6)


def test_the_control_deals_the_same_numbers_to_other_keys_that_are_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    part = torch.randn(2, 3, 20, 20, generator=generator)
    causal = torch.ones(20, 20, dtype=torch.bool).tril()
    seen = causal & ~torch.ones(20, 20, dtype=torch.bool).tril(-6)
    dealt = removal._elsewhere(part, seen, generator)
    for query in range(20):
        of = part[..., query, seen[query]].sort(-1).values
        assert torch.equal(dealt[..., query, seen[query]].sort(-1).values, of)
    kept = (dealt == part)[..., 10:, :][..., seen[10:]].float().mean()
    assert kept == pytest.approx(1 / 6, abs=0.05)  # one key of six is the right one again


def built(offset: int) -> HookedTransformer:
    """One head with a fixed offset that uses the highest quarter alone, beside random ones."""
    high = TransformerConfig(**SIZES, positions="rotary", rotary_kept=0.25)
    strength = strength_needed(0.2, 40, offset, rotary_frequencies(high))
    model = HookedTransformer(TransformerConfig(**SIZES, positions="rotary"))
    model.load_state_dict(positional_head(high, offset, strength).float().state_dict())
    return model


@pytest.mark.parametrize(("offset", "group"), [(1, "previous-token"), (0, "diagonal")])
def test_a_head_built_on_the_highest_frequencies_needs_them_alone(
    tokens: tuple[torch.Tensor, torch.Tensor], offset: int, group: str
) -> None:
    every = read(built(offset), tokens)
    row = removal._METRICS.index({0: "diagonal", 1: "previous_token"}[offset])
    intact, highest, lower, wrong, _ = every["on_target"][row, :, :, 0, 0].mean(axis=1)
    assert intact > 0.8
    # Nothing is left of its scores: all keys but the first weigh alike.
    assert highest == pytest.approx(np.mean([1 / m for m in range(8, 40)]), abs=1e-6)
    assert lower == pytest.approx(intact, abs=1e-6)
    found = removed(every, "built")
    claim = found.claims[f"removed-{group}"]
    assert claim.ci_low > 0
    assert claim.value == pytest.approx((wrong - highest) / intact)
    (figure,) = found.figures
    (panel,) = figure.panels
    assert panel.title == f"{group}: L0H0"
    lost = next(s for s in panel.series if s.name == "removed").y
    np.testing.assert_allclose(lost, [1 - highest / intact, 0], atol=1e-6)
    assert len(found.notes) == 2  # two groups have no heads


def test_a_loss_below_nothing_does_not_make_a_group_need_the_others() -> None:
    lost = np.array([[0.1, 0.1, 0.1, 0.6], [0.12, 0.0, 0.1, 0.7], [0.11, 0.2, 0.1, 0.8]])
    assert removal._carried(lost, "highest quarter").value == pytest.approx(0.01)
    assert removal._carried(lost, "lowest quarter").value == pytest.approx(-0.61)


def test_heads_are_of_the_first_group_whose_label_they_earn() -> None:
    weight = np.array(
        [[0.5, 0.0, 0.0, 0.0], [0.0, 0.31, 0.29, 0.0], [0.9, 0.0, 0.41, 0.0], [0, 0, 0, 0.5]]
    )[:, None]
    assert removal._heads(weight, np.zeros((2, 1, 4))) == {
        "previous-token": [(2, 0, 2)],
        "diagonal": [(3, 0, 3)],
        "content": [(0, 0, 0), (1, 0, 1)],
    }


def test_a_head_that_looks_so_far_back_whatever_stands_there_matches_no_content(
    tokens: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """It has the label of a duplicate-token head, since tokens come twice so far apart."""
    config = TransformerConfig(**SIZES, positions="rotary", rotary_base=10.0)
    strength = strength_needed(0.3, 40, PERIOD, rotary_frequencies(config))
    model = positional_head(config, PERIOD, strength).float()
    found = read(model, tokens)
    row = removal._METRICS.index("duplicate_token")
    assert found["weight"][row, 0, 0] > 0.3
    assert found["unrepeated"][row, 0, 0] == pytest.approx(found["weight"][row, 0, 0], abs=0.01)
    assert removed(found, "built").claims == {}
    of_content = {**found, "unrepeated": np.zeros_like(found["unrepeated"])}
    assert set(removed(of_content, "built").claims) == {"removed-content"}


def test_quarters_are_of_the_frequencies_that_turn() -> None:
    """Of p-RoPE's the lowest ones stand still: they match content, and are no frequencies."""
    config = TransformerConfig(**SIZES, positions="rotary", rotary_kept=0.5)
    (layer, _) = layer_positions(HookedTransformer(config))
    assert (layer.rotary_dims, layer.turning) == (16, 8)
    reader = removal._Reader(layer, 40, ("diagonal",), PERIOD, 0)
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 3, 40, 2, 16, generator=generator)
    reader.meet(queries, keys)
    for part, (first, second) in zip(reader.parts[1:], ((0, 8), (3, 11)), strict=True):
        own = queries[..., [first, second]].float(), keys[..., [first, second]].float()
        torch.testing.assert_close(part, torch.einsum("bqhd,bkhd->bhqk", *own))


def test_a_layer_whose_scores_hold_more_than_its_products_is_left_out(
    tokens: tuple[torch.Tensor, torch.Tensor],
) -> None:
    model = HookedTransformer(TransformerConfig(**SIZES, positions="rotary", init_scale=0.5)).eval()

    def capped(scores: torch.Tensor, hook: object) -> torch.Tensor:
        return torch.where(torch.isfinite(scores), 0.5 * torch.tanh(scores / 0.5), scores)

    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_attn_scores", capped)]):
        every = read_removed(model, layer_positions(model), *tokens, PERIOD, 0)
    found = every["on_target"]
    assert np.isfinite(found[:, :, :, 0]).all()
    assert np.isnan(found[:, :, :, 1]).all()
    assert every["unread"].tolist() == [1]
    none = {name: np.full_like(every[name], np.nan) for name in ("on_target", "weight")}
    nothing = removed({**every, **none}, "capped")
    assert nothing.claims == {}
    told = "No frequencies are removed in layer 1 of capped: its weights there are not the softmax"
    assert any(note.startswith(told) for note in nothing.notes)


def test_a_head_that_prefers_no_frequencies_needs_none_more_than_others(
    tokens: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Its score is spread over all of them alike: a quarter stands against as many."""
    n_heads, d_head = SIZES["n_heads"], SIZES["d_model"] // SIZES["n_heads"]
    positions = layer_positions(HookedTransformer(TransformerConfig(**SIZES, positions="rotary")))
    generator = torch.Generator().manual_seed(0)
    made = removal._Reader(positions[0], tokens[1].shape[1], removal._ON_REPEATED, PERIOD, 0)
    for _ in range(8):
        keys = torch.randn(16, tokens[1].shape[1], n_heads, d_head, generator=generator)
        queries = 2.0 * keys.roll(PERIOD, dims=1)  # what a duplicate-token head looks for
        made.meet(queries, keys)
        made.read(removal._attention(made.parts[0], positions[0].sees(tokens[1].shape[1])))
    read = np.full((4, 5, 128, 1, n_heads), np.nan)
    read[:2, :, :, 0] = made.result()
    weight = np.full((4, 1, n_heads), np.nan)
    weight[:2, 0] = np.concatenate(made.weight, axis=1).mean(axis=1)
    assert weight[1].mean() > 0.5
    parts = {"on_target": read, "weight": weight, "unrepeated": np.zeros((2, 1, n_heads))}
    found = removed({**parts, "unread": np.array([], dtype=int)}, "equal")
    claim = found.claims["removed-content"]
    assert claim.ci_low < 0.02
    assert abs(claim.value) < 0.05


def test_an_interval_knows_that_the_intact_weight_is_measured_too() -> None:
    """Of a head that loses the same share in every sequence nothing is unsure."""
    intact = np.random.default_rng(0).normal(0.8, 0.1, 32)
    states = np.stack([intact, 0.45 * intact, 0.9 * intact, intact, intact])
    on_target = rearrange(states, "state sequence -> 1 state sequence 1 1")
    lost = removal._lost(on_target, [(0, 0, 0)])
    np.testing.assert_allclose(lost, np.tile([0.55, 0.1, 0, 0], (32, 1)), atol=1e-12)
