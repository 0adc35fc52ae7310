"""What is answered elsewhere, on each kind of task, against answers worked out by hand."""

from collections import Counter

import pytest
import torch

from experiments.codes.answering import Asking
from experiments.codes.counterfactual import Counterfactual, counterfactuals
from experiments.codes.in_depth import statistics_at
from experiments.codes.order import answers_of, order_rows
from experiments.codes.task import InterventionTask, intervention_task_of
from experiments.comparison.config import CompareConfig
from experiments.probing.sites import Site
from experiments.results.interchange import ASKING, GUESSER, QUESTION
from experiments.results.measurements import table
from experiments.results.task_use import without_order
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.answers import ExampleSource
from nope_interp.tasks.registry import make_answer_task
from probes.code_names import MEAN_RESIDUAL
from probes.codes.trends import carries
from tests import typecheck
from tests.experiments.codes.on_text import CONTEXT as OF_TEXT

LENGTH = 4
EMBEDDING = Site(0, "resid_pre")
CONTEXT = {**OF_TEXT, "tokens": "task", "begin_token": True}


def untrained(name: str, symbols: int = LENGTH) -> InterventionTask:
    """Examples of so many symbols, and a model without positions that was never trained."""
    task = make_answer_task(name, training_lengths=[symbols], test_lengths=())
    length = task.n_tokens(symbols)
    model = HookedTransformer(TransformerConfig(1, 16, 2, d_vocab=task.d_vocab, n_ctx=length))
    source, spec = ExampleSource(task), ModelSpec("nowhere", "cpu")
    variant = ModelVariant(name, "trained", model.eval(), None, (source,), "none", spec)
    asked = CompareConfig(
        task=name, lengths=(symbols, symbols), seq_len=length, n_fit=200, n_held_out=60
    )
    return intervention_task_of(asked, variant)


def of(task: InterventionTask, moved: str, by: int = 1) -> Counterfactual:
    (found,) = [one for one in counterfactuals(task, by) if one.moved == moved]
    return found


def answered(one: Counterfactual, tokens: torch.Tensor) -> torch.Tensor:
    """The question's tokens, each at the position that it is told to stand at."""
    told = tokens.clone()
    told[:, one.among[one.sources]] = tokens[:, one.among]
    return told


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("name", ["reversal", "copy-cmc", "reverse-mc", "copy-cmc2x"])
def test_who_reads_symbols_where_they_are_told_to_stand_answers_so(name: str, by: int) -> None:
    task = untrained(name)
    one, tokens = of(task, QUESTION, by), task.split.held_out
    question = answered(one, tokens)[:, one.among]
    forward = question if name.startswith("copy") else question.flip(1)
    for row, column in one.counted.nonzero().tolist():
        asked = int(one.counted[:, :column].any(dim=0).sum()) % LENGTH
        assert one.other[row, column] == forward[row, asked]
        assert one.own[row, column] == tokens[row, column + 1]
    # The next symbol but `by - 1`, in a cycle.
    straight = forward[:, 0]
    own = tokens[:, one.among] if name.startswith("copy") else tokens[:, one.among].flip(1)
    assert torch.equal(straight, own[:, by])
    assert torch.equal(one.sources.sort().values, torch.arange(LENGTH))


@pytest.mark.parametrize("by", [1, 2])
def test_positions_that_ask_ask_for_the_next_symbol(by: int) -> None:
    # <begin> a b c d = d c b a: the sign asks for the first letter, and is the frame's.
    task = untrained("reversal")
    one = of(task, ASKING, by)
    assert one.among.tolist() == [6, 7, 8]
    assert one.among[one.sources].tolist() == ([7, 8, 8] if by == 1 else [8, 7, 8])
    assert one.counted.any(dim=0).nonzero()[:, 0].tolist() == ([6, 7] if by == 1 else [6])
    assert torch.equal(one.other[:, 6], task.split.held_out[:, 7 + by])
    assert torch.equal(one.destroyed(task.split.held_out), task.split.held_out)


@pytest.mark.parametrize("by", [1, 3])
def test_indexing_answers_the_place_further_on(by: int) -> None:
    task = untrained("indexing")
    one, tokens = of(task, QUESTION, by), task.split.held_out
    told = answered(one, tokens)[:, one.among]
    asking = int(one.counted.any(dim=0).nonzero())
    wanted = tokens[:, asking - 1]
    place = 1 + (told == wanted[:, None]).int().argmax(dim=1)
    assert task.source is not None
    digits = [task.source.tokenizer.decode([token]) for token in one.other[:, asking].tolist()]
    assert digits == [str(number) for number in place.tolist()]
    assert (one.other[:, asking] != one.own[:, asking]).all()


@pytest.mark.parametrize("name", ["ordering", "sort-single", "parity", "summation"])
def test_what_no_order_matters_to_is_answered_as_before(name: str) -> None:
    task = untrained(name, 8)
    (one,) = counterfactuals(task)
    assert one.to_stay
    assert one.moved == QUESTION
    assert (one.sources != torch.arange(len(one.among))).all()
    # Answers that leave the own one are what is counted.
    asking = Asking(task, one.own, one.other, one.counted, away=one.to_stay)
    found = asking.answers({})
    assert (found.follows + found.stays == asking.n).all()


@pytest.mark.parametrize("name", ["reversal", "copy-cmc", "indexing", "ordering"])
def test_no_position_of_the_frame_is_moved_or_moved_to(name: str) -> None:
    """Where it is taken in, the mean residual tells the frame's token, though no code is there: a
    model without positions has none at its embedding."""
    task = untrained(name)
    tokens = task.split.held_out
    bare = (tokens == tokens[0]).all(dim=0)
    for one in counterfactuals(task):
        assert not bare[one.among].any()
        codes = statistics_at(task, [EMBEDDING])[EMBEDDING]
        chosen = torch.searchsorted(task.numbers(), one.among)
        assert not carries(codes.among(chosen), MEAN_RESIDUAL)
    everywhere = InterventionTask(task.model, task.split, task.losses, task.guessed)
    trap = statistics_at(everywhere, [EMBEDDING])[EMBEDDING]
    assert carries(trap, MEAN_RESIDUAL)


@pytest.mark.parametrize("name", ["reversal", "indexing", "ordering"])
def test_where_order_is_destroyed_no_token_stands_where_it_stood(name: str) -> None:
    task = untrained(name)
    one, tokens = of(task, QUESTION), task.split.held_out
    destroyed = one.destroyed(tokens)
    assert torch.equal(destroyed[:, one.among], tokens[:, one.among[one.origins]])
    assert (one.origins != torch.arange(len(one.among))).all()
    elsewhere = torch.ones(tokens.shape[1], dtype=torch.bool)
    elsewhere[one.among] = False
    assert torch.equal(destroyed[:, elsewhere], tokens[:, elsewhere])


@pytest.mark.parametrize(
    ("name", "by", "said"),
    [
        ("addition", 1, "what the task 'addition' would answer at another position is not known"),
        ("copy-rsc", 1, "what the task 'copy-rsc' would answer"),
        ("sort-multi", 1, "what the task 'sort-multi' would answer"),
        ("reversal", 4, "no answer of these examples tells a position from the one 4 further on"),
        ("reversal", 0, "by is 0: give how many positions to move by"),
        ("reversal", 1.5, r"by is 1\.5: give how many positions to move by"),
    ],
)
def test_where_nothing_is_known_elsewhere_one_sentence_says_so(
    name: str, by: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match=said):
        counterfactuals(untrained(name), by)


def test_a_guesser_may_know_the_commonest_answer_instead_of_the_question() -> None:
    """Parity's answers are none of the question's tokens: to cross these off gets nothing right."""
    task = untrained("parity", 8)
    rows = table(order_rows(task, context=CONTEXT))
    scores = rows.set_index(["metric", "control"])["value"]
    (column,) = answers_of(task).any(dim=0).nonzero()[:, 0].tolist()
    said = Counter(task.split.held_out[:, column].tolist())
    share = max(said.values()) / said.total()
    assert scores["accuracy", GUESSER] == pytest.approx(share)
    assert 0.5 < share < 1
    # No order matters to it: nothing can be lost by a shuffle.
    assert ("lost_by_shuffle", "") not in scores.index
    sentence = without_order(rows)
    assert sentence is not None
    assert sentence.startswith("the model has not learned the task: ")
