"""Hook points fire, are cached by name, and refuse names that match nothing; text in and out."""

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer_lens import ActivationCache

from nope_interp.errors import UserError
from nope_interp.models.config import POSITIONS
from nope_interp.models.transformer import HookedTransformer
from tests.small_models import (
    D_VOCAB,
    LetterTokenizer,
    model,
    random_tokens,
)


@pytest.mark.parametrize(
    ("positions", "activation"), list(itertools.product(POSITIONS, ["gelu", "geglu"]))
)
def test_every_hook_point_that_exists_fires(positions: str, activation: str) -> None:
    ours = model(positions=positions, activation=activation)
    ours.set_use_attn_result(True)
    _, cache = ours.run_with_cache(random_tokens())
    assert set(cache.cache_dict) == set(ours.hook_dict)
    assert ("hook_pos_embed" in cache.cache_dict) == (positions in ("learned", "sinusoidal"))
    assert ("blocks.0.attn.hook_rot_q" in cache.cache_dict) == (positions == "rotary")
    assert "blocks.0.hook_resid_mid" not in model(attn_only=True).hook_dict


def test_activations_have_the_documented_shapes() -> None:
    ours = model(positions="rotary")
    ours.set_use_attn_result(True)
    _, cache = ours.run_with_cache(random_tokens())
    stream, heads, scores = (3, 20, 24), (3, 20, 3, 8), (3, 3, 20, 20)
    for name, value in cache.cache_dict.items():
        expected = {
            "hook_in": stream,
            "hook_scale": (3, 20, 1),
            "hook_cos": (1, 20, 4),
            "hook_sin": (1, 20, 4),
            "hook_attn_scores": scores,
            "hook_pattern": scores,
            "hook_result": (3, 20, 3, 24),
            "hook_pre": (3, 20, 96),
            "hook_post": (3, 20, 96),
        }.get(name.split(".")[-1], heads if ".attn." in name else stream)
        assert value.shape == expected, name


@pytest.mark.parametrize(
    "name",
    ["hook_embed", "blocks.0.hook_resid_pre", "blocks.1.attn.hook_v", "blocks.0.mlp.hook_pre"],
)
def test_a_hook_replaces_what_it_returns_and_may_write_in_place(name: str) -> None:
    ours, tokens = model(), random_tokens()

    def zero_in_place(tensor: Tensor, hook: Any) -> Tensor:
        tensor[:] = 0
        return tensor

    replaced = ours.run_with_hooks(tokens, fwd_hooks=[(name, lambda t, hook: torch.zeros_like(t))])
    with torch.no_grad():
        written = ours.run_with_hooks(tokens, fwd_hooks=[(name, zero_in_place)])
    assert torch.equal(replaced, written)
    assert not torch.equal(replaced, ours(tokens))


def first_zeroed(tensor: Tensor, hook: Any) -> Tensor:
    tensor[:, 0] = 0
    return tensor


def first_replaced(tensor: Tensor, hook: Any) -> Tensor:
    return torch.cat((torch.zeros_like(tensor[:, :1]), tensor[:, 1:]), dim=1)


@pytest.mark.parametrize("changes", [{"normalization": "none"}, {"norm_placement": "post"}])
def test_what_attention_reads_may_be_written_in_place(changes: dict[str, str]) -> None:
    """Without a norm in between it is the stream itself, which stays as it is."""
    ours, tokens, name = model(**changes), random_tokens(), "blocks.1.attn.hook_in"
    with torch.no_grad():
        replaced = ours.run_with_hooks(tokens, fwd_hooks=[(name, first_replaced)])
        written = ours.run_with_hooks(tokens, fwd_hooks=[(name, first_zeroed)])
    assert torch.equal(replaced, written)


def test_what_is_remembered_is_not_written_into() -> None:
    ours, tokens = model(), random_tokens()
    hooks = [("blocks.1.hook_resid_pre", first_zeroed)]
    with torch.no_grad():
        intact = ours(tokens)
        with ours.remembered_below(1):
            for _ in range(2):
                changed = ours.run_with_hooks(tokens, fwd_hooks=hooks)
                assert torch.equal(ours(tokens), intact)
    assert not torch.equal(changed, intact)


def test_positions_in_the_embedding_may_be_written_in_place() -> None:
    learned = model(positions="learned")

    def zero_in_place(tensor: Tensor, hook: Any) -> Tensor:
        tensor[:] = 0
        return tensor

    with torch.no_grad():
        silenced = learned.run_with_hooks(
            random_tokens(), fwd_hooks=[("hook_pos_embed", zero_in_place)]
        )
        assert not torch.equal(silenced, learned(random_tokens()))
        learned.positions.table.zero_()
        assert torch.equal(silenced, learned(random_tokens()))


def test_a_cache_is_transformer_lenss() -> None:
    ours, tokens = model(), random_tokens(batch=1)
    _, cache = ours.run_with_cache(tokens, remove_batch_dim=True)
    assert isinstance(cache, ActivationCache)
    assert cache["pattern", -1].shape == (3, 20, 20)
    _, plain = ours.run_with_cache(tokens, return_cache_object=False)
    assert isinstance(plain, dict)
    assert torch.equal(plain["blocks.1.attn.hook_pattern"][0], cache["pattern", 1])


@pytest.mark.parametrize(
    "wanted",
    [
        "blocks.1.hook_resid_post",
        ["blocks.1.hook_resid_post"],
        ("blocks.1.hook_resid_post",),
        lambda name: name == "blocks.1.hook_resid_post",
    ],
)
def test_names_filter_takes_a_name_names_or_a_function(wanted: Any) -> None:
    _, cache = model().run_with_cache(random_tokens(), names_filter=wanted, return_type=None)
    assert list(cache.cache_dict) == ["blocks.1.hook_resid_post"]


def test_names_that_match_nothing_are_refused() -> None:
    ours, tokens = model(), random_tokens()
    near = "unknown hook point 'blocks.0.hook_resid_pst': did you mean 'blocks.0.hook_resid_post'?"
    for attempt in (
        lambda: ours.run_with_cache(tokens, names_filter="blocks.0.hook_resid_pst"),
        lambda: ours.run_with_cache(tokens, names_filter=["hook_embed", "blocks.0.hook_resid_pst"]),
        lambda: ours.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_resid_pst", print)]),
        lambda: ours.run_with_hooks(tokens, bwd_hooks=[("blocks.0.hook_resid_pst", print)]),
        lambda: ours.add_hook("blocks.0.hook_resid_pst", print),
    ):
        with pytest.raises(UserError) as caught:
            attempt()
        assert near in str(caught.value)
    for attempt in (
        lambda: ours.run_with_cache(tokens, names_filter=lambda name: "nothing" in name),
        lambda: ours.run_with_hooks(tokens, fwd_hooks=[(lambda name: "nothing" in name, print)]),
    ):
        with pytest.raises(UserError, match="the filter matches no hook point"):
            attempt()
    with pytest.raises(UserError, match=r"unknown hook point 'blocks.0.attn'"):
        ours.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn", print)])
    with pytest.raises(UserError, match="remove_batch_dim needs a single sequence, not 3"):
        ours.run_with_cache(tokens, remove_batch_dim=True)


def test_head_results_fire_only_when_asked_for() -> None:
    ours, tokens = model(double=True), random_tokens()
    name = "blocks.0.attn.hook_result"
    assert name not in ours.run_with_cache(tokens)[1].cache_dict
    with pytest.raises(UserError, match=r"cannot fire: call model.set_use_attn_result\(True\)"):
        ours.run_with_cache(tokens, names_filter=name)
    plain = ours(tokens)
    ours.set_use_attn_result(True)
    logits, cache = ours.run_with_cache(tokens, names_filter=[name, "blocks.0.hook_attn_out"])
    torch.testing.assert_close(logits, plain)
    torch.testing.assert_close(
        cache["result", 0].sum(2) + ours.blocks[0].attn.b_O, cache["attn_out", 0]
    )


def test_hooks_are_gone_after_a_run_even_one_that_failed() -> None:
    ours, tokens = model(), random_tokens()
    plain = ours(tokens)

    def fail(tensor: Tensor, hook: Any) -> None:
        raise RuntimeError("the hook's own")

    with pytest.raises(RuntimeError, match="the hook's own"):
        ours.run_with_hooks(tokens, fwd_hooks=[("hook_embed", fail)])
    assert torch.equal(ours(tokens), plain)


def test_gradients_can_be_cached_too() -> None:
    ours, tokens = model(double=True), random_tokens()
    _, cache = ours.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    gradient = cache.cache_dict["ln_final.hook_normalized_grad"]
    probabilities = (cache["ln_final.hook_normalized"] @ ours.W_U + ours.b_U).softmax(-1)
    wrong = probabilities[:, :-1] - F.one_hot(tokens[:, 1:], D_VOCAB)
    torch.testing.assert_close(gradient[:, :-1], wrong @ ours.W_U.T / (3 * 19))


def test_text_goes_in_and_out_through_the_tokenizer() -> None:
    ours = HookedTransformer(model().config, tokenizer=LetterTokenizer())
    assert ours.to_tokens("abc").tolist() == [[0, 1, 2]]
    assert ours.to_tokens(["abc", "bca"]).tolist() == [[0, 1, 2], [1, 2, 0]]
    assert ours.to_str_tokens("abc") == ["a", "b", "c"]
    assert ours.to_str_tokens(torch.tensor([[2, 0]])) == ["c", "a"]
    assert ours.to_single_token("c") == 2
    assert torch.equal(ours.tokens_to_residual_directions("c"), ours.W_U[:, 2])
    assert torch.equal(ours.tokens_to_residual_directions(torch.tensor([[2]])), ours.W_U[:, 2])
    pair = torch.tensor([[2, 0]])
    assert torch.equal(ours.tokens_to_residual_directions(pair), ours.W_U.T[pair])


def test_text_that_cannot_be_used_is_refused() -> None:
    ours = HookedTransformer(model().config, tokenizer=LetterTokenizer())
    with pytest.raises(UserError, match="the texts have 1 to 2 tokens: cut them to one length"):
        ours.to_tokens(["a", "ab"])
    for empty in ("", [], ["a", ""]):
        with pytest.raises(UserError, match="there is no text"):
            ours.to_tokens(empty)
    with pytest.raises(UserError, match="'ab' is 2 tokens"):
        ours.to_single_token("ab")
    with pytest.raises(UserError, match="this model has no tokenizer"):
        model().to_tokens("abc")


def test_cfg_follows_the_model_where_it_goes() -> None:
    ours = model()
    assert (ours.cfg.device, ours.cfg.dtype) == ("cpu", torch.float32)
    assert ours.double().cfg.dtype == torch.float64
    assert ours.to("meta").cfg.device == "meta"


def test_a_copy_and_a_state_dict_give_the_same_logits() -> None:
    ours, tokens = model(positions="t5"), random_tokens()
    other = model(positions="t5", seed=1)
    assert not torch.equal(other(tokens), ours(tokens))
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(tokens), ours(tokens))
    duplicate = copy.deepcopy(ours)
    duplicate.set_use_attn_result(True)
    assert torch.equal(copy.deepcopy(ours)(tokens), ours(tokens))
    assert not ours.cfg.use_attn_result
