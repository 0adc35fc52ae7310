"""Who sees one token alone knows no order, however much of an answer's frame it knows."""

import pytest
import torch

from experiments.codes.order import order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.results.measurements import table
from experiments.results.task_use import without_order
from experiments.variants.variants import ModelVariant
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.answers import AnswerTask, ExampleSource
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.registry import make_answer_task
from tests.experiments.codes.on_text import CONTEXT as OF_TEXT

CONTEXT = {**OF_TEXT, "tokens": "examples", "begin_token": True}


def bigram(task: AnswerTask, length: int) -> HookedTransformer:
    """A model without attention, whose logits are how often which token of an answer follows."""
    examples = dataset(task, 2000, split="train", seed=9, lengths=[length])[length]
    answer, kinds = examples.answer[:, 1:], task.d_vocab
    pairs = (examples.tokens[:, :-1][answer], examples.tokens[:, 1:][answer])
    counts = torch.full((kinds, kinds), 0.01)
    counts.index_put_(pairs, torch.ones(len(pairs[0])), accumulate=True)
    config = TransformerConfig(
        1, kinds, 1, kinds, task.n_tokens(length), normalization="none", attn_only=True
    )
    model = HookedTransformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.weight.copy_(torch.eye(kinds))
        model.unembed.weight.copy_((counts / counts.sum(dim=1, keepdim=True)).log().T)
    return model.eval()


def of_bigram(name: str, length: int) -> InterventionTask:
    task = make_answer_task(name, training_lengths=[length], test_lengths=())
    model, spec = bigram(task, length), ModelSpec("nowhere", "cpu")
    variant = ModelVariant(name, "trained", model, None, (ExampleSource(task),), "none", spec)
    asked = CompareConfig(
        task=name,
        lengths=(length, length),
        seq_len=task.n_tokens(length),
        n_fit=400,
        n_held_out=200,
    )
    return intervention_task_of(asked, variant)


# Prompts of one length differ in tokens, so that the answer's frame stands in no fixed place; but
# for ordering, in which letters mostly follow near ones.
@pytest.mark.parametrize(
    ("name", "length"), [("addition", 4), ("polynomial", 4), ("scan", 12), ("ordering", 10)]
)
def test_who_knows_which_token_follows_has_not_learned_order(name: str, length: int) -> None:
    task = of_bigram(name, length)
    rows = table(order_rows(task, context=CONTEXT))
    assert without_order(rows) is not None
    lost = rows[rows["metric"] == "lost_by_shuffle"]["value"]
    assert (lost == 0).all()
    assert len(lost) == (name != "ordering")


@pytest.mark.parametrize(("name", "length"), [("addition", 4), ("polynomial", 4)])
def test_the_guesser_who_loses_least_knows_the_frame(name: str, length: int) -> None:
    """Else what a model gains by it would be a lead, which codes are said to carry."""
    task = of_bigram(name, length)
    own = float(task.losses(task.model, task.split.held_out).mean())
    assert task.chance == pytest.approx(own, abs=0.1)
