"""Streams against `run_with_cache`, on our model and on bridges."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from nope_interp import query_blocks
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import next_log_probabilities, sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.bridges import wrap
from nope_interp.sites import RESIDUAL_SITES, hook_name
from nope_interp.streams import is_finite, read_at, run_trunk, stream
from tests import typecheck
from tests.huggingface import bridged_model, tiny_gemma3, tiny_gpt2


def bridge(model: Any) -> Any:
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)


@pytest.fixture(params=["ours", "gpt2", "gemma3"])
def model(request: pytest.FixtureRequest, tiny_model: Any) -> Any:
    if request.param == "ours":
        return tiny_model
    return bridge(tiny_gpt2() if request.param == "gpt2" else tiny_gemma3())


def test_streamed_statistics_equal_cache_and_numpy(model: Any, tiny_tokens: torch.Tensor) -> None:
    names = [hook_name(layer, site) for layer in range(2) for site in RESIDUAL_SITES]
    names += [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    sums: dict[str, Any] = defaultdict(float)

    def add(activations: torch.Tensor, name: str) -> None:
        sums[name] = sums[name] + activations.double().sum(0).numpy()

    stream(model, tiny_tokens, {name: partial(add, name=name) for name in names}, batch_size=4)
    _, cache = model.run_with_cache(tiny_tokens, names_filter=names)
    for name in names:
        expected = np.sum(cache[name].double().numpy(), axis=0)
        # float32 forward passes over batches of 4 and of 6 add up in another order.
        np.testing.assert_allclose(sums[name], expected, rtol=1e-4, atol=1e-5)


def test_batches_come_in_order_and_whole(tiny_model: Any, tiny_tokens: torch.Tensor) -> None:
    seen: list[torch.Tensor] = []
    stream(tiny_model, tiny_tokens, {"hook_embed": lambda x: seen.append(x.clone())}, batch_size=4)
    assert [len(batch) for batch in seen] == [4, 2]
    assert torch.equal(torch.cat(seen), tiny_model.W_E[tiny_tokens])


def test_trunk_computes_no_logits(model: Any, tiny_tokens: torch.Tensor) -> None:
    calls = []
    unembed = getattr(model, "original_model", model)
    unembed = unembed.lm_head if hasattr(unembed, "lm_head") else unembed.unembed
    handle = unembed.register_forward_hook(lambda *args: calls.append(1))
    run_trunk(model, tiny_tokens)
    assert calls == []
    model(tiny_tokens)  # the positive control: the hook does see logits being made
    assert calls == [1]
    handle.remove()


def test_stream_leaves_no_hooks_and_no_gradients(
    tiny_model: Any, tiny_tokens: torch.Tensor
) -> None:
    needs_gradient = []
    stream(
        tiny_model, tiny_tokens, {"hook_embed": lambda x: needs_gradient.append(x.requires_grad)}
    )
    assert needs_gradient == [False]
    assert not any(point.has_hooks() for point in tiny_model.hook_dict.values())


def test_unknown_hook_offers_the_nearest(tiny_model: Any, tiny_tokens: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"did you mean 'blocks.1.hook_resid_post'"):
        stream(tiny_model, tiny_tokens, {"blocks.1.hook_residpost": print})
    with pytest.raises(UserError, match=r"did you mean 'resid_post'"):
        hook_name(0, "resid_pots")


def test_an_end_that_nobody_listens_to_is_refused(
    tiny_model: Any, tiny_tokens: torch.Tensor
) -> None:
    """Every pass would run to the last layer."""
    first = hook_name(0, "resid_post")
    with pytest.raises(UserError, match=rf"unknown listener to end after .*did you mean '{first}'"):
        stream(tiny_model, tiny_tokens, {first: lambda x: None}, until=first.removesuffix("t"))


def test_silent_hook_is_an_error(tiny_tokens: torch.Tensor) -> None:
    rotary = bridge(tiny_gemma3())
    silent = "hook_pos_embed"  # rotary models list it, but have nothing to put in it
    with pytest.raises(UserError, match="never fired"):
        stream(rotary, tiny_tokens, {silent: lambda x: None})


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_activations_name_hook_and_batch(
    tiny_model: Any, tiny_tokens: torch.Tensor, poison: float
) -> None:
    tokens = tiny_tokens.clone()
    tokens[tokens == 7] = 8
    tokens[5, 3] = 7  # in the second batch of four
    with torch.no_grad():
        tiny_model.W_E[7] = poison
    with pytest.raises(
        UserError, match=r"blocks\.0\.hook_resid_pre, batch 1, hold NaN or infinite"
    ):
        stream(tiny_model, tokens, {hook_name(0, "resid_pre"): lambda x: None}, batch_size=4)


@pytest.mark.parametrize("name", ["ours", "gpt2", "opt"])
def test_a_model_that_drops_activations_at_random_is_refused(
    name: str, tiny_config: TransformerConfig, tiny_tokens: torch.Tensor
) -> None:
    config = replace(tiny_config, dropout=0.1)
    built: Any = HookedTransformer(config) if name == "ours" else bridged_model(name)
    tokens, hook = tiny_tokens.clamp(min=4, max=40), hook_name(0, "resid_pre")
    stream(built.eval(), tokens, {hook: lambda x: None})
    (built if name == "ours" else built.original_model).train()
    try:
        for read in (
            lambda: stream(built, tokens, {hook: lambda x: None}),
            lambda: sequence_losses(built, tokens),
            lambda: next_log_probabilities(built, tokens, 3),
        ):
            with pytest.raises(UserError, match=r"leaves activations out at random: call eval\(\)"):
                read()
    finally:
        built.eval()


def test_a_model_in_training_mode_that_drops_nothing_is_read(
    tiny_model: HookedTransformer, tiny_tokens: torch.Tensor
) -> None:
    wanted = sequence_losses(tiny_model, tiny_tokens)
    assert torch.equal(sequence_losses(tiny_model.train(), tiny_tokens), wanted)
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    still = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)
    assert still.summary_first_dropout > 0  # of a head that a language model has not
    bridge: Any = wrap(GPT2LMHeadModel(still).eval())
    wanted = sequence_losses(bridge, tiny_tokens)
    assert torch.equal(sequence_losses(bridge.train(), tiny_tokens), wanted)


def test_tokens_out_of_vocabulary_are_named(model: Any, tiny_tokens: torch.Tensor) -> None:
    tokens = tiny_tokens.clone()
    tokens[2, 3] = 1000
    with pytest.raises(UserError, match="token 1000 is not in the vocabulary"):
        stream(model, tokens, {hook_name(0, "resid_pre"): lambda x: None})


def test_what_is_no_tensor_of_tokens_is_refused(
    tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for tokens in (torch.zeros(5, dtype=torch.long), torch.zeros(2, 5), np.zeros((2, 5), int), [1]):
        with pytest.raises(UserError, match="give a tensor of whole numbers"):
            stream(tiny_model, tokens, {})
    for dtype in (torch.uint16, torch.int16, torch.uint8, torch.bool):
        with pytest.raises(UserError, match=r"whole numbers \(torch.int64 or torch.int32\)"):
            stream(bridge(tiny_gpt2()), torch.zeros(2, 5, dtype=dtype), {})
    with pytest.raises(UserError, match="hold no tokens: give at least one"):
        stream(bridge(tiny_gpt2()), torch.zeros(2, 0, dtype=torch.long), {})
    with pytest.raises(UserError, match=r"batch_size is 2\.5"):
        stream(tiny_model, torch.zeros(2, 5, dtype=torch.long), {}, batch_size=2.5)


@pytest.mark.parametrize("letter", ["q", "k", "v"])
def test_keys_and_values_of_a_latent_vector_come_whole(letter: str) -> None:
    """DeepSeek's have heads before positions, here as many as a block has queries."""
    config = DeepseekV2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=None,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=4,
        first_k_dense_replace=1,
    )
    model = wrap(DeepseekV2ForCausalLM(config).eval())
    tokens = torch.randint(50, (2, 32), generator=torch.Generator().manual_seed(0))
    name, seen = f"blocks.0.attn.hook_{letter}", list[torch.Tensor]()
    _, cache = model.run_with_cache(tokens, names_filter=name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query_blocks, "_CELLS", 1)
        stream(model, tokens, {name: lambda x: seen.append(x.clone())})
    torch.testing.assert_close(seen, [cache[name]])


@pytest.mark.parametrize("n_heads", [2, 16])
def test_hooks_that_have_heads_before_positions_come_whole(n_heads: int) -> None:
    """Queries of many tokens are computed in blocks, which are no blocks of theirs."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=60,
        hidden_size=4 * n_heads,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads,
        head_dim=4,
        max_position_embeddings=256,
    )
    built = wrap(Qwen3ForCausalLM(config).eval())
    tokens = torch.randint(60, (64, 256))
    names = [f"blocks.0.attn.hook_{each}_normed" for each in "qk"] + [hook_name(0, "attn_out")]
    names = [name for name in names if name in built.hook_dict]
    assert len(names) == 3
    one, many = (
        read_at(built, tokens, dict.fromkeys(names, torch.clone), batch_size=size)
        for size in (2, 64)
    )
    for name in names:
        torch.testing.assert_close(torch.cat(many[name]), torch.cat(one[name]))
    assert many[names[0]][0].shape == (64, n_heads, 256, 4)


class OfYours(HookedRootModule):
    """What TransformerLens's interface asks of a model, and nothing of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.cfg = SimpleNamespace(d_model=8, d_vocab=20, n_layers=1, n_heads=1, n_ctx=512)
        self.tokenizer, self.embed = None, nn.Embedding(20, 8)
        block = nn.Module()
        block.attn, block.hook_resid_post = nn.Linear(8, 8), HookPoint()
        self.blocks = nn.ModuleList([block])
        self.setup()

    def forward(self, tokens: torch.Tensor, return_type: str | None = None) -> torch.Tensor:
        (block,) = self.blocks
        return block.hook_resid_post(block.attn(self.embed(tokens)))

    def to_tokens(self, text: str) -> torch.Tensor:
        raise NotImplementedError


def test_a_model_of_ones_own_is_read_at_any_length() -> None:
    model = OfYours().eval()
    assert isinstance(model, HookedModel)
    tokens = torch.randint(20, (32, 512))
    (found,) = read_at(model, tokens, {hook_name(0, "resid_post"): torch.clone})[
        hook_name(0, "resid_post")
    ]
    assert torch.equal(found, model(tokens))


def test_what_is_not_known_of_a_model_of_ones_own_is_refused() -> None:
    model, tokens = OfYours().eval(), torch.randint(20, (4, 8))
    with pytest.raises(UserError, match="how a OfYours makes its predictions is not known here"):
        sequence_losses(model, tokens)


def test_listener_errors_gain_context(tiny_model: Any, tiny_tokens: torch.Tensor) -> None:
    def refuse(activations: torch.Tensor) -> None:
        raise ValueError("too flat")

    with pytest.raises(UserError, match=r"hook_embed, batch 0: too flat"):
        stream(tiny_model, tiny_tokens, {"hook_embed": refuse})


@pytest.mark.filterwarnings("error")
def test_what_may_be_trained_is_looked_at_without_a_warning() -> None:
    trained = torch.ones(2, 3, requires_grad=True)
    assert is_finite(trained, "blocks.0.hook_resid_post")
    assert not is_finite(trained / 0, "blocks.0.hook_resid_post")
