"""Attention's fast and explicit paths agree, and order shows exactly where it should."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nope_interp.models.config import POSITIONS
from tests.small_models import D_VOCAB, N_CTX, distinct_tokens, model, random_tokens


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", POSITIONS)
def test_fast_and_explicit_attention_agree(positions: str, causal: bool) -> None:
    ours = model(double=True, positions=positions, causal=causal)
    tokens = random_tokens()
    seen: list[Tensor] = []
    explicit = ours.run_with_hooks(
        tokens,
        fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: seen.append(pattern))],
    )
    # float64: the two paths differ by rounding alone.
    torch.testing.assert_close(ours(tokens), explicit, atol=1e-10, rtol=0)
    pattern = seen[0]
    torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern.sum(-1)))
    future = torch.ones(20, 20).triu(1).bool()
    assert (pattern[..., future] == 0).all() == causal
    uniform = ours.run_with_hooks(
        tokens,
        fwd_hooks=[("blocks.0.attn.hook_pattern", lambda p, hook: torch.full_like(p, 1 / 20))],
    )
    assert (uniform - explicit).abs().max() > 1e-2  # the explicit path is the one that counts


@pytest.mark.parametrize("positions", POSITIONS)
def test_both_paths_give_the_same_gradients_to_every_weight(positions: str) -> None:
    ours = model(double=True, positions=positions)
    tokens = random_tokens()
    ours(tokens, return_type="loss").backward()
    fast = {name: p.grad.clone() for name, p in ours.named_parameters()}
    ours.zero_grad()
    with ours.hooks([(lambda name: name.endswith("hook_attn_scores"), lambda s, hook: None)]):
        ours(tokens, return_type="loss").backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, fast[name], atol=1e-10, rtol=0)
        # A key bias moves all scores of a query alike, which the softmax removes; of the fused
        # bias the queries' and values' parts remain.
        assert fast[name].abs().max() > 1e-6, name


def test_hidden_scores_are_minus_infinity_and_nothing_is_nan() -> None:
    _, cache = model().run_with_cache(random_tokens())
    future = torch.ones(20, 20).triu(1).bool()
    for layer in range(2):
        assert (cache["attn_scores", layer][..., future] == -torch.inf).all()
        assert cache["attn_scores", layer][..., ~future].isfinite().all()
    assert not any(value.isnan().any() for value in cache.cache_dict.values())


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_future_changes_nothing_in_a_causal_model_and_much_in_a_bidirectional_one(
    positions: str,
) -> None:
    tokens = random_tokens()
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % D_VOCAB
    causal, bidirectional = (
        (ours(tokens) - ours(changed))[:, :12].abs().max()
        for ours in (
            model(True, positions=positions),
            model(True, positions=positions, causal=False),
        )
    )
    assert causal < 1e-10 < 1e-3 < bidirectional


@pytest.mark.parametrize("attn_only", [True, False])
@pytest.mark.parametrize("positions", POSITIONS)
def test_order_before_a_token_is_invisible_to_one_nope_layer_and_to_it_alone(
    positions: str, attn_only: bool
) -> None:
    ours = model(double=True, n_layers=1, positions=positions, attn_only=attn_only, init_scale=0.5)
    tokens = distinct_tokens(0, 20)
    last = 15
    permuted = tokens.clone()
    order = torch.randperm(last, generator=torch.Generator().manual_seed(1))
    permuted[:, :last] = tokens[:, order]
    change = (ours(tokens) - ours(permuted))[:, last:].abs().max()
    assert change < 1e-10 if positions == "none" else change > 1e-3


def test_two_causal_nope_layers_see_order() -> None:
    ours = model(double=True, init_scale=0.5)
    tokens = distinct_tokens(0, 20)
    swapped = tokens[:, [1, 0, *range(2, 20)]]
    assert (ours(tokens) - ours(swapped))[:, -1].abs().max() > 1e-3


@settings(max_examples=25)
@given(
    n_layers=st.integers(1, 3),
    n_heads=st.sampled_from([1, 2, 3]),
    pos=st.integers(1, N_CTX),
    normalization=st.sampled_from(["layer", "rms", "none"]),
    placement=st.sampled_from(["pre", "post"]),
    seed=st.integers(0, 1000),
)
def test_a_bidirectional_nope_model_is_permutation_equivariant(
    n_layers: int, n_heads: int, pos: int, normalization: str, placement: str, seed: int
) -> None:
    ours = model(
        double=True,
        n_layers=n_layers,
        n_heads=n_heads,
        causal=False,
        normalization=normalization,
        norm_placement=placement,
        seed=seed,
        init_scale=0.2,
    )
    tokens = random_tokens(seed, pos=pos)
    order = torch.randperm(pos, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(ours(tokens[:, order]), ours(tokens)[:, order])


@pytest.mark.parametrize("positions", [name for name in POSITIONS if name != "none"])
def test_a_bidirectional_model_with_positions_is_not(positions: str) -> None:
    ours = model(double=True, causal=False, positions=positions)
    tokens = distinct_tokens(0, 10)
    order = torch.arange(9, -1, -1)
    # Reversal keeps ALiBi's distances, so that only a shuffle shows its positions.
    if positions == "alibi":
        order = torch.tensor([3, 7, 0, 9, 1, 5, 2, 8, 6, 4])
    assert (ours(tokens[:, order]) - ours(tokens)[:, order]).abs().max() > 1e-3
