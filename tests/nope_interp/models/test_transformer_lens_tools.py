"""Tools written for TransformerLens run on our model, and their sums come out right."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.head_detector import detect_head
from transformer_lens.model_protocol import (
    TrainableTransformerLensModel,
    TransformerLensModel,
    TransformerLensModelWithWeights,
)
from transformer_lens.tools.analysis.logit_lens import logit_lens

from nope_interp.errors import UserError
from nope_interp.models.config import POSITIONS, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from tests.small_models import LetterTokenizer


def model(**changes: Any) -> HookedTransformer:
    """A small model in float64, its biases, gains and weights far from where they start."""
    config = TransformerConfig.from_dict(
        {"n_layers": 2, "d_model": 24, "n_heads": 3, "d_vocab": 26, "n_ctx": 16, **changes}
    )
    built = HookedTransformer(config, LetterTokenizer()).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).double())
    return built


def random_tokens(seed: int = 0, batch: int = 2) -> Tensor:
    return torch.randint(26, (batch, 10), generator=torch.Generator().manual_seed(seed))


def test_the_model_is_what_the_tools_protocols_ask_for() -> None:
    for protocol in (
        TransformerLensModel,
        TransformerLensModelWithWeights,
        TrainableTransformerLensModel,
    ):
        assert isinstance(model(), protocol)


@pytest.mark.parametrize("positions", POSITIONS)
def test_heads_mlps_embeddings_and_biases_sum_to_the_stream(positions: str) -> None:
    ours = model(positions=positions)
    _, cache = ours.run_with_cache(random_tokens())
    for layer in (1, 2):
        stream = cache["resid_post", layer - 1]
        heads = cache.stack_head_results(layer).sum(0)
        mlps = cache.decompose_resid(layer, mode="mlp", incl_embeds=False).sum(0)
        embeddings = cache["hook_embed"] + cache.cache_dict.get("hook_pos_embed", 0)
        biases = ours.accumulated_bias(layer, include_mlp_biases=False)
        torch.testing.assert_close(heads + mlps + embeddings + biases, stream)
        assert biases.abs().max() > 0.05
        whole, labels = cache.get_full_resid_decomposition(layer, return_labels=True)
        torch.testing.assert_close(whole.sum(0), stream)
        assert ("pos_embed" in labels) == (positions in ("learned", "sinusoidal"))
        torch.testing.assert_close(cache.decompose_resid(layer).sum(0), stream)


def test_the_mlps_input_is_the_sum_up_to_it() -> None:
    ours = model()
    _, cache = ours.run_with_cache(random_tokens())
    whole = cache.get_full_resid_decomposition(1, mlp_input=True)
    torch.testing.assert_close(whole.sum(0), cache["resid_mid", 1])


def test_attention_only_models_decompose_too() -> None:
    _, cache = model(attn_only=True).run_with_cache(random_tokens())
    whole = cache.get_full_resid_decomposition()
    torch.testing.assert_close(whole.sum(0), cache["resid_post", 1])


@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_a_normalized_stack_sums_to_what_the_norm_gave(normalization: str) -> None:
    _, cache = model(normalization=normalization).run_with_cache(random_tokens())
    for layer, norm in ((1, "blocks.1.ln1"), (2, "ln_final")):
        stack = cache.decompose_resid(layer)
        scaled = cache.apply_ln_to_stack(stack, layer)
        torch.testing.assert_close(scaled.sum(0), cache[f"{norm}.hook_normalized"])
        assert not torch.allclose(stack.sum(0), scaled.sum(0))


@pytest.mark.parametrize("changes", [{"normalization": "none"}, {"norm_placement": "post"}])
def test_a_stack_that_no_norm_reads_stays_as_it_is(changes: dict[str, str]) -> None:
    _, cache = model(**changes).run_with_cache(random_tokens())
    stack = cache.accumulated_resid()
    assert torch.equal(cache.apply_ln_to_stack(stack, 2), stack)


def test_biases_of_a_stream_that_is_no_sum_are_refused() -> None:
    for changes in ({"norm_placement": "post"}, {"residual": False}):
        with pytest.raises(UserError, match="biases accumulate only in a pre-norm model"):
            model(**changes).accumulated_bias(2)


@pytest.mark.parametrize("changes", [{}, {"normalization": "rms"}, {"norm_placement": "post"}])
def test_the_accumulated_stream_read_at_the_end_gives_the_logits(changes: dict[str, str]) -> None:
    ours = model(**changes)
    logits, cache = ours.run_with_cache(random_tokens())
    stack, labels = cache.accumulated_resid(apply_ln=True, incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    torch.testing.assert_close(ours.unembed(stack[-1]), logits)
    lens = logit_lens(ours, random_tokens(), positions=None)
    torch.testing.assert_close(lens.values[-1], logits)
    assert not torch.allclose(lens.values[0], logits)


def test_logit_attributions_sum_to_a_logit_difference() -> None:
    ours = model()
    with torch.no_grad():
        ours.ln_final.w.fill_(1.0)
    tokens = random_tokens(batch=1)
    logits, cache = ours.run_with_cache(tokens)
    parts = cache.logit_attrs(
        cache.decompose_resid(), tokens=torch.tensor(3), incorrect_tokens=torch.tensor(8)
    )
    # The attribution leaves the final norm's and the unembedding's biases out.
    rest = ours.ln_final.b @ (ours.W_U[:, 3] - ours.W_U[:, 8]) + ours.b_U[3] - ours.b_U[8]
    torch.testing.assert_close(parts.sum(0) + rest, logits[..., 3] - logits[..., 8])


def test_the_head_detector_scores_our_patterns() -> None:
    ours = model()
    text = "abcadbcaab"
    scores = detect_head(ours, text, "previous_token_head")
    pattern = ours.run_with_cache(ours.to_tokens(text), remove_batch_dim=True)[1]["pattern", 1]
    expected = pattern.diagonal(-1, 1, 2).sum(-1) / pattern.sum((1, 2))
    torch.testing.assert_close(scores[1], expected)

    # A head made to look at the previous token scores 9 of 10 rows: the first has none before it.
    previous = torch.eye(10).roll(-1, 1).tril().double()
    previous[0, 0] = 1

    def look_back(pattern: Tensor, hook: Any) -> Tensor:
        pattern = pattern.clone()
        pattern[:, 2] = previous
        return pattern

    with ours.hooks([("blocks.0.attn.hook_pattern", look_back)]):
        made = detect_head(ours, text, "previous_token_head")
    assert made[0, 2].item() == pytest.approx(0.9)
    assert (made[0, :2] < 0.6).all()


def test_patching_the_stream_restores_the_clean_run() -> None:
    ours = model(positions="learned")
    clean, corrupted = random_tokens(0, batch=1), random_tokens(1, batch=1)
    corrupted[:, -3:] = clean[:, -3:]
    clean_logits, cache = ours.run_with_cache(clean)

    def metric(logits: Tensor) -> Tensor:
        return logits[0, -1, 5]

    patched = patching.get_act_patch_resid_pre(ours, corrupted, cache, metric)
    assert patched.shape == (2, 10)
    plain = metric(ours(corrupted))
    # float32 store. Where both runs have the same token, the first layer's input is the same.
    torch.testing.assert_close(patched[0, -3:], plain.expand(3).float())
    assert (patched[0, :-3] - plain).abs().max() > 1e-3
    everything = ours.run_with_hooks(
        corrupted, fwd_hooks=[("blocks.1.hook_resid_pre", lambda t, hook: cache[hook.name])]
    )
    torch.testing.assert_close(everything, clean_logits)


def test_patching_patterns_and_heads_runs() -> None:
    ours = model()
    _, cache = ours.run_with_cache(random_tokens(0, batch=1))
    corrupted = random_tokens(1, batch=1)
    for patch in (
        patching.get_act_patch_attn_head_pattern_all_pos,
        patching.get_act_patch_attn_head_out_all_pos,
        patching.get_act_patch_attn_head_q_all_pos,
    ):
        effect = patch(ours, corrupted, cache, lambda logits: logits[0, -1, 5])
        assert effect.shape == (2, 3)
        assert effect.std() > 0
