"""Which tokens a tournament is held on."""

from pathlib import Path

import pytest
import torch

from experiments.compare_config import CompareConfig
from experiments.contest import contest_of
from experiments.subjects import loaded_subject
from nope_interp.losses import sequence_losses
from tests.huggingface import save_folder, tiny_gpt2, words

SIZES = {"fit": 120, "held_out": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(words(3000))
    return save_folder(tiny_gpt2(), tmp_path / "gpt2")


def test_pretrained_models_are_held_to_text_behind_their_begin_token(folder: Path) -> None:
    config = CompareConfig(
        model=str(folder),
        text=str(folder.parent / "text.txt"),
        seq_len=16,
        n_fit=120,
        n_held_out=40,
    )
    subject = loaded_subject(config, "cpu", needed=SIZES)
    contest = contest_of(config, subject)
    assert contest.begin_token
    begin = subject.sources[0].begin_id
    for tokens in (contest.split.fit, contest.split.held_out):
        assert set(tokens[:, 0].tolist()) == {begin}
        assert begin not in tokens[:, 1:]
    losses = contest.losses(contest.model, contest.split.held_out)
    torch.testing.assert_close(losses, sequence_losses(subject.model, contest.split.held_out))
    # Chance is about the words alone, of which there are 56, equally frequent.
    assert contest.chance == pytest.approx(torch.tensor(56.0).log().item(), abs=0.25)
