"""Answers filled in at blanks, with and without the causal mask."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.registry import make_answer_task
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.config import TrainingConfig
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.train import train

REVERSAL = make_answer_task("reversal", training_lengths=range(2, 6), test_lengths=())
ADDITION = make_answer_task("zuo-addition", training_lengths=range(2, 3), test_lengths=())


def examples_of(task: AnswerTask, length: int, n: int = 40) -> Examples:
    return task.examples(n, length, torch.Generator().manual_seed(0), split="validation")


def config_for(task: AnswerTask, *, causal: bool, seed: int = 0) -> TransformerConfig:
    # A large spread, so that a model makes much of what it sees.
    return TransformerConfig(
        2, 16, 2, d_vocab=task.d_vocab, n_ctx=24, causal=causal, init_scale=0.3, seed=seed
    )


def test_the_answer_its_end_and_the_padding_are_hidden_and_the_answer_is_asked_for() -> None:
    examples = examples_of(ADDITION, 2)
    masking = AnswerMasking.of(ADDITION)
    hidden = masking.hidden(examples.tokens, examples.answer)
    asked = masking.asked(examples.tokens, examples.answer)
    assert len(set(examples.length.tolist())) == 2  # sums of two and of three digits
    for row, tokens, wanted, (prompt, answer) in zip(
        hidden, examples.tokens, asked, ADDITION.text(examples), strict=True
    ):
        shown = 1 + len(prompt)
        assert ADDITION.tokenizer.decode(row[1:shown].tolist()) == prompt
        assert set(row[shown:].tolist()) == {ADDITION.tokenizer.begin_id}
        assert ADDITION.tokenizer.decode(tokens[wanted].tolist()) == answer


def test_the_loss_is_that_of_each_token_at_its_own_place() -> None:
    examples = examples_of(ADDITION, 2, n=6)
    masking = AnswerMasking.of(ADDITION)
    model = HookedTransformer(config_for(ADDITION, causal=False))
    losses = []
    with torch.no_grad():
        logits = model(masking.hidden(examples.tokens, examples.answer))
        for i, (prompt, answer) in enumerate(ADDITION.text(examples)):
            places = range(1 + len(prompt), 1 + len(prompt) + len(answer))
            losses += [
                F.cross_entropy(logits[i, place], examples.tokens[i, place]) for place in places
            ]
        found = masking.loss(model, examples.tokens, examples.answer)
    torch.testing.assert_close(found, torch.stack(losses).mean())


def test_an_answer_is_right_where_every_blank_is() -> None:
    examples = examples_of(REVERSAL, 2, n=60)
    masking = AnswerMasking.of(REVERSAL)
    model = HookedTransformer(config_for(REVERSAL, causal=True))
    with torch.no_grad():
        given_at = model(masking.hidden(examples.tokens, examples.answer)).argmax(dim=-1)
    # What the model says becomes the answer of every second example.
    tokens = examples.tokens.clone()
    tokens[::2, 4:] = given_at[::2, 4:]
    changed = Examples(tokens, examples.prompt_length, examples.length)
    right = exact_matches(model, changed, masking=masking, batch_size=7)
    assert right[::2].all()
    expected = (given_at[:, 4:] == tokens[:, 4:]).all(dim=1)
    assert torch.equal(right, expected)
    assert not right.all()


def test_blanks_are_alike_without_mask_and_positions_and_only_then() -> None:
    examples = examples_of(REVERSAL, 5)
    masking = AnswerMasking.of(REVERSAL)
    hidden = masking.hidden(examples.tokens, examples.answer)

    def spread(config: TransformerConfig) -> float:
        """The largest difference between the logits of two blanks of an example."""
        with torch.no_grad():
            at_blanks = HookedTransformer(config).double()(hidden)[:, 7:]
        return float((at_blanks - at_blanks[:, :1]).abs().max())

    assert spread(config_for(REVERSAL, causal=False)) < 1e-6
    assert spread(config_for(REVERSAL, causal=True)) > 1e-2
    with_positions = {**config_for(REVERSAL, causal=False).to_dict(), "positions": "learned"}
    assert spread(TransformerConfig.from_dict(with_positions)) > 1e-2


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_whatever_the_weights_only_answers_of_one_token_can_be_right_without_the_mask(
    seed: int,
) -> None:
    examples = examples_of(REVERSAL, 2, n=200)
    model = HookedTransformer(config_for(REVERSAL, causal=False, seed=seed))
    right = exact_matches(model, examples, masking=AnswerMasking.of(REVERSAL))
    alike = torch.tensor([len(set(answer)) == 1 for _, answer in REVERSAL.text(examples)])
    assert alike.any()
    assert not (right & ~alike).any()


def test_only_blanks_let_a_bidirectional_model_be_trained() -> None:
    masking = AnswerMasking.of(REVERSAL)
    config = config_for(REVERSAL, causal=False)
    training = TrainingConfig(steps=20, batch_size=16, seq_len=REVERSAL.n_tokens(5), warmup=2)
    with pytest.raises(UserError, match="bidirectional"):
        train(config, training, REVERSAL, show_progress=False)
    trained = train(config, training, REVERSAL, masking=masking, show_progress=False)
    examples = examples_of(REVERSAL, 3, n=200)
    with torch.no_grad():
        before, after = (
            masking.loss(model, examples.tokens, examples.answer)
            for model in (HookedTransformer(config), trained)
        )
    assert after < before


def test_a_training_with_blanks_goes_on_from_no_other(tmp_path: Path) -> None:
    config = config_for(REVERSAL, causal=True)
    training = TrainingConfig(
        steps=2, batch_size=4, seq_len=REVERSAL.n_tokens(5), checkpoint_every=1
    )
    state = tmp_path / "state.safetensors"
    train(config, training, REVERSAL, state_path=state, show_progress=False)
    masking = AnswerMasking.of(REVERSAL)
    with pytest.raises(UserError, match="another training"):
        train(config, training, REVERSAL, state_path=state, masking=masking, show_progress=False)
