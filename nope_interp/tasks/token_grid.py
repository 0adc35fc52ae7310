"""Rows of token ids with gaps in them, and which prompts are held out.

Examples of one length differ in their number of tokens: 7 is one digit, 12 is two. So that they can
be made all at once, every row of a batch gives each word a position and leaves a gap where it has
none; `packed` closes the gaps at the end.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Tensor

# Words of each example, with gaps.
Words = Int[Tensor, "example _"]

GAP = -1

# One prompt in so many is held out for validation.
HELD_OUT_ONE_IN = 8


def stripped(digits: Int[Tensor, "*shape digit"]) -> Int[Tensor, "*shape digit"]:
    """Decimal digits without their leading zeros; the last digit stays, so that 0 is written."""
    leading = digits.cumsum(-1) == 0
    leading[..., -1:] = False
    return digits.masked_fill(leading, GAP)


def number(values: Int[Tensor, "*shape"], n_digits: int) -> Int[Tensor, "*shape digit"]:
    """The decimal digits of whole numbers of at most `n_digits` digits, none negative."""
    powers = 10 ** torch.arange(n_digits - 1, -1, -1)
    return stripped(rearrange(values, "... -> ... 1") // powers % 10)


def joined(items: Int[Tensor, "example item word"], mark: int) -> Words:
    """The items one after another, with the token `mark` between each two."""
    marks = items.new_full((*items.shape[:2], 1), mark)
    row = rearrange(torch.cat([items, marks], dim=2), "example item word -> example (item word)")
    return row[:, :-1]


def packed(rows: Words, fill: int) -> tuple[Int[Tensor, "example pos"], Int[Tensor, " example"]]:
    """The rows with their gaps closed and `fill` at their ends, and how many tokens each has."""
    present = rows != GAP
    lengths = present.sum(1)
    # Gaps all go to one more column, which is then cut off.
    positions = torch.where(present, present.cumsum(1) - 1, rows.shape[1])
    tokens = rows.new_full((len(rows), rows.shape[1] + 1), fill).scatter_(1, positions, rows)
    longest = int(lengths.max()) if len(rows) else 0
    return tokens[:, :longest], lengths


def digests(prompts: Int[Tensor, "example pos"]) -> Int[Tensor, " example"]:
    """A 64-bit number for each row that depends on its tokens and their order, not on its gaps."""
    present = prompts != GAP
    positions = present.cumsum(1) - 1
    return torch.where(present, _mixed(positions * 0x10001 + prompts), 0).sum(1)


def held_out(digests: Int[Tensor, " example"], salt: int) -> Bool[Tensor, " example"]:
    """Which prompts are for validation: one in eight, by chance, but always the same ones."""
    # The lowest three bits of a number that is as good as uniform.
    return (_mixed(_mixed(digests) + salt) & (HELD_OUT_ONE_IN - 1)) == 0


def _mixed(values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """SplitMix64's step and finaliser (Steele, Lea and Flood 2014).

    Every bit of the result depends on every bit of the value.
    """
    values = values + _signed(0x9E3779B97F4A7C15)
    values = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def _shifted(values: Int[Tensor, "*shape"], by: int) -> Int[Tensor, "*shape"]:
    """Shifted right as if unsigned: torch shifts the sign in."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _signed(unsigned: int) -> int:
    """The 64-bit integer of the same bits: torch has no unsigned arithmetic."""
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned
