"""Training learns, and a killed run ends in the same bits as an undisturbed one."""

import dataclasses
import math
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from nope_interp.errors import UserError
from nope_interp.models.checkpoints import (
    TrainedOn,
    as_bidirectional,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
)
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.characters import ReversalTask
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.text import TextTask
from nope_interp.training import train as training_module
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import learning_rate
from nope_interp.training.state import saved_step
from nope_interp.training.train import masked_loss, train
from tests.gpt2 import gpt2_weights
from tests.trainings import assert_same_bits, dies_after

CONFIG = TransformerConfig(
    n_layers=2, d_model=32, n_heads=2, d_vocab=257, n_ctx=32, dropout=0.1, tied_embeddings=True
)
TRAINING = TrainingConfig(
    steps=12, batch_size=4, seq_len=32, warmup=3, checkpoint_every=4, learning_rate=1e-2
)


def run(path: Path | None = None, **changes: Any) -> HookedTransformer:
    training = dataclasses.replace(TRAINING, **changes)
    return train(CONFIG, training, TextTask(), state_path=path, show_progress=False)


@pytest.fixture(scope="module")
def undisturbed() -> HookedTransformer:
    """What the training comes to that nothing stops; no test changes it."""
    return run()


def test_a_file_gets_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    training = dataclasses.replace(TRAINING, steps=35)
    train(CONFIG, training, TextTask(), show_progress=True)
    told = [
        re.fullmatch(r"training on text: step (\d+) of 35, loss (\d\.\d{3})", line)
        for line in capsys.readouterr().err.splitlines()
    ]
    assert [at and int(at[1]) for at in told] == [3, 7, 11, 15, 19, 23, 27, 31, 35]
    losses = [float(at[2]) for at in told if at]
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def longer() -> HookedTransformer:
    """Trained for as long as it takes to learn; no test changes it."""
    return run(steps=60)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a finished training, for tests to copy."""
    path = tmp_path_factory.mktemp("finished") / "state.safetensors"
    run(path)
    return path


def test_loss_falls(longer: HookedTransformer) -> None:
    task = TextTask()
    tokens, predicted = task.batch(32, 32, torch.Generator().manual_seed(99))
    untrained, trained = HookedTransformer(CONFIG).eval(), longer
    with torch.no_grad():
        before = masked_loss(untrained, tokens, predicted)
        after = masked_loss(trained, tokens, predicted)
    assert before > 0.95 * math.log(257)  # an untrained model knows nothing
    assert after < before - 1


def test_masked_loss_is_cross_entropy_of_the_marked_tokens() -> None:
    model = HookedTransformer(CONFIG)
    tokens = torch.randint(257, (2, 5), generator=torch.Generator().manual_seed(0))
    predicted = torch.tensor(
        [[False, True, False, False, True], [False, False, False, True, False]]
    )
    with torch.no_grad():
        logits = model(tokens)
        found = masked_loss(model, tokens, predicted)
    terms = [F.cross_entropy(logits[b, i - 1], tokens[b, i]) for b, i in ((0, 1), (0, 4), (1, 3))]
    torch.testing.assert_close(found, sum(terms) / 3)


def test_learning_rate_schedule() -> None:
    config = TrainingConfig(steps=1000, warmup=100, learning_rate=1.0)
    assert learning_rate(0, config) == pytest.approx(0.01)
    assert learning_rate(100, config) == pytest.approx(1.0)
    assert learning_rate(550, config) == pytest.approx(0.55)
    assert learning_rate(1000, config) == pytest.approx(0.1)
    linear = dataclasses.replace(config, schedule="linear")
    rates = [learning_rate(step, linear) for step in (50, 100, 550, 1000)]
    assert rates == pytest.approx([0.51, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(("warmup", "reached"), [(0, None), (3, None), (12, "25%"), (4, "75%")])
def test_a_warm_up_longer_than_the_training_is_said(
    caplog: pytest.LogCaptureFixture, warmup: int, reached: str | None
) -> None:
    """Of three steps the last one has the highest rate; the peak is never come to."""
    run(steps=3, warmup=warmup)
    said = f"the warm-up of {warmup} steps is longer than the training of 3"
    assert (said in caplog.text) == (reached is not None)
    if reached is not None:
        assert f"reaches {reached} of its peak" in caplog.text


def test_bfloat16_trains_weights_kept_in_single_precision(longer: HookedTransformer) -> None:
    task = TextTask()
    tokens, predicted = task.batch(32, 32, torch.Generator().manual_seed(99))
    trained, plain = run(steps=60, precision="bfloat16"), longer
    assert {weight.dtype for weight in trained.parameters()} == {torch.float32}
    with torch.no_grad():
        loss = masked_loss(trained, tokens, predicted)
        expected = masked_loss(plain, tokens, predicted)
    assert loss != expected
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("fast", [False, True])
def test_a_processor_that_is_slow_in_bfloat16_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fast: bool, precision: Any
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: fast)
    run(steps=1, precision=precision)
    said = "this processor computes bfloat16 up to a hundred times slower" in caplog.text
    assert said == (precision == "bfloat16" and not fast)


def test_loss_curve_is_that_of_gpt2_from_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(
        CONFIG, positions="learned", activation="gelu_tanh", dropout=0.0, n_heads=4
    )
    training = dataclasses.replace(TRAINING, steps=50, warmup=5)
    ours: list[float] = []
    real = training_module.masked_loss

    def recorded(*args: Any) -> Any:
        loss = real(*args)
        ours.append(loss.item())
        return loss

    monkeypatch.setattr(training_module, "masked_loss", recorded)
    train(config, training, TextTask(), show_progress=False)
    theirs = _gpt2_losses(config, training)
    assert theirs[0] - theirs[-1] > 1  # it learns
    assert ours == pytest.approx(theirs, abs=1e-3)


def _gpt2_losses(config: TransformerConfig, training: TrainingConfig) -> list[float]:
    """Transformers' GPT-2 from the weights that ours begins with, in a loop of its own."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.d_vocab,
            n_positions=config.n_ctx,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).train()
    with torch.no_grad():
        for own, weight in gpt2_weights(HookedTransformer(config), model):
            weight.copy_(own)
    # Ours has a bias on its logits, GPT-2's head has none unless it is given one.
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(config.d_vocab))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.99),
        weight_decay=training.weight_decay,
    )
    losses = []
    for step in range(training.steps):
        generator = torch.Generator().manual_seed(training.seed * 1_000_003 + step)
        tokens, predicted = TextTask().batch(training.batch_size, training.seq_len, generator)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, training)
        loss = model(tokens, labels=tokens.masked_fill(~predicted, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_same_seed_same_bits_and_other_seed_other_bits(undisturbed: HookedTransformer) -> None:
    assert_same_bits(run(), undisturbed)
    other = run(seed=1).state_dict()
    assert any(not torch.equal(x, other[name]) for name, x in undisturbed.state_dict().items())


@pytest.mark.parametrize("killed_after", [1, 4, 6, 11])
@pytest.mark.parametrize("death", [KeyboardInterrupt, RuntimeError])
def test_stopped_run_ends_in_the_same_bits(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    undisturbed: HookedTransformer,
    killed_after: int,
    death: type[BaseException],
) -> None:
    state = tmp_path / "state.safetensors"
    with dies_after(killed_after, death), pytest.raises(death):
        run(state)
    assert not caplog.messages
    # Ctrl-C keeps what there is; whatever else stops a training leaves what was kept last.
    kept = killed_after if death is KeyboardInterrupt else killed_after // 4 * 4
    if kept:
        assert saved_step(state) == kept
    assert_same_bits(run(state), undisturbed)
    assert caplog.messages == ([f"going on from step {kept} of 12."] if kept else [])


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C is heeded, as it is not where tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", [1, 2, 3, 8])
def test_ctrl_c_within_an_update_waits_for_its_end(
    heeded: None,
    undisturbed: HookedTransformer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
) -> None:
    """An update is two calls of the optimiser's kernel: of matrices, then of vectors."""
    real, calls = torch._fused_adamw_, 0

    def interrupted(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        real(*args, **kwargs)
        if calls == call:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    state = tmp_path / "state.safetensors"
    monkeypatch.setattr(torch, "_fused_adamw_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(state)
    assert signal.getsignal(signal.SIGINT) is handler
    assert saved_step(state) == (call + 1) // 2
    assert_same_bits(run(state), undisturbed)


def test_an_update_that_is_broken_off_is_not_kept(
    undisturbed: HookedTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = torch._fused_adamw_, 0

    def broken_off(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        real(*args, **kwargs)
        if calls == 11:  # the sixth step's matrices
            raise KeyboardInterrupt

    state = tmp_path / "state.safetensors"
    monkeypatch.setattr(torch, "_fused_adamw_", broken_off)
    with pytest.raises(KeyboardInterrupt):
        run(state)
    assert saved_step(state) == 4
    monkeypatch.setattr(torch, "_fused_adamw_", real)
    assert_same_bits(run(state), undisturbed)


def test_ctrl_c_while_the_model_is_watched_shows_it_again(
    undisturbed: HookedTransformer, tmp_path: Path
) -> None:
    state, seen = tmp_path / "state.safetensors", []

    def impatient(step: int, model: HookedTransformer) -> None:
        if step == 2:
            raise KeyboardInterrupt
        seen.append(step)

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, TRAINING, TextTask(), state_path=state, watch=impatient, show_progress=False)
    assert saved_step(state) == 2

    def watch(step: int, model: HookedTransformer) -> None:
        seen.append(step)

    trained = train(
        CONFIG, TRAINING, TextTask(), state_path=state, watch=watch, show_progress=False
    )
    assert seen == [0, 1, 2, 4, 8, 12]
    assert_same_bits(trained, undisturbed)


def test_weights_that_are_no_longer_finite_are_not_kept(tmp_path: Path) -> None:
    """The loss of a step is that before its update: the last one's is never taken."""
    state = tmp_path / "state.safetensors"
    wild = dataclasses.replace(TRAINING, steps=1, warmup=0, learning_rate=1e38, checkpoint_every=1)
    plain = dataclasses.replace(CONFIG, normalization="none")
    with pytest.raises(UserError, match="no longer finite after step 1: lower the learning rate"):
        train(plain, wild, TextTask(), state_path=state, show_progress=False)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    with dies_after(0), pytest.raises(KeyboardInterrupt):
        run(tmp_path / "state.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": None}, "step is None in the training state"),
        ({"step": True}, "step is True"),
        ({"step": 0}, "step is 0"),
        ({"step": "4"}, "step is '4'"),
        ({"step": 13}, "another training"),
        ({"step": 5}, "does not fit its own training"),
        ({"task": None}, "another training"),
        ({"optimizer/0/exp_avg": None}, "does not fit its own training"),
        ({"optimizer/0/exp_avg": torch.zeros(3)}, "does not fit its own training"),
        ({"optimizer/0/step": torch.zeros(1)}, "does not fit its own training"),
        ({"optimizer/x/y/z": torch.zeros(3)}, "does not fit its own training"),
        ({"model/embed.weight": None}, "does not fit its own config"),
        ({"model/embed.weight": torch.full((257, 32), math.nan)}, "NaN or infinite"),
    ],
)
def test_a_wrong_training_state_is_one_sentence(
    finished: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    state = tmp_path / "state.safetensors"
    tensors, header = load_tensors(finished)
    for name, value in changes.items():
        (tensors if "/" in name else header)[name] = value
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_tensors(state, tensors, header)
    with pytest.raises(UserError, match=message) as caught:
        run(state)
    assert str(state) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_state_of_another_training_is_refused(finished: Path, tmp_path: Path) -> None:
    state = Path(shutil.copy(finished, tmp_path))
    with pytest.raises(UserError, match="another training"):
        run(state, learning_rate=5e-3)


@pytest.mark.parametrize(
    ("task", "other"),
    [
        (TextTask("abc " * 500), TextTask("xyz " * 500)),
        (make_task("copy-cmc", lengths=(2, 4)), make_task("copy-cmc", lengths=(3, 5))),
        (
            make_task("parity", lengths=(2, 3), scratchpad=["input", "output"]),
            make_task("parity", lengths=(2, 3), scratchpad=["input", "computation"]),
        ),
    ],
)
def test_a_training_on_another_task_of_that_name_is_another_one(
    task: Any, other: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state.safetensors"
    config = TransformerConfig(1, 8, 1, d_vocab=max(task.d_vocab, other.d_vocab), n_ctx=64)
    training = TrainingConfig(steps=2, batch_size=2, seq_len=64, checkpoint_every=1)
    how = {"state_path": state, "show_progress": False}
    train(config, training, task, **how)
    with pytest.raises(UserError, match="another training"):
        train(config, training, other, **how)
    train(config, training, task, **how)


def test_model_round_trip_keeps_the_bits(undisturbed: HookedTransformer, tmp_path: Path) -> None:
    model = undisturbed
    path = save_model(model, tmp_path / "model.safetensors", task="text")
    loaded, task = load_model(path)
    assert task == TrainedOn("text")
    assert loaded.config == model.config
    assert_same_bits(loaded, model)


@pytest.mark.parametrize("keep", [0, 7, 40, 0.5, 0.999])
def test_truncated_checkpoints_are_one_sentence(tmp_path: Path, keep: float) -> None:
    path = save_model(HookedTransformer(CONFIG), tmp_path / "model.safetensors", task="text")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep >= 1 else keep * len(whole))])
    with pytest.raises(UserError, match=r"damaged or cut short.*train it again"):
        load_model(path)


def test_foreign_and_absent_checkpoints(finished: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="not written by nope-interp"):
        load_model(tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="no checkpoint"):
        load_model(tmp_path / "absent.safetensors")
    with pytest.raises(UserError, match="a training state, not a model"):
        load_model(finished)


def test_as_bidirectional_has_the_weights_but_not_the_mask(undisturbed: HookedTransformer) -> None:
    model = undisturbed
    unmasked = as_bidirectional(model)
    assert_same_bits(unmasked, model)
    tokens = torch.randint(257, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 257
    with torch.no_grad():
        assert torch.equal(model(tokens)[0, :-1], model(changed)[0, :-1])
        assert not torch.equal(unmasked(tokens)[0, :-1], unmasked(changed)[0, :-1])


def test_nonsense_is_one_sentence() -> None:
    with pytest.raises(UserError, match="longer than the context of 32"):
        run(seq_len=64)
    with pytest.raises(UserError, match="raise d_vocab"):
        train(
            dataclasses.replace(CONFIG, d_vocab=20), TRAINING, ReversalTask(), show_progress=False
        )
    with pytest.raises(UserError, match="bidirectional"):
        train(dataclasses.replace(CONFIG, causal=False), TRAINING, TextTask(), show_progress=False)
    with pytest.raises(UserError, match="lower the learning rate"):
        run(learning_rate=1e30, clip=1e30, steps=30)
    with pytest.raises(UserError, match="did you mean 'linear'"):
        dataclasses.replace(TRAINING, schedule="liner")
    with pytest.raises(UserError, match="unknown training precision 'float64'"):
        dataclasses.replace(TRAINING, precision="float64")
    for bad in ({"steps": 0}, {"steps": 1.5}, {"clip": math.nan}, {"learning_rate": "fast"}):
        with pytest.raises(UserError, match=f"training {next(iter(bad))} is"):
            dataclasses.replace(TRAINING, **bad)


@pytest.mark.slow
def test_reversal_is_learnt_without_positional_encoding() -> None:
    config = TransformerConfig(
        n_layers=3, d_model=48, n_heads=4, d_vocab=28, n_ctx=16, init_scale=0.05
    )
    task = ReversalTask()
    training = TrainingConfig(steps=800, batch_size=32, seq_len=8, learning_rate=3e-3)
    model = train(config, training, task, show_progress=False)
    generator = torch.Generator().manual_seed(5)
    examples = task.examples(200, 3, generator, split="validation").tokens
    answers = model.generate(examples[:, :5], max_new_tokens=3)
    exact = (answers == examples).all(1).double().mean()
    assert exact > 0.9  # a guess is right once in 26 ** 3


def test_a_sequence_of_one_token_has_nothing_to_predict() -> None:
    with pytest.raises(UserError, match="seq_len is 1: give a whole number from 2 up"):
        TrainingConfig(seq_len=1)
