"""Tasks with a prompt and an answer, of every length: what length generalisation is measured on.

Kazemnejad et al. 2023 (arXiv 2305.19466) train on short examples and ask for longer
ones. Here a task is made with the lengths that it trains on. Within these, each prompt belongs
either to training or to validation, whatever the seed; a test is only drawn at other lengths. So
the three share no prompt, by construction.

The models here read words, not pieces of words: the prompts are the paper's, with one token for
each word, digit and sign. `AnswerTask.text` gives them as text, `retokenized` in the tokens of any
Hugging Face tokenizer.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Literal, get_args

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Generator, Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.shapes import Marked, Sequences, Tokens
from nope_interp.tasks.examples import Examples
from nope_interp.tasks.sources import Split, TokenSource, UniformSource
from nope_interp.tasks.token_grid import (
    GAP,
    HELD_OUT_ONE_IN,
    Words,
    digests,
    held_out,
    joined,
    packed,
)
from nope_interp.tasks.tokenizer import WordTokenizer

TaskSplit = Literal["train", "validation", "test"]
# Prompts and their answers, each row with gaps.
Problem = tuple[Words, Words]

# What is answered where the question's symbols are told to stand elsewhere: the symbol that is then
# asked for, the place that is then told, or the same.
WhenMoved = Literal["symbol", "place", "same"]

# With fewer prompts of a length, holding some out would leave nothing to learn the length from.
_FEWEST_PROMPTS = 4
# Prompts looked at to see how many of a length are held out.
_PROMPTS_LOOKED_AT = 512
# Examples looked at to see how short the shortest ones are.
_EXAMPLES_LOOKED_AT = 256
# With fewer positions probes have too little to read.
_FEWEST_TOKENS = 8
# Of the prompts of a length, the largest share that may be held out. An eighth is aimed at.
_LARGEST_SHARE = 0.25
# Drawn at a time at most, to bound the memory that the prompts of the other split take.
_MOST_DRAWN = 2**16


class AnswerTask(ABC):
    """A task whose examples come in lengths, and that keeps its splits apart.

    A subclass gives `name` or `variants`, `symbols`, `frame`, the lengths, and `problem`.

    Args:
        name: which of the variants, where the class has several; else its own, or none.
        training_lengths: what training and validation are drawn from; by default the paper's.
        test_lengths: what tests are drawn from by default.

    Raises UserError for another name, and where a length is impossible, or in both.

    Attributes:
        variants: the names of tasks that the class makes; none where it has one name.
        symbols: words whose ids are their positions here.
        frame: the other words, separated by spaces; the same one may come again.
        joiner: what stands between two words in the task's text.
        marks: the tokens that are not words.
        possible_lengths: all lengths that the task has examples of.
        moved: `when_moved`, where all of a class have the same, but for those with a scratchpad.
    """

    name: str
    variants: ClassVar[tuple[str, ...]] = ()
    symbols: ClassVar[tuple[str, ...]]
    frame: ClassVar[str] = ""
    joiner: ClassVar[str] = " "
    marks: ClassVar[tuple[str, ...]] = ("<begin>", "<end>", "<pad>")
    moved: ClassVar[WhenMoved | None] = None
    training_lengths: Sequence[int]
    test_lengths: Sequence[int]
    possible_lengths: Sequence[int] = range(1, 10_001)

    def __init__(
        self,
        name: str | None = None,
        *,
        training_lengths: Sequence[int] | None = None,
        test_lengths: Sequence[int] | None = None,
    ) -> None:
        if self.variants or name is not None:
            known = self.variants or (self.name,)
            if name not in known:
                raise unknown_name("task", name, known)
            self.name = str(name)
        if training_lengths is not None:
            self.training_lengths = training_lengths
        if test_lengths is not None:
            self.test_lengths = test_lengths
        self._check_lengths()
        self.tokenizer = WordTokenizer(self.vocabulary(), self.joiner, self.marks)
        self._widths: dict[int, int] = {}
        self._salts: dict[int, int] = {}

    @abstractmethod
    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        """`n` prompts and their answers, as rows with gaps that are equally wide for one length.

        Args:
            n: examples.
            length: one of `possible_lengths`.
            generator: what chance is drawn from.

        Returns:
            Prompts and answers, `[example pos]` each, with `GAP` where a word is missing.
        """

    @property
    def when_moved(self) -> WhenMoved | None:
        """What becomes of an answer where the question's symbols are told to stand elsewhere; None
        where no one can say."""
        return self.moved

    @property
    def d_vocab(self) -> int:
        """How many tokens there are."""
        return self.tokenizer.d_vocab

    def weight(self, length: int) -> int:
        """How often training draws a length, beside others."""
        return 1

    def vocabulary(self) -> tuple[str, ...]:
        """The words that this task's tokens stand for."""
        return tuple(dict.fromkeys([*self.symbols, *self.frame.split()]))

    def source(self) -> "ExampleSource":
        """Training prompts to fit probes on, validation prompts to score them on."""
        return ExampleSource(self)

    def uniform_source(self) -> UniformSource:
        """The words, equally likely, with no prompt and no answer in them."""
        return UniformSource(self.tokenizer.word_ids, self.tokenizer.begin_id)

    def n_tokens(self, length: int) -> int:
        """What no example of that length has more tokens than, begin and end tokens included."""
        if length not in self._widths:
            self._check_possible(length)
            prompt, answer = self.problem(1, length, Generator().manual_seed(0))
            ends = 1 + (self.tokenizer.end_id is not None)
            self._widths[length] = prompt.shape[1] + answer.shape[1] + ends
        return self._widths[length]

    def fitting_lengths(self, seq_len: int) -> list[int]:
        """The training lengths whose examples always fit into `seq_len` tokens."""
        return [length for length in self.training_lengths if self.n_tokens(length) <= seq_len]

    def examples(self, n: int, length: int, generator: Generator, *, split: TaskSplit) -> Examples:
        """`n` examples of one length, drawn independently: where prompts are few, some recur.

        Args:
            n: at least 1.
            length: one that the split has.
            generator: what chance is drawn from.
            split: `train`, `validation` or `test`.

        Returns:
            The examples.

        Raises:
            UserError: for a length that the split, or the task, has no examples of.
        """
        self.check_split(length, split)
        if n < 1:
            raise UserError(f"{n} examples of {self.name!r} were asked for: ask for at least 1.")
        prompt, answer = self._problems(n, length, generator, split)
        assert self.tokenizer.begin_id is not None
        begin = prompt.new_full((n, 1), self.tokenizer.begin_id)
        end_id = self.tokenizer.end_id
        end = prompt.new_full((n, 0 if end_id is None else 1), end_id or 0)
        # A task without padding has examples of one length that are equally long.
        fill = GAP if self.tokenizer.pad_id is None else self.tokenizer.pad_id
        tokens, lengths = packed(torch.cat([begin, prompt, answer, end], dim=1), fill)
        return Examples(tokens, 1 + (prompt != GAP).sum(1), lengths)

    def check_split(self, length: int, split: str) -> None:
        """Make sure that a split has examples of a length.

        Args:
            length: of the examples.
            split: `train`, `validation` or `test`.

        Raises:
            UserError: for an unknown split, and for a length that the split does not have.
        """
        self._check_possible(length)
        if split not in get_args(TaskSplit):
            raise unknown_name("split", split, get_args(TaskSplit))
        if split == "test" and length in self.training_lengths:
            raise UserError(
                f"{self.name} trains on length {length}: ask for its validation split, or test on "
                "other lengths."
            )
        if split != "test" and length not in self.training_lengths:
            raise UserError(
                f"length {length} is not among the training lengths of {self.name}: ask for the "
                "test split, or make the task with other training lengths."
            )

    def batch(self, n: int, seq_len: int, generator: Generator) -> tuple[Tokens, Marked]:
        """Training examples of one length that fits, by `weight`, and which tokens are the answer.

        Args:
            n: examples.
            seq_len: tokens that have to hold them.
            generator: what chance is drawn from.

        Returns:
            Tokens and which of them are the answer or its end, `[batch pos]` each.

        Raises:
            UserError: where no training length fits, or one of those that fit has too few prompts.
        """
        fitting = self.fitting_lengths(seq_len)
        if not fitting:
            needed = min(self.n_tokens(length) for length in self.training_lengths)
            raise UserError(
                f"sequences of {seq_len} tokens are too short for {self.name}: use at least "
                f"{needed}, since its shortest examples may have as many."
            )
        # A length with too few prompts is refused now, not at the step that first draws it.
        for length in fitting:
            self._salt(length)
        up_to = list(accumulate(map(self.weight, fitting)))
        length = fitting[bisect(up_to, int(torch.randint(up_to[-1], (), generator=generator)))]
        examples = self.examples(n, length, generator, split="train")
        return examples.tokens, examples.answer

    def text(self, examples: Examples) -> list[tuple[str, str]]:
        """The prompt and the answer of each example as text, for another tokenizer."""
        decode = self.tokenizer.decode
        pairs = []
        lengths = zip(examples.prompt_length.tolist(), examples.length.tolist(), strict=True)
        for row, (prompt, end) in zip(examples.tokens.tolist(), lengths, strict=True):
            end -= self.tokenizer.end_id is not None
            pairs.append((decode(row[1:prompt]), decode(row[prompt:end])))
        return pairs

    def row(self, *parts: str | Words) -> Words:
        """Words that all examples share, and rows of their own, one after another."""
        n = next(len(part) for part in parts if isinstance(part, Tensor))
        encode = self.tokenizer.encode
        encoded = [
            part if isinstance(part, Tensor) else torch.tensor(encode(part), dtype=torch.long)
            for part in parts
        ]
        return torch.cat([part.expand(n, part.shape[-1]) for part in encoded], dim=1)

    def listed(self, items: Int[Tensor, "example item *word"], mark: str) -> Words:
        """The items one after another, with a word between each two.

        Args:
            items: a word each, or a row of words with gaps.
            mark: what stands between them.

        Returns:
            `[example pos]`, with the gaps of the items.
        """
        if items.ndim == 2:
            items = rearrange(items, "example item -> example item 1")
        return joined(items, *self.tokenizer.encode(mark))

    def _problems(self, n: int, length: int, generator: Generator, split: TaskSplit) -> Problem:
        """Prompts of one split: all are drawn, those of the other split are dropped."""
        if split == "test":
            return self.problem(n, length, generator)
        salt = self._salt(length)
        share = 1 / HELD_OUT_ONE_IN if split == "validation" else 1 - 1 / HELD_OUT_ONE_IN
        prompts: list[Tensor] = []
        answers: list[Tensor] = []
        missing = n
        while missing > 0:
            drawn = min(math.ceil(1.1 * missing / share) + 16, _MOST_DRAWN)
            prompt, answer = self.problem(drawn, length, generator)
            wanted = held_out(digests(prompt), salt) == (split == "validation")
            prompts.append(prompt[wanted][:missing])
            answers.append(answer[wanted][:missing])
            missing -= len(prompts[-1])
        return torch.cat(prompts), torch.cat(answers)

    def _salt(self, length: int) -> int:
        """What the choice of held-out prompts of a length is salted with.

        Where prompts are many, the first salt does. Where there are four of them, most salts hold
        out none: the first that holds out some, and at most a quarter, is taken.
        """
        if length not in self._salts:
            prompt, _ = self.problem(_PROMPTS_LOOKED_AT, length, Generator().manual_seed(length))
            distinct = digests(prompt).unique()
            if len(distinct) < _FEWEST_PROMPTS:
                raise UserError(
                    f"{self.name} has only {len(distinct)} prompts of length {length}, too few to "
                    "hold any out: leave this length out of the training lengths."
                )
            salt = 0
            while not 0 < held_out(distinct, salt).double().mean() <= _LARGEST_SHARE:
                salt += 1
            self._salts[length] = salt
        return self._salts[length]

    def _check_lengths(self) -> None:
        if not self.training_lengths:
            raise UserError(f"{self.name} has no training lengths: give at least one.")
        for length in (*self.training_lengths, *self.test_lengths):
            self._check_possible(length)
        both = sorted(set(self.training_lengths) & set(self.test_lengths))
        if both:
            raise UserError(
                f"{self.name} would be tested at length {both[0]}, which it trains on: give test "
                "lengths apart from the training lengths."
            )

    def _check_possible(self, length: int) -> None:
        if length not in self.possible_lengths:
            nearest = min(self.possible_lengths, key=lambda possible: abs(possible - length))
            raise UserError(
                f"{self.name} has no examples of length {length}: the nearest length is {nearest}."
            )


class ExampleSource(TokenSource):
    """Examples for probes. The two splits share no prompt.

    Args:
        task: what they are of.
        length: of all of them; None takes the longest training length that fits a row.
    """

    always_begins = True

    def __init__(self, task: AnswerTask, length: int | None = None) -> None:
        self.task = task
        self._length = length
        self.name = task.name
        self.begin_id = task.tokenizer.begin_id

    def single(self, seq_len: int) -> tuple[TokenSource, int]:
        """Rows as long as the shortest of many examples: in a longer row another example would
        stand behind some, as in no training. But at least as long as probes need."""
        length = self._of_length(seq_len)
        seeded = Generator().manual_seed(0)
        some = self.task.examples(_EXAMPLES_LOOKED_AT, length, seeded, split="train")
        row = min(seq_len, max(_FEWEST_TOKENS, int(some.length.min())))
        return ExampleSource(self.task, length), row

    def _of_length(self, seq_len: int) -> int:
        if self._length is not None:
            return self._length
        fitting = self.task.fitting_lengths(seq_len)
        return max(fitting) if fitting else min(self.task.training_lengths)

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """`n` rows of examples of one length.

        Where one example does not fill a row, more follow; the row is cut to `seq_len`.
        """
        length = self._of_length(seq_len)
        part: TaskSplit = "train" if split == "fit" else "validation"
        room = seq_len - begin
        rows = torch.empty((n, 0), dtype=torch.long)
        while int((rows != GAP).sum(1).min()) < room:
            examples = self.task.examples(n, length, generator, split=part)
            end = rearrange(examples.length, "sequence -> sequence 1")
            padding = torch.arange(examples.tokens.shape[1]) >= end
            rows = torch.cat([rows, examples.tokens.masked_fill(padding, GAP)[:, 1:]], dim=1)
        return packed(rows, GAP)[0][:, :room]
