"""Tokenizers with no vocabulary to download: one token per byte, or one per word of a task."""

from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Int
from torch import Tensor

from nope_interp.errors import unknown_name


class ByteTokenizer:
    """Bytes of UTF-8 as ids 0..255; id 256 is the begin token.

    Example:
        >>> ByteTokenizer().decode(ByteTokenizer().encode("no position"))
        'no position'
    """

    begin_id = 256
    d_vocab = 257

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; the begin token shows as `<begin>`, broken UTF-8 as replacements, and
        an id that a model has and nothing stands for as `<300>`."""
        return "".join(
            bytes(some).decode("utf-8", errors="replace")
            if are_bytes
            else "".join("<begin>" if index == self.begin_id else f"<{index}>" for index in some)
            for are_bytes, some in groupby(ids, key=lambda index: index < self.begin_id)
        )

    def encode_corpus(self, text: str) -> Int[Tensor, " token"]:
        """The same as `encode`, as one long tensor."""
        return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8).long()


class WordTokenizer:
    """One id per word, in the order given, and after them one per mark.

    Text holds words only. The marks begin, end and pad sequences; they are shown when decoded.

    Args:
        words: the vocabulary, each word once.
        joiner: what stands between two words of a text; without any, words are characters.
        marks: which of `<begin>`, `<end>` and `<pad>` there are, in the order of their ids.

    Example:
        >>> tokenizer = WordTokenizer(("one", "two"))
        >>> tokenizer.encode("two one"), tokenizer.decode([2, 1, 3])
        ([1, 0], '<begin> two <end>')
    """

    def __init__(
        self,
        words: Sequence[str],
        joiner: str = " ",
        marks: Sequence[str] = ("<begin>", "<end>", "<pad>"),
    ) -> None:
        self._words = (*words, *marks)
        self._ids = {word: index for index, word in enumerate(words)}
        self._joiner = joiner
        mark_ids = {mark: len(words) + index for index, mark in enumerate(marks)}
        self.begin_id = mark_ids.get("<begin>")
        self.end_id = mark_ids.get("<end>")
        self.pad_id = mark_ids.get("<pad>")

    @property
    def d_vocab(self) -> int:
        return len(self._words)

    @property
    def word_ids(self) -> Int[Tensor, " word"]:
        """The ids of all words, without the marks."""
        return torch.arange(len(self._ids))

    def encode(self, text: str) -> list[int]:
        """The ids of the words of `text`.

        Args:
            text: words, as the task joins them.

        Returns:
            Token ids.

        Raises:
            UserError: for a word that is not one of the vocabulary's.
        """
        words = text.split() if self._joiner else list(text)
        for word in words:
            if word not in self._ids:
                what = "word of this task" if self._joiner else "character of this task"
                raise unknown_name(what, word, self._ids)
        return [self._ids[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; one that a model has and no word stands for shows as `<300>`."""
        known = len(self._words)
        return self._joiner.join(
            self._words[index] if index < known else f"<{index}>" for index in ids
        )
