"""What is kept between requests: the last values, up to a number of bytes."""

from dataclasses import dataclass

import pytest

from experiments.explore.kept import Kept


@dataclass(frozen=True)
class Value:
    n_bytes: int


def test_the_last_used_stay_and_others_are_made_again() -> None:
    kept, made = Kept[Value](100), list[str]()

    def get(key: str, n_bytes: int = 40) -> Value:
        def make() -> Value:
            made.append(key)
            return Value(n_bytes)

        return kept.get(key, make)

    for key in "abac":  # c takes the place of b, which was used before a
        get(key)
    assert (made, kept.n_bytes) == (["a", "b", "c"], 80)
    get("a")
    get("b")
    assert made == ["a", "b", "c", "b"]
    assert get("large", 101).n_bytes == 101
    assert kept.n_bytes == 0


def test_what_cannot_be_made_is_not_kept() -> None:
    kept = Kept[Value]()

    def fail() -> Value:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.get("a", fail)
    assert kept.get("a", lambda: Value(1)).n_bytes == 1
