"""Training a model of transformers: which parameters, over which tokens, to which bits."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from nope_interp.errors import UserError
from nope_interp.training.config import TrainingConfig
from nope_interp.training.recalibrate import (
    asked_of,
    choose_trained,
    last_losses,
    only_tokens,
    recalibrate,
    windows,
)
from nope_interp.training.state import saved_step
from tests.byte_llama import byte_llama

TRAINING = TrainingConfig(
    steps=6, batch_size=2, seq_len=16, warmup=2, checkpoint_every=2, learning_rate=1e-2
)
TEXT = torch.randint(1, 257, (200,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(tmp_path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(byte_llama(tmp_path / "llama"))


def run(model: LlamaForCausalLM, state: Path | None = None, **options: object) -> None:
    recalibrate(
        model,
        TRAINING,
        TEXT,
        0,
        header={"which": "test"},
        title="test",
        state_path=state,
        show_progress=False,
        **options,
    )


def test_windows_are_of_the_text_and_the_same_at_the_same_step() -> None:
    drawn = windows(TEXT, TRAINING, 0, step=3)
    assert drawn.shape == (2, 16)
    assert (drawn[:, 0] == 0).all()
    every = TEXT.unfold(0, 15, 1).tolist()
    assert all(row in every for row in drawn[:, 1:].tolist())
    assert torch.equal(drawn, windows(TEXT, TRAINING, 0, step=3))
    assert not torch.equal(drawn, windows(TEXT, TRAINING, 0, step=4))
    assert windows(TEXT, TRAINING, None, step=3).tolist()[0] in TEXT.unfold(0, 16, 1).tolist()


def test_only_the_parameters_named_are_trained(model: LlamaForCausalLM) -> None:
    before = {name: x.clone() for name, x in model.state_dict().items()}
    run(model, parts=("self_attn", "norm"))
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]) != ("self_attn" in name or "norm" in name), name
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(UserError, match=r"no parameter's name holds 'attnn': .*model\.norm"):
        choose_trained(model, ("attnn",))


def test_a_step_is_that_of_torchs_own_adamw(model: LlamaForCausalLM, tmp_path: Path) -> None:
    """The first step's update, with the rate of warm-up, from the gradient of the plain loss."""
    other = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    recalibrate(
        model,
        TrainingConfig(steps=1, batch_size=2, seq_len=16, warmup=4, weight_decay=0, clip=1e9),
        TEXT,
        0,
        header={},
        title="test",
        show_progress=False,
    )
    tokens = windows(TEXT, TRAINING, 0, step=0)
    other(tokens, labels=tokens).loss.backward()
    optimizer = torch.optim.AdamW(other.parameters(), lr=2e-3 / 4, weight_decay=0)
    optimizer.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("killed_after", [1, 3, 5])
def test_a_killed_training_ends_in_the_same_bits(
    model: LlamaForCausalLM, tmp_path: Path, killed_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    run(whole)
    state, seen = tmp_path / "state.safetensors", []
    real = F.cross_entropy

    def killed(*args: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        if len(seen) > killed_after:
            raise RuntimeError("killed")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(F, "cross_entropy", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(model, state)
    if killed_after > 1:
        assert saved_step(state) == killed_after // 2 * 2
    again = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    run(again, state)
    for name, x in whole.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name


def test_losses_are_those_of_the_plain_model(model: LlamaForCausalLM) -> None:
    tokens = windows(TEXT, TRAINING, 0, step=0)
    with torch.no_grad():
        log = model(tokens).logits.double().log_softmax(dim=-1)[:, -6:-1]
    expected = -log.gather(-1, tokens[:, -5:, None])[..., 0].mean(dim=1)
    found = last_losses(model, tokens, 5, batch_size=1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_over_some_tokens_losses_are_a_softmax_of_their_logits(model: LlamaForCausalLM) -> None:
    tokens = windows(TEXT, TRAINING, 0, step=0)
    ids = torch.cat((tokens.flatten(), torch.tensor([3, 250]))).unique()
    head = model.get_output_embeddings()
    with torch.no_grad():
        log = model(tokens).logits.double()[:, -6:-1, ids].log_softmax(dim=-1)
    places = torch.stack(
        [torch.tensor([ids.tolist().index(t) for t in row]) for row in tokens.tolist()]
    )
    expected = -log.gather(-1, places[:, -5:, None])[..., 0].mean(dim=1)
    with only_tokens(model, ids):
        assert torch.equal(asked_of(model, tokens), places)
        found = last_losses(model, tokens, 5, batch_size=2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    assert model.get_output_embeddings() is head
    assert torch.equal(asked_of(model, tokens), tokens)


def test_logits_of_some_tokens_are_made_where_the_unembedding_stands(
    model: LlamaForCausalLM,
) -> None:
    """As where accelerate has spread the model, whose last layer stands on another device."""
    model.lm_head.to("meta")
    with only_tokens(model, torch.tensor([3, 250])):
        logits = model(torch.ones(2, 8).long()).logits
    assert (logits.device.type, logits.shape) == ("meta", (2, 8, 2))
