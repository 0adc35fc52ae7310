"""What a trained model does on its own task, beside what its loss is held against."""

import torch

from experiments.variants.config import ProbingConfig
from experiments.variants.held_out import held_out
from nope_interp.models.checkpoints import load_model
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig
from tests.paths import ROOT

COPYING = ROOT / "examples" / "copy-rsc.safetensors"
LENGTHS = (7, 12)


def test_answers_are_counted_that_are_right_to_the_end() -> None:
    """As greedy decoding, token by token, has them; the last lengths are beyond its training."""
    training = TrainingConfig(seq_len=28)
    found = held_out(ProbingConfig(task="copy-rsc", lengths=LENGTHS, training=training), COPYING)
    assert found is not None
    model, task = load_model(COPYING)[0], make_task("copy-rsc", lengths=LENGTHS)
    right = []
    for examples in dataset(task, 64, split="validation", seed=0).values():  # type: ignore[arg-type]
        for row, n in zip(examples.tokens, examples.prompt_length.tolist(), strict=True):
            wanted = row[row != task.tokenizer.pad_id].tolist()
            told = wanted[:n]
            with torch.no_grad():
                while len(told) < len(wanted):
                    told.append(int(model(torch.tensor([told]))[0, -1].argmax()))
            right.append(told == wanted)
    share = sum(right) / len(right)
    assert 0.5 < share < 1
    assert found.right == share
    assert found.words().endswith(f"nats per token of answers, {share:.1%} of them right")
    assert found.bigram is None
