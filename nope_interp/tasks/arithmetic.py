"""Addition, polynomials, sums and parity, as in Kazemnejad et al. 2023 (arXiv 2305.19466).

Digits are tokens of their own, and so are signs. Each task has a scratchpad.
"""

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from nope_interp.tasks.answers import Problem
from nope_interp.tasks.scratchpad import ScratchpadTask, Step
from nope_interp.tasks.token_grid import GAP, Words, number, stripped

Digits = Int[Tensor, "example digit"]
MoreDigits = Int[Tensor, "example digit_plus_one"]
Terms = Int[Tensor, "example term"]

_DIGITS = tuple("0123456789")


class AdditionTask(ScratchpadTask):
    """ "Compute 5 3 7 + 1 9 ?" and "The answer is 5 5 6 .".

    `length` is the number of digits of the longer operand. All pairs of digit counts with that
    maximum are equally likely, so a test at a longer length has an operand longer than any in
    training. Numbers of the same count are equally likely too; a single digit may be 0. Training
    draws all lengths alike; that of `addition-natural`, as the paper's, all pairs of digit counts.
    """

    variants = ("addition", "addition-natural")
    symbols = _DIGITS
    frame = "Compute + ? The answer is ."
    training_lengths = range(1, 9)
    step_words = ", carry carry: ="

    def weight(self, length: int) -> int:
        return 2 * length - 1 if self.name == "addition-natural" else 1

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        # Pairs of digit counts, of which at least one is `length`: the second operand's runs over
        # all of them, then the first operand's over the shorter ones.
        pair = torch.randint(2 * length - 1, (n,), generator=generator)
        counts = torch.where(pair < length, length, pair - length + 1)
        other_counts = torch.where(pair < length, pair + 1, length)
        a = random_digits(counts, length, generator)
        b = random_digits(other_counts, length, generator)
        total, carries = column_addition(a, b)
        prompt = self.row("Compute", stripped(a), "+", stripped(b), "?")
        answer = self.row("The answer is", stripped(total), ".")
        return prompt, self.with_steps(self._steps(a, b, carries), answer)

    def _steps(self, a: Digits, b: Digits, carries: MoreDigits) -> Iterator[Step]:
        """One step for each column, from the right, and one for the last carry if there is one."""
        a, b, carried_on = (pad(digits, (1, 0)) for digits in (a, b, carries))
        for column in reversed(range(a.shape[1])):
            digits, others, old, new = (x[:, [column]] for x in (a, b, carries, carried_on))
            plain, total = (number(x[:, 0], 2) for x in (digits + others, digits + others + old))
            rest, other_rest = stripped(a[:, 1:column]), stripped(b[:, 1:column])
            yield Step(
                input=self.row(digits, ",", others),
                computation=self.row(digits, "+", others, "+ carry =", plain, "+", old, "=", total),
                output=(digits + others + old) % 10,
                variables=self.row("carry:", new),
                remaining=self.row(rest, "+", other_rest),
                taken=None if column else old[:, 0] > 0,
            )


class PolynomialTask(ScratchpadTask):
    """ "Evaluate at x = 2 in 3 * x ** 0 + - 1 * x ** 2 ?" and "The answer is 9 .".

    `length` is the number of terms. Coefficients are drawn from -3..3, degrees from 0..3, x from
    -2..2, all equally likely; the answer is the value modulo 10, from 0 to 9.
    """

    name = "polynomial"
    symbols = _DIGITS
    frame = "Evaluate at x = in - * ** + ? The answer is ."
    step_words = "sum:"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        coefficients = torch.randint(-3, 4, (n, length), generator=generator)
        degrees = torch.randint(4, (n, length), generator=generator)
        x = torch.randint(-2, 3, (n, 1), generator=generator)
        values = coefficients * x**degrees
        terms = self._terms(coefficients, degrees)
        sum_of_terms = self.listed(terms, "+")
        prompt = self.row("Evaluate at x =", self._signed(x[:, 0], 1), "in", sum_of_terms, "?")
        answer = self.row("The answer is", values.sum(1, keepdim=True) % 10, ".")
        return prompt, self.with_steps(self._steps(coefficients, degrees, x, terms), answer)

    def _steps(
        self, coefficients: Terms, degrees: Terms, x: Words, terms: Int[Tensor, "example term word"]
    ) -> Iterator[Step]:
        """One step for each term: its value, and the sum so far modulo 10."""
        so_far = torch.zeros_like(x)
        for index in range(terms.shape[1]):
            coefficient = self._signed(coefficients[:, index], 1)
            degree = degrees[:, [index]]
            power = x**degree
            value = coefficients[:, [index]] * power
            written = self._signed(value[:, 0], 2)
            following = (so_far + value) % 10
            put_in = self.row(coefficient, "*", self._signed(x[:, 0], 1), "**", degree)
            multiplied = self.row(coefficient, "*", self._signed(power[:, 0], 1))
            yield Step(
                input=terms[:, index],
                computation=self.row(put_in, "=", multiplied),
                output=written,
                variables=self.row("sum:", so_far, "+", written, "=", following),
                remaining=self.listed(terms[:, index + 1 :], "+"),
            )
            so_far = following

    def _signed(self, values: Int[Tensor, "*shape"], n_digits: int) -> Int[Tensor, "*shape word"]:
        """A minus for negative numbers, then the digits."""
        (minus,) = self.tokenizer.encode("-")
        signs = rearrange(torch.where(values < 0, minus, GAP), "... -> ... 1")
        return torch.cat([signs, number(values.abs(), n_digits)], dim=-1)

    def _terms(self, coefficients: Terms, degrees: Terms) -> Int[Tensor, "example term word"]:
        times = torch.tensor(self.tokenizer.encode("* x **")).expand(*degrees.shape, -1)
        degree = rearrange(degrees, "example term -> example term 1")
        return torch.cat([self._signed(coefficients, 1), times, degree], dim=2)


class SummationTask(ScratchpadTask):
    """ "Compute: 4 + 7 + 2 ." and "The answer is 3 .": digits from 1 to 9, their sum modulo 10.

    `length` is the number of digits.
    """

    name = "summation"
    symbols = _DIGITS
    frame = "Compute: + . The answer is ."
    step_words = "sum sum: ="
    moved = "same"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        digits = torch.randint(1, 10, (n, length), generator=generator)
        prompt = self.row("Compute:", self.listed(digits, "+"), ".")
        answer = self.row("The answer is", digits.sum(1, keepdim=True) % 10, ".")
        return prompt, self.with_steps(self._steps(digits), answer)

    def _steps(self, digits: Digits) -> Iterator[Step]:
        """One step for each digit: the sum so far with it, and the same modulo 10."""
        so_far = torch.zeros_like(digits[:, :1])
        for index in range(digits.shape[1]):
            digit = digits[:, [index]]
            total = number((digit + so_far)[:, 0], 2)
            following = (digit + so_far) % 10
            yield Step(
                input=digit,
                computation=self.row(digit, "+ sum =", digit, "+", so_far),
                output=total,
                variables=self.row("sum:", total, "=", following),
                remaining=self.listed(digits[:, index + 1 :], "+"),
            )
            so_far = following


class ParityTask(ScratchpadTask):
    """ "Is the number of 1's even in the sequence [ 1 , 0 , 1 ] ?" and "The answer is Yes .".

    `length` is the number of bits, each 0 or 1 with equal probability.
    """

    name = "parity"
    symbols = ("0", "1")
    frame = "Is the number of 1's even in the sequence [ , ] ? The answer is Yes No ."
    # The paper writes exclusive or as **.
    step_words = "** par par: ="
    moved = "same"

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        bits = torch.randint(2, (n, length), generator=generator)
        yes, no = self.tokenizer.encode("Yes No")
        even = torch.where(bits.sum(1, keepdim=True) % 2 == 0, yes, no)
        every = self.listed(bits, ",")
        prompt = self.row("Is the number of 1's even in the sequence [", every, "] ?")
        answer = self.row("The answer is", even, ".")
        return prompt, self.with_steps(self._steps(bits), answer)

    def _steps(self, bits: Int[Tensor, "example bit"]) -> Iterator[Step]:
        """One step for each bit: the parity so far, 1 for an odd number of ones."""
        parity = torch.zeros_like(bits[:, :1])
        for index in range(bits.shape[1]):
            bit = bits[:, [index]]
            following = bit ^ parity
            yield Step(
                input=bit,
                computation=self.row(bit, "** par =", bit, "**", parity),
                output=following,
                variables=self.row("par:", following),
                remaining=self.row("[", self.listed(bits[:, index + 1 :], ","), "]"),
            )
            parity = following


def random_digits(counts: Int[Tensor, " example"], n_digits: int, generator: Generator) -> Digits:
    """Random numbers of `counts` digits each, behind zeros: `n_digits` digits in all.

    All numbers of a count are equally likely; they begin with no 0, unless it is their only digit.

    Args:
        counts: digits in each number, from 1.
        n_digits: digits of the result, zeros in front included.
        generator: what they are drawn from.
    """
    shape = (len(counts), n_digits)
    digits = torch.randint(10, shape, generator=generator)
    leading = torch.randint(1, 10, shape, generator=generator)
    position = torch.arange(n_digits)
    first = n_digits - rearrange(counts, "example -> example 1")
    begins: Bool[Tensor, "example digit"] = (position == first) & (position < n_digits - 1)
    return torch.where(begins, leading, digits).masked_fill(position < first, 0)


def column_addition(a: Digits, b: Digits) -> tuple[MoreDigits, MoreDigits]:
    """The digits of a + b, and the carry out of each column; that into the last one is 0.

    Both have one digit more than the numbers. Column by column, so numbers of any length are exact.

    Args:
        a: one number a row, most significant digit first.
        b: the same, as long.
    """
    carries = [torch.zeros_like(a[:, 0])]
    for column in reversed(range(a.shape[1])):
        carries.append((a[:, column] + b[:, column] + carries[-1]) // 10)
    carry = torch.stack(carries[::-1], dim=1)
    columns = pad(a + b, (1, 0)) + carry
    return columns % 10, carry


TASKS = (AdditionTask, PolynomialTask, SummationTask, ParityTask)
