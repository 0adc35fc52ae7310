"""Tasks of length generalisation: right answers, honest splits, equal counts, texts that read."""

import math
import re
from collections import Counter
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.characters import IndexingTask, ReversalTask
from nope_interp.tasks.copying import StringTask
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.names import ANSWER_TASK_NAMES
from nope_interp.tasks.registry import make_answer_task, make_task
from nope_interp.tasks.retokenized import retokenized
from nope_interp.tasks.scan import commands
from nope_interp.tasks.scratchpad import SCRATCHPAD_PARTS, without_steps
from nope_interp.tasks.token_grid import GAP, digests, held_out, number, packed
from nope_interp.tasks.tokenizer import WordTokenizer
from nope_interp.training.config import TrainingConfig
from nope_interp.training.exact_match import exact_matches
from nope_interp.training.train import train
from tests.nope_interp.tasks.task_oracles import ORACLES, STEPS, addition, scan_actions, written

TASKS = {name: make_answer_task(name) for name in ANSWER_TASK_NAMES}


def drawn(task: AnswerTask, n: int, length: int, seed: int = 0, split: str = "") -> Examples:
    generator = torch.Generator().manual_seed(seed)
    split = split or ("train" if length in task.training_lengths else "test")
    return task.examples(n, length, generator, split=split)


def prompts(task: AnswerTask, examples: Examples) -> set[str]:
    return {prompt for prompt, _ in task.text(examples)}


def lengths_of(task: AnswerTask) -> list[int]:
    return [*task.training_lengths, *task.test_lengths]


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
@given(data=st.data(), seed=st.integers(0, 2**40))
@settings(max_examples=12)
def test_answers_are_right(name: str, data: st.DataObject, seed: int) -> None:
    task = TASKS[name]
    length = data.draw(st.sampled_from(lengths_of(task)))
    for prompt, answer in task.text(drawn(task, 6, length, seed)):
        assert (answer, length) == ORACLES[name](prompt)


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
def test_examples_begin_end_and_are_padded_as_they_say(name: str) -> None:
    task = TASKS[name]
    for length in (min(task.training_lengths), max(task.test_lengths)):
        examples = drawn(task, 20, length)
        tokenizer, text = task.tokenizer, task.text(examples)
        assert examples.tokens.shape[1] == examples.length.max() <= task.n_tokens(length)
        assert (examples.tokens >= 0).all()
        assert (examples.tokens < task.d_vocab).all()
        for row, prompt_length, end, is_answer, (prompt, answer) in zip(
            examples.tokens.tolist(),
            examples.prompt_length.tolist(),
            examples.length.tolist(),
            examples.answer.tolist(),
            text,
            strict=True,
        ):
            last = [] if tokenizer.end_id is None else [tokenizer.end_id]
            assert row[:prompt_length] == [tokenizer.begin_id, *tokenizer.encode(prompt)]
            assert row[prompt_length:end] == tokenizer.encode(answer) + last
            assert row[end:] == [tokenizer.pad_id] * (len(row) - end)
            assert is_answer == [prompt_length <= i < end for i in range(len(row))]


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
def test_the_same_seed_gives_the_same_examples(name: str) -> None:
    task, length = TASKS[name], TASKS[name].training_lengths[-1]
    first, again, other = (drawn(task, 8, length, seed) for seed in (5, 5, 6))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.length, again.length)
    assert prompts(task, first) != prompts(task, other)
    # Made anew, and asked in another order, the task holds out the same prompts.
    anew = make_answer_task(name)
    drawn(anew, 3, anew.training_lengths[0], split="validation")
    assert torch.equal(drawn(anew, 8, length, 5).tokens, first.tokens)


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
def test_training_and_validation_share_no_prompt(name: str) -> None:
    task = TASKS[name]
    for length in (task.training_lengths[0], task.training_lengths[-1]):
        fitted = prompts(task, drawn(task, 300, length, seed=1, split="train"))
        scored = prompts(task, drawn(task, 60, length, seed=2, split="validation"))
        assert scored
        assert not fitted & scored


def test_every_prompt_is_in_one_of_the_splits() -> None:
    for length, most in ((2, 1), (3, 2), (4, 4), (6, 16)):
        parts = [
            prompts(TASKS["parity"], drawn(TASKS["parity"], 1000, length, split=split))
            for split in ("train", "validation")
        ]
        assert len(parts[0] | parts[1]) == len(parts[0]) + len(parts[1]) == 2**length
        assert 1 <= len(parts[1]) <= most


def test_an_eighth_of_all_prompts_is_held_out_whatever_their_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    for name in ("parity", "summation", "copy-cmc", "addition"):
        prompt, answer = TASKS[name].problem(20_000, 16, generator)
        is_held_out = held_out(digests(prompt), 0).double()
        # 20,000 draws: a standard error of 0.23 percentage points.
        assert abs(is_held_out.mean() - 1 / 8) < 0.01
        if name == "parity":
            yes = answer[:, 3] == answer[0, 3]
            assert abs(is_held_out[yes].mean() - is_held_out[~yes].mean()) < 0.02


@given(
    rows=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=12), min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 12), max_size=4),
)
def test_gaps_change_nothing_but_the_width(rows: list[list[int]], gaps: list[int]) -> None:
    width = max(map(len, rows))
    dense = torch.tensor([row + [GAP] * (width - len(row)) for row in rows])
    columns = list(dense.unbind(1))
    for gap in gaps:
        columns.insert(min(gap, len(columns)), torch.full((len(rows),), GAP))
    tokens, lengths = packed(torch.stack(columns, 1), 99)
    assert lengths.tolist() == [len(row) for row in rows]
    assert tokens.tolist() == [row + [99] * (width - len(row)) for row in rows]
    assert torch.equal(digests(torch.stack(columns, 1)), digests(dense))
    swapped = [list(reversed(row)) for row in rows]
    for row, other in zip(rows, swapped, strict=True):
        one, two = (digests(torch.tensor([x])) for x in (row, other))
        assert (one == two).all() == (row == other)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20))
def test_numbers_are_written_as_python_writes_them(values: list[int]) -> None:
    for value, digits in zip(values, number(torch.tensor(values), 4).tolist(), strict=True):
        assert "".join(str(d) for d in digits if d != GAP) == str(value)


@pytest.mark.parametrize("name", ["addition", "scan", "parity", "indexing"])
def test_datasets_hold_equally_many_of_each_length(name: str) -> None:
    task = TASKS[name]
    for split, lengths in (
        ("train", task.training_lengths),
        ("validation", task.training_lengths),
        ("test", task.test_lengths),
    ):
        found = dataset(task, 7, split=split, seed=3)
        assert list(found) == list(lengths)
        assert {len(examples.tokens) for examples in found.values()} == {7}
        some = dataset(task, 7, split=split, seed=3, lengths=[lengths[-1]])
        assert torch.equal(some[lengths[-1]].tokens, found[lengths[-1]].tokens)
        other = dataset(task, 7, split=split, seed=4, lengths=[lengths[-1]])
        assert not torch.equal(other[lengths[-1]].tokens, some[lengths[-1]].tokens)


def test_addition_draws_all_pairs_of_digit_counts_alike() -> None:
    task = TASKS["addition"]
    counts: dict[tuple[int, ...], int] = {}
    for prompt, _ in task.text(drawn(task, 7000, 4, split="train")):
        assert addition(prompt)[1] == 4
        pair = tuple(len(re.findall(r"\d", side)) for side in prompt.split("+"))
        counts[pair] = counts.get(pair, 0) + 1
    assert set(counts) == {(4, j) for j in range(1, 5)} | {(i, 4) for i in range(1, 4)}
    # 1000 expected of each: a standard error of 29.
    assert max(abs(count - 1000) for count in counts.values()) < 150


def test_scan_has_the_commands_that_the_published_splits_count() -> None:
    every = commands()
    texts = [" ".join(words) for words, _ in every]
    assert len(set(texts)) == len(texts) == 20_910  # Lake and Baroni 2018
    assert all(
        list(acts) == scan_actions(text) for text, (_, acts) in zip(texts, every, strict=True)
    )
    n_actions = torch.tensor([len(actions) for _, actions in every])
    assert n_actions.max() == 48
    assert (n_actions <= 22).sum() == 16_990  # their own length split
    assert (n_actions > 25).sum() == 3136  # the one of Kazemnejad et al. 2023
    task = TASKS["scan"]
    assert max(task.training_lengths) <= 25 < min(task.test_lengths)
    assert set(lengths_of(task)) == set(n_actions.tolist())


@pytest.mark.parametrize("name", list(STEPS))
@given(data=st.data(), seed=st.integers(0, 2**40))
@settings(max_examples=10)
def test_scratchpads_hold_the_steps_that_lead_to_the_answer(
    name: str, data: st.DataObject, seed: int
) -> None:
    parts = data.draw(st.sets(st.sampled_from(TASKS[name].parts), min_size=1))
    length = data.draw(st.sampled_from(lengths_of(TASKS[name])))
    task = make_answer_task(name, scratchpad=parts)
    for prompt, output in task.text(drawn(task, 4, length, seed)):
        steps = STEPS[name](prompt)
        answer = ORACLES[name](prompt)[0]
        assert output == f"Thinking step by step: {written(steps, parts)} . Thus, {answer}"
        assert without_steps(output) == answer
        last = {
            "addition": " ".join(step["output"] for step in reversed(steps)),
            "parity": {"0": "Yes", "1": "No"}.get(steps[-1]["output"], ""),
            "lego": steps[-1]["output"],
            "sort-single": "[ " + " , ".join(step["output"] for step in steps) + " ]",
            "sort-multi": "[ " + " , ".join(step["output"] for step in steps) + " ]",
        }.get(name, steps[-1].get("variables", "")[-1:])
        assert answer.endswith(f" is {last} .")


def test_a_scratchpad_changes_neither_the_prompts_nor_the_splits() -> None:
    plain, stepped = TASKS["parity"], make_answer_task("parity", scratchpad={"output"})
    for split in ("train", "validation"):
        one, two = (drawn(task, 50, 6, seed=4, split=split) for task in (plain, stepped))
        assert [p for p, _ in plain.text(one)] == [p for p, _ in stepped.text(two)]


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
def test_every_task_can_be_trained_on_and_read(name: str) -> None:
    task = make_task(name)
    assert isinstance(task, AnswerTask)
    assert task.name == name
    shortest = min(task.n_tokens(length) for length in task.training_lengths)
    seq_len = max(shortest, 24)
    config = TransformerConfig(1, 16, 2, d_vocab=task.d_vocab, n_ctx=seq_len)
    training = TrainingConfig(steps=2, batch_size=4, seq_len=seq_len)
    model = train(config, training, task, show_progress=False)
    source, uniform = task.source(), task.uniform_source()
    for begin_token in (False, True):
        for seen in (source, uniform):
            rows = seen.sequences(5, seq_len, begin_token=begin_token, split="fit", seed=0)
            assert rows.shape == (5, seq_len)
            assert ((rows[:, 0] == task.tokenizer.begin_id).all()) == begin_token
            pad_id = task.tokenizer.pad_id
            assert pad_id is None or not (rows == pad_id).any()
            assert model(rows).isfinite().all()


def test_batches_fit_and_come_in_all_lengths_that_fit() -> None:
    task = StringTask("copy-cmc")
    seen = set()
    for seed in range(60):
        tokens, predicted = task.batch(3, 14, torch.Generator().manual_seed(seed))
        assert tokens.shape[1] <= 14
        seen.add((tokens.shape[1] - 4) // 2)
        assert (predicted.sum(1) == (tokens.shape[1] - 4) // 2 + 1).all()
        assert predicted[:, -1].all()
    assert seen == {2, 3, 4, 5}
    with pytest.raises(
        UserError, match="copy-cmc: use at least 8, since its shortest examples may"
    ):
        task.batch(3, 7, torch.Generator())


def test_sources_show_whole_examples_and_hold_prompts_out() -> None:
    task = TASKS["addition"]
    for split, part in (("fit", "train"), ("held_out", "validation")):
        rows = task.source().sequences(40, 60, begin_token=True, split=split, seed=0)
        first = [task.tokenizer.decode(row).split("<end>")[0] for row in rows.tolist()]
        allowed = prompts(task, drawn(task, 1, 8, split=part))
        assert allowed
        for text in first:
            prompt, _, answer = text.removeprefix("<begin> ").partition(" ? ")
            assert addition(prompt + " ?") == (answer.strip(), 8)
    fit, score = (
        task.source().sequences(60, 34, begin_token=False, split=split, seed=0)
        for split in ("fit", "held_out")
    )
    assert not {tuple(r[:18]) for r in fit.tolist()} & {tuple(r[:18]) for r in score.tolist()}


def test_padding_cannot_be_seen() -> None:
    task = TASKS["sort-multi"]
    examples = drawn(task, 6, 5)
    assert len(set(examples.length.tolist())) > 1
    config = TransformerConfig(2, 32, 2, d_vocab=task.d_vocab, n_ctx=100, init_scale=0.2)
    model = HookedTransformer(config).eval().double()
    padded = model(examples.tokens)
    for row, length, logits in zip(examples.tokens, examples.length.tolist(), padded, strict=True):
        torch.testing.assert_close(model(row[None, :length])[0], logits[:length])


def test_texts_are_read_alike_by_a_hugging_face_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    task = make_answer_task("polynomial", scratchpad=set(SCRATCHPAD_PARTS))
    words = tokenizers.models.WordLevel({w: i for i, w in enumerate(task.vocabulary())}, "?")
    inner = tokenizers.Tokenizer(words)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    theirs = PreTrainedTokenizerFast(tokenizer_object=inner)
    for prompt, answer in task.text(drawn(task, 5, 6)):
        assert theirs(prompt + " " + answer).input_ids == task.tokenizer.encode(
            prompt + " " + answer
        )


def byte_tokenizer(**special: str) -> Any:
    """A real tokenizer of transformers: bytes, with merges of letters and spaces learned here."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    inner = ByteLevelBPETokenizer()
    inner.train_from_iterator(["Copy: a b c d [SEP] a b c d"] * 4, vocab_size=300, min_frequency=2)
    inner.add_special_tokens([*special.values()])
    return PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, **special)


@pytest.mark.parametrize("special", [{}, {"bos_token": "<s>", "pad_token": "<p>"}])
def test_examples_in_other_tokens_say_the_same(special: dict[str, str]) -> None:
    theirs = byte_tokenizer(eos_token="</s>", **special)
    task = make_answer_task("copy-cmc")
    examples = drawn(task, 5, 6)
    found = retokenized(task, examples, theirs)
    begin = [theirs.bos_token_id] if special else []
    rows = zip(found.tokens, found.prompt_length.tolist(), found.length.tolist(), strict=True)
    for (row, asked, length), (prompt, answer) in zip(rows, task.text(examples), strict=True):
        assert row[: len(begin)].tolist() == begin
        assert theirs.decode(row[len(begin) : asked]) == prompt
        assert theirs.decode(row[asked : length - 1]) == f" {answer}"
        assert row[length - 1] == theirs.eos_token_id
        assert set(row[length:].tolist()) <= {theirs.pad_token_id, theirs.eos_token_id}
    # A model's exact answers are looked at as those of the task's own tokens are.
    model = HookedTransformer(TransformerConfig(1, 16, 1, d_vocab=len(theirs), n_ctx=64)).eval()
    assert not exact_matches(model, found).any()
    greedy = model.generate(found.tokens[:1, : found.prompt_length[0]], 3)
    followed = Examples(greedy, found.prompt_length[:1], torch.tensor([greedy.shape[1]]))
    assert exact_matches(model, followed).all()


def test_a_tokenizer_without_an_end_is_refused() -> None:
    task = make_answer_task("copy-cmc")
    with pytest.raises(UserError, match="no end token"):
        retokenized(task, drawn(task, 5, 6), byte_tokenizer())


@given(st.lists(st.text("abcxyz[]", min_size=1, max_size=4), min_size=1, unique=True), st.data())
def test_words_round_trip(words: list[str], data: st.DataObject) -> None:
    tokenizer = WordTokenizer(words)
    text = " ".join(data.draw(st.lists(st.sampled_from(words))))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([0, 300]) == f"{words[0]} <300>"
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (
        len(words),
        len(words) + 1,
        len(words) + 2,
    )
    assert tokenizer.d_vocab == len(words) + 3
    with pytest.raises(UserError, match="unknown word of this task 'A'"):
        tokenizer.encode("A")


@pytest.mark.parametrize("name", ANSWER_TASK_NAMES)
def test_tasks_have_no_word_twice(name: str) -> None:
    tokenizer = TASKS[name].tokenizer
    ids = list(range(tokenizer.d_vocab))
    assert len({tokenizer.decode([i]) for i in ids}) == len(ids)
    assert [i for i in ids[:-3] if tokenizer.encode(tokenizer.decode([i])) != [i]] == []


def test_reversal_keeps_the_tokens_of_saved_models() -> None:
    tokenizer = ReversalTask().tokenizer
    assert tokenizer.d_vocab == 28
    assert tokenizer.encode("az=") == [0, 25, 26]
    assert tokenizer.begin_id == 27
    assert tokenizer.decode([27, 0, 26, 0]) == "<begin>a=a"
    tokens, predicted = ReversalTask().batch(4, 20, torch.Generator().manual_seed(3))
    equals = int((tokens[0] == 26).nonzero())
    assert predicted[0].nonzero().flatten().tolist() == list(range(equals + 1, tokens.shape[1]))


# Of pairs of counts of digits up to 4, and of commands of 2 to 5 actions, how many have a length.
_PAIRS = Counter(max(pair) for pair in product(range(1, 5), repeat=2))
_COMMANDS = Counter(len(scan_actions(" ".join(words))) for words, _ in commands())


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("addition", dict.fromkeys(range(1, 5), 1)),
        ("addition-natural", _PAIRS),
        ("scan", dict.fromkeys(range(2, 6), 1)),
        ("scan-natural", {n: _COMMANDS[n] for n in range(2, 6)}),
    ],
)
def test_training_draws_lengths_alike_or_naturally(name: str, weights: dict[int, int]) -> None:
    task, generator = make_task(name, lengths=(min(weights), max(weights))), torch.Generator()
    assert isinstance(task, AnswerTask)
    seen: Counter[int] = Counter()
    for _ in range(1600):
        tokens, answer = task.batch(1, 60, generator)
        prompt = task.tokenizer.decode(tokens[0, 1 : int(answer[0].nonzero()[0])].tolist())
        seen[ORACLES[name](prompt)[1]] += 1
    assert set(seen) == set(weights)
    for length, weight in weights.items():
        expected = 1600 * weight / sum(weights.values())
        # Five standard deviations of a Poisson count.
        assert abs(seen[length] - expected) < 5 * math.sqrt(expected)


def test_longer_ranges_can_be_asked_for() -> None:
    task = make_answer_task("parity", training_lengths=range(3, 12), test_lengths=(20, 30))
    assert list(dataset(task, 2, split="test", seed=0)) == [20, 30]
    assert list(dataset(task, 2, split="train", seed=0)) == list(range(3, 12))
    big = make_answer_task("addition", training_lengths=[1], test_lengths=[60])
    prompt, answer = big.text(drawn(big, 1, 60))[0]
    assert (answer, 60) == addition(prompt)
    for shorter, longer in pairwise(range(1, 20)):
        assert big.n_tokens(shorter) < big.n_tokens(longer)


def test_what_cannot_be_asked_for() -> None:
    generator = torch.Generator()
    for wrong, message in (
        (lambda: make_answer_task("paritty"), "did you mean 'parity'"),
        (lambda: StringTask("copy-cm"), "did you mean 'copy-cmc'"),
        (lambda: make_answer_task("scan", scratchpad={"input"}), "'scan' has no scratchpad"),
        (lambda: make_answer_task("lego", scratchpad={"variables"}), "steps of lego have no var"),
        (lambda: make_answer_task("parity", scratchpad={"ouput"}), "did you mean 'output'"),
        (lambda: make_answer_task("parity", scratchpad=set()), "without parts is empty"),
        (lambda: make_answer_task("parity", training_lengths=[0]), "the nearest length is 1"),
        (lambda: make_answer_task("parity", training_lengths=[]), "no training lengths"),
        (lambda: make_answer_task("parity", training_lengths=range(2, 12)), "tested at length 9"),
        (lambda: make_answer_task("lego", test_lengths=[27]), "the nearest length is 26"),
        (lambda: make_answer_task("ordering", test_lengths=[27]), "the nearest length is 26"),
        (lambda: IndexingTask().n_tokens(27), "the nearest length is 26"),
        (lambda: TASKS["scan"].n_tokens(29), "no examples of length 29"),
        (lambda: drawn(TASKS["parity"], 0, 4), "ask for at least 1"),
        (lambda: drawn(TASKS["parity"], 2, 4, split="test"), "trains on length 4"),
        (lambda: drawn(TASKS["parity"], 2, 9, split="train"), "not among the training lengths"),
        (lambda: TASKS["parity"].check_split(4, "valid"), "did you mean 'validation'"),
        (
            lambda: dataset(
                make_answer_task("parity", training_lengths=[1]), 2, split="train", seed=0
            ),
            "only 2 prompts of length 1",
        ),
        (lambda: ReversalTask().tokenizer.encode("A"), "unknown character of this task 'A'"),
        (lambda: ReversalTask().batch(2, 5, generator), "use at least 6"),
        (
            lambda: make_answer_task("parity", training_lengths=range(1, 9)).batch(
                2, 50, generator
            ),
            "only 2 prompts of length 1",
        ),
    ):
        with pytest.raises(UserError, match=message):
            wrong()


@pytest.mark.parametrize("name", ["pcfg", "scan", "sort-multi", "copy-rsc"])
def test_a_row_of_one_example_holds_no_second_one(name: str) -> None:
    """Though examples of one length differ in their tokens: they are cut, none follows another."""
    task = make_answer_task(name)
    source, length = task.source().single(128)
    rows = source.sequences(200, length, begin_token=True, split="fit", seed=3)
    assert 8 <= length == rows.shape[1]
    ended = (rows[:, :-1] == task.tokenizer.end_id).any(dim=1)
    assert ended.double().mean() < 0.02
