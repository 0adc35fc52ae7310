"""Tokens: splits that share nothing, seeds that repeat, tasks that are what they say."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nope_interp.errors import UserError
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import CopiesSource, RepeatedSource, TextSource, UniformSource
from nope_interp.tasks.text import TextTask, python_documentation
from nope_interp.tasks.tokenizer import ByteTokenizer


@given(st.text(max_size=200))
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    text = text.encode("utf-8", errors="replace").decode()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_corpus(text).tolist() == ids if text else ids == []
    assert tokenizer.decode([256, *ids, 256]) == f"<begin>{text}<begin>"
    # A model may have more ids than there are bytes.
    assert tokenizer.decode([300, *ids, 301, 302]) == f"<300>{text}<301><302>"


@given(
    n_tokens=st.integers(200, 2000),
    seq_len=st.integers(4, 30),
    begin=st.booleans(),
    seed=st.integers(0, 9),
)
def test_text_windows_share_no_token(n_tokens: int, seq_len: int, begin: bool, seed: int) -> None:
    source = TextSource(torch.arange(n_tokens), begin_id=n_tokens)
    length = seq_len - begin
    drawn = [
        source.sequences(n, seq_len, begin_token=begin, split=split, seed=seed)
        for split, share in (("fit", 0.65), ("held_out", 0.35))
        for n in [int(n_tokens * share) // length - 1]
    ]
    for tokens in drawn:
        assert tokens.shape[1] == seq_len
        if begin:
            assert (tokens[:, 0] == n_tokens).all()
    windows = torch.cat([tokens[:, begin:] for tokens in drawn])
    assert (windows.diff(dim=1) == 1).all()  # contiguous text
    assert len(windows.unique()) == windows.numel()  # no token twice, within or across splits


def test_too_short_text_says_how_short() -> None:
    source = TextSource(torch.arange(100), begin_id=None)
    with pytest.raises(UserError, match=r"holds 3 of 4 sequences of 20"):
        source.sequences(4, 20, begin_token=False, split="fit", seed=0)
    with pytest.raises(UserError, match="no begin token"):
        source.sequences(1, 20, begin_token=True, split="fit", seed=0)


def test_uniform_tokens_are_uniform_and_splits_differ() -> None:
    source = UniformSource(torch.tensor([3, 5, 9]), begin_id=0)
    fit = source.sequences(300, 50, begin_token=True, split="fit", seed=1)
    held_out = source.sequences(300, 50, begin_token=True, split="held_out", seed=1)
    again = source.sequences(300, 50, begin_token=True, split="fit", seed=1)
    assert torch.equal(fit, again)
    assert (fit[:, 0] == 0).all()
    values, counts = fit[:, 1:].unique(return_counts=True)
    assert values.tolist() == [3, 5, 9]
    # 14,700 draws: each share has a standard error of 0.4%.
    assert (counts / counts.sum() - 1 / 3).abs().max() < 0.02
    assert (fit[:, 1:] == held_out[:, 1:]).double().mean() < 0.36


def test_training_text_and_probing_text_are_disjoint_parts() -> None:
    text = python_documentation()
    task = TextTask()
    parts = torch.cat([task.training_tokens, task._probing_tokens])
    assert task.tokenizer.decode(parts.tolist()) == text
    assert len(text) > 400_000


def test_text_batches_mix_begin_tokens_and_predict_all_but_the_first() -> None:
    task = TextTask()
    tokens, predicted = task.batch(8, 32, torch.Generator().manual_seed(0))
    begins = tokens[:, 0] == task.tokenizer.begin_id
    assert begins.tolist() == [True] * 4 + [False] * 4
    # Where a batch cannot be halved, chance gives one of them more.
    for n in (1, 3):
        many = [task.batch(n, 16, torch.Generator().manual_seed(seed))[0] for seed in range(40)]
        share = (torch.cat(many)[:, 0] == task.tokenizer.begin_id).double().mean()
        assert share == pytest.approx(0.5, abs=0.25)
    assert (tokens[:, 1:] < 256).all()
    assert predicted.sum(1).tolist() == [31] * 8
    assert not predicted[:, 0].any()


def test_bad_tasks_and_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'reversal'"):
        make_task("reversel")
    with pytest.raises(UserError, match="reads no text"):
        make_task("reversal", text="a.txt")
    with pytest.raises(UserError, match="cannot read the text"):
        make_task("text", text=str(tmp_path / "absent.txt"))
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="is empty"):
        make_task("text", text=str(tmp_path / "empty.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="not UTF-8"):
        make_task("text", text=str(tmp_path / "latin.txt"))
    with pytest.raises(UserError, match="too short to train on"):
        TextTask("few words").batch(2, 32, torch.Generator())


@pytest.mark.parametrize("seq_len", [11, 12])
@pytest.mark.parametrize("begin_token", [False, True])
def test_repeated_tokens_come_again_after_their_period(seq_len: int, begin_token: bool) -> None:
    source = RepeatedSource(torch.arange(5, 1000), begin_id=1)
    draw = {"begin_token": begin_token, "seed": 0}
    tokens = source.sequences(6, seq_len, split="fit", **draw)
    assert tokens.shape == (6, begin_token + (seq_len - begin_token) // 2 * 2)
    assert (tokens[:, 0] == 1).all() == begin_token
    body, period = tokens[:, int(begin_token) :], source.period(seq_len, begin_token=begin_token)
    assert torch.equal(body[:, period:], body[:, :-period])
    assert len(body[:, :period].unique()) > 4 * period  # 995 ids: hardly any is drawn twice
    assert not torch.equal(tokens, source.sequences(6, seq_len, split="held_out", **draw))


@pytest.mark.parametrize("begin_token", [False, True])
def test_copies_are_one_token_each(begin_token: bool) -> None:
    source = CopiesSource(torch.arange(5, 1000), begin_id=1)
    tokens = source.sequences(40, 9, begin_token=begin_token, split="fit", seed=3)
    body = tokens[:, int(begin_token) :]
    assert tokens.shape == (40, 9)
    assert (body == body[:, :1]).all()
    assert len(body[:, 0].unique()) > 30
