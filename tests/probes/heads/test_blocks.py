"""Detectors fed few queries at a time know what they know of whole maps."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probes.errors import ProbeError
from probes.heads.detectors import HeadProbe, HeadScores

LENGTHS = st.integers(12, 40)
WINDOWS = st.one_of(st.none(), st.integers(2, 45))


def seen(length: int, window: int | None) -> Tensor:
    square = torch.ones(length, length, dtype=torch.bool).tril()
    return square if window is None else square.triu(1 - window)


def blocks(maps: Tensor, cuts: list[int], window: int | None, short: bool) -> Iterator[Tensor]:
    """Rows between the cuts, with the keys that some of them see, or with all that came before."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < maps.shape[-1]}), maps.shape[-1]]
    for first, last in itertools.pairwise(edges):
        key = max(first - window + 1, 0) if short and window else 0
        yield maps[..., first:last, key:last].clone()


def fed(probe: HeadProbe, of: dict[str, Tensor], cuts: list[int] | None, short: bool) -> HeadScores:
    """Everything to one probe, in two batches; whole where there are no cuts."""
    length = of["tokens"].shape[1]
    period, start = divmod(length, 2)

    def given_to(read: object, maps: Tensor, *how: object, **named: object) -> None:
        for batch in maps.split(2):
            if cuts is None:
                read(batch, *how, **named)  # type: ignore[operator]
            else:
                for block in blocks(batch, cuts, probe.window, short):
                    read(block, *how, length=length, **named)  # type: ignore[operator]

    given_to(probe.read_text, of["pattern"])
    given_to(probe.read_repeated, of["pattern"], period, start)
    given_to(probe.read_copies, of["pattern"], 1)
    for half, held_out in (([0, 1], False), ([2, 3], True)):
        scores, tokens = of["scores"][half], of["tokens"][half]
        pieces = [scores] if cuts is None else blocks(scores, cuts, probe.window, short)
        for piece in pieces:
            probe.read_scores(piece, tokens, held_out, start=1)
    return probe.result()


def attention(seed: int, length: int, window: int | None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(4, 3, length, length, generator=generator)
    scores = scores.masked_fill(~seen(length, window), -torch.inf)
    tokens = torch.randint(5, (4, length), generator=generator)
    return {"scores": scores, "pattern": scores.softmax(dim=-1), "tokens": tokens}


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    length=LENGTHS,
    window=WINDOWS,
    cuts=st.lists(st.integers(1, 39), max_size=6),
    short=st.booleans(),
)
def test_blocks_of_queries_add_up_to_whole_maps(seed, length, window, cuts, short):
    of = attention(seed, length, window)
    whole, some = (
        fed(HeadProbe(n_resamples=20, window=window), of, given_cuts, short)
        for given_cuts in (None, cuts)
    )
    for field in dataclasses.fields(HeadScores):
        expected, found = getattr(whole, field.name), getattr(some, field.name)
        if field.name == "metrics":
            assert found == expected
        else:
            np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=field.name)


@pytest.mark.parametrize("first", [(12, 1), (0, 13), (4, 3)], ids=["late", "many", "short"])
def test_blocks_that_do_not_follow_each_other_are_refused(first: tuple[int, int]) -> None:
    pattern, (skipped, n) = attention(0, 24, None)["pattern"], first
    probe = HeadProbe()
    if n == 13:
        probe.read_text(pattern[..., :12, :12], length=24)
        wrong = pattern[..., 11:24, :24]
    else:
        wrong = pattern[..., skipped : skipped + n, : skipped + n]
    with pytest.raises(ProbeError, match="in order, with the keys up to the last of them"):
        probe.read_text(wrong, length=24)


def test_a_batch_that_lacks_queries_has_no_result() -> None:
    probe = HeadProbe()
    probe.read_text(attention(0, 24, None)["pattern"][..., :12, :12], length=24)
    with pytest.raises(ProbeError, match="sequences of text lack queries"):
        probe.result()
