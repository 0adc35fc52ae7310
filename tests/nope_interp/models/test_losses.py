"""Losses of sequences against transformers' own, in bounded memory; a bigram's by hand."""

from collections import Counter
from itertools import pairwise
from math import log
from typing import Any

import pytest
import torch

from nope_interp.errors import UserError
from nope_interp.models import losses
from nope_interp.models.config import POSITIONS
from nope_interp.models.losses import (
    bigram_losses,
    next_log_probabilities,
    sequence_losses,
    unigram_losses,
)
from nope_interp.positions.ablation import ablate_positions
from nope_interp.pretrained.bridges import wrap
from tests.huggingface import FAMILIES, HYBRIDS, bridged_model, logits_of, plain_model
from tests.small_models import model as own_model
from tests.small_models import random_tokens

TOKENS = random_tokens(batch=5, pos=20).clamp(min=4)


def labelled_losses(plain: Any, tokens: torch.Tensor) -> torch.Tensor:
    """What the plain model gives for `labels=`, one sequence after the other."""
    with torch.no_grad():
        return torch.stack([plain(row[None], labels=row[None]).loss for row in tokens])


@pytest.mark.parametrize(
    "family", [*(family for family in FAMILIES if family != "t5"), *HYBRIDS, "jamba"]
)
def test_losses_equal_the_plain_models(family: str) -> None:
    found = sequence_losses(bridged_model(family), TOKENS, batch_size=2)
    # float32 rounding in logits of a few units.
    torch.testing.assert_close(
        found, labelled_losses(plain_model(family), TOKENS), atol=1e-4, rtol=0
    )


def test_t5s_decoder_predicts_its_own_next_token() -> None:
    # `labels=` would shift the decoder's input; here the input itself is what is predicted.
    logits = logits_of(plain_model("t5"), TOKENS)
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), TOKENS[:, 1:], reduction="none"
    ).mean(dim=1)
    torch.testing.assert_close(
        sequence_losses(bridged_model("t5"), TOKENS), expected, atol=1e-4, rtol=0
    )


def test_a_capped_logit_is_capped() -> None:
    gemma = plain_model("gemma2")
    gemma.config.final_logit_softcapping = 0.5
    expected = labelled_losses(gemma, TOKENS)
    assert not torch.allclose(expected, labelled_losses(plain_model("gemma2"), TOKENS), atol=1e-3)
    torch.testing.assert_close(sequence_losses(wrap(gemma), TOKENS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", POSITIONS)
def test_ours_equals_its_own_loss(positions: str) -> None:
    built = own_model(positions=positions)
    with torch.no_grad():
        expected = torch.stack([built(row[None], return_type="loss") for row in TOKENS])
    torch.testing.assert_close(sequence_losses(built, TOKENS, batch_size=3), expected)


@pytest.mark.parametrize("family", ["llama", "gptj"])  # one without a bias, one with it
def test_only_a_few_logits_exist_at_a_time(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = bridged_model(family)
    whole = sequence_losses(built, TOKENS)
    rows, kinds = 7, 10
    monkeypatch.setattr(losses, "_KINDS", kinds)
    monkeypatch.setattr(losses, "_LOGITS", rows * kinds)
    sizes = []
    handle = built.original_model.lm_head.register_forward_hook(
        lambda module, args, logits: sizes.append(logits.numel())
    )
    pieced = sequence_losses(built, TOKENS)
    handle.remove()
    # All logits of one token are computed twice more, by the model and to compare them.
    assert max(sizes) <= rows * kinds
    assert sum(sizes) == (TOKENS[:, 1:].numel() + 2) * built.cfg.d_vocab
    # Other shapes of the same product add in another order.
    torch.testing.assert_close(pieced, whole, atol=1e-5, rtol=0)


def test_losses_see_the_ablation() -> None:
    built = bridged_model("gpt2")
    intact = sequence_losses(built, TOKENS)
    plain = plain_model("gpt2")
    with torch.no_grad():
        plain.transformer.wpe.weight.zero_()
    with ablate_positions(built) as ablation:
        ablated = sequence_losses(built, TOKENS)
        ablation.verify()
    torch.testing.assert_close(ablated, labelled_losses(plain, TOKENS), atol=1e-4, rtol=0)
    assert (ablated - intact).abs().max() > 1e-2
    assert torch.equal(sequence_losses(built, TOKENS), intact)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_next_probabilities_equal_the_plain_models(family: str) -> None:
    expected = logits_of(plain_model(family), TOKENS).log_softmax(dim=-1)[:, 7:]
    found = next_log_probabilities(bridged_model(family), TOKENS, 7)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_next_probabilities_of_our_model_are_its_logits() -> None:
    ours = own_model()
    expected = ours(TOKENS).log_softmax(dim=-1)[:, 7:]
    torch.testing.assert_close(next_log_probabilities(ours, TOKENS, 7), expected)


def test_a_bigram_is_smoothed_as_witten_and_bell_say() -> None:
    text, d_vocab = random_tokens(batch=1, pos=200)[0] % 9, 12
    asked = torch.tensor([[0, 3, 1, 11, 2, 5], [10, 4, 4, 8, 9, 9]])
    words = text.tolist()
    pairs, firsts, kinds = Counter(pairwise(words)), Counter(words[:-1]), Counter(words)

    def alone(w: int) -> float:
        return (kinds[w] + len(kinds) / d_vocab) / (len(words) + len(kinds))

    def after(v: int, w: int) -> float:
        if v not in firsts:
            return alone(w)
        followers = len({b for a, b in pairs if a == v})
        return (pairs[v, w] + followers * alone(w)) / (firsts[v] + followers)

    for v in range(d_vocab):
        assert sum(after(v, w) for w in range(d_vocab)) == pytest.approx(1)
    expected = [
        -sum(log(after(v, w)) for v, w in pairwise(row)) / (len(row) - 1) for row in asked.tolist()
    ]
    torch.testing.assert_close(bigram_losses(text, asked, d_vocab), torch.tensor(expected))


@pytest.mark.parametrize("kinds", [5, 6])
def test_what_guessers_give_sums_to_one(kinds: int) -> None:
    """Of five kinds all were seen, or one was not."""
    fit = torch.randint(5, (10, 40), generator=torch.Generator().manual_seed(0))
    asked = torch.stack([torch.zeros(kinds, dtype=torch.long), torch.arange(kinds)], dim=1)
    for given in (unigram_losses(fit, asked, kinds), bigram_losses(fit.flatten(), asked, kinds)):
        assert float((-given).exp().sum()) == pytest.approx(1, abs=1e-6)


def test_wrong_input_is_named() -> None:
    built = own_model()
    for few in (TOKENS[:, :1], TOKENS[:0]):
        with pytest.raises(UserError, match="at least one sequence of at least two tokens"):
            sequence_losses(built, few)
    with pytest.raises(UserError, match="token 99 is not in the vocabulary"):
        sequence_losses(built, torch.full((1, 4), 99))
    with pytest.raises(UserError, match="batch_size is 0"):
        sequence_losses(built, TOKENS, batch_size=0)
    with torch.no_grad():
        built.unembed.weight[0] = float("nan")
    with pytest.raises(UserError, match="NaN or infinite"):
        sequence_losses(built, TOKENS)


def test_logits_that_are_more_than_the_unembedding_are_refused() -> None:
    cohere = bridged_model("cohere")
    cohere.original_model.config.logit_scale *= 2  # which its code has read before
    with pytest.raises(UserError, match="a CohereForCausalLM's logits are not just"):
        sequence_losses(cohere, TOKENS)
