"""Exact match by one pass against decoding token by token."""

import torch

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.registry import make_answer_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.train import train


def decoded(model: HookedTransformer, examples: Examples) -> list[bool]:
    """Each prompt on its own, continued greedily for as long as the right answer is."""
    found = []
    rows = zip(examples.tokens, examples.prompt_length, examples.length, strict=True)
    for tokens, prompt, length in rows:
        continued = model.generate(tokens[None, :prompt], int(length - prompt))
        found.append(torch.equal(continued[0], tokens[:length]))
    return found


def test_one_pass_finds_what_greedy_decoding_finds() -> None:
    task = make_answer_task("addition", training_lengths=range(1, 3), test_lengths=range(3, 4))
    n_ctx = task.n_tokens(3)
    config = TransformerConfig(1, 32, 2, d_vocab=task.d_vocab, n_ctx=n_ctx)
    training = TrainingConfig(steps=150, batch_size=64, seq_len=n_ctx, learning_rate=5e-3)
    model = train(config, training, task, show_progress=False)
    for length, examples in dataset(task, 40, split="train", seed=3).items():
        found = exact_matches(model, examples, batch_size=16).tolist()
        assert found == decoded(model, examples)
        # Half-trained: both answers have to occur for the comparison to mean anything.
        assert length > 1 or len(set(found)) == 2
    # Sums of different widths: padding and prompts of several lengths were among them.
    assert len(examples.length.unique()) > 1
    assert len(examples.prompt_length.unique()) > 1
