"""What of a text is shown: prose before tables, and every part as it stands in a sequence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from experiments.heads.prompts import prose, readable

TABLE = "| :meth:`x` | 3.5 | +----+ |\n" * 4
PROSE = "and so on. The cat sat on the mat. It was a very fine mat, and the cat liked it so much."


def letters(tokens: Tensor) -> list[str]:
    return ["<begin>" if token == 0 else chr(token) for token in tokens.tolist()]


def sequence(text: str, begin: bool) -> list[int]:
    return [*([0] if begin else []), *map(ord, (text * 9)[:80])]


@pytest.mark.parametrize("begin", [True, False])
def test_prose_is_shown_before_tables_and_begins_with_a_sentence(begin: bool) -> None:
    sequences = torch.tensor([sequence(text, begin) for text in (TABLE, PROSE, TABLE)])
    first, second = readable(sequences, letters, n=2, length=40 + begin, start=int(begin))
    assert "".join(letters(first)[int(begin) :]).startswith(("The cat", "It was"))
    assert (first[0] == 0) == begin
    assert len(first) == 40 + begin
    assert "|" in "".join(letters(second))


@given(st.lists(st.text(min_size=30, max_size=30), min_size=1, max_size=5))
def test_each_part_is_a_stretch_of_its_own_sequence(texts: list[str]) -> None:
    sequences = torch.tensor([[*map(ord, text)] for text in texts])
    parts = readable(sequences, letters, n=3, length=12, start=0)
    assert len(parts) == min(3, len(texts))
    for part in parts:
        assert len(part) == 12
        assert any(
            part.tolist() == whole[at : at + 12] for whole in sequences.tolist() for at in range(19)
        )


def test_plain_words_are_prose() -> None:
    assert prose("The model, it seems, counts.") == 1
    assert prose("don't stop") == 1
    assert prose(TABLE) < 0.1 < 0.9 < prose(PROSE)
    assert prose("") == 0
