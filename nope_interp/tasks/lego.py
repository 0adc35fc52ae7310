"""LEGO: a chain of variables, each plus or minus the one before (Zhang et al. 2022, 2206.04301).

As a task of length generalisation: Kazemnejad et al. 2023 (arXiv 2305.19466).
"""

import string
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from nope_interp.tasks.answers import Problem
from nope_interp.tasks.scratchpad import ScratchpadTask, Step

Chain = Int[Tensor, "example variable"]
Clauses = Int[Tensor, "example clause 4"]


class LegoTask(ScratchpadTask):
    """ "If a = - 1 , b = - a . Then , what is the value of b ?" and "The answer is + 1 .".

    `length` is the number of variables, distinct letters. Clauses stand in the order of the chain;
    signs are equally likely, and so are the variables of the chain's second half, one of which is
    asked for.
    """

    name = "lego"
    symbols = tuple(string.ascii_lowercase)
    frame = "If = + - 1 , . Then , what is the value of ? The answer is + - 1 ."
    possible_lengths = range(2, 27)
    parts = ("input", "computation", "output", "remaining")

    def problem(self, n: int, length: int, generator: Generator) -> Problem:
        variables = torch.rand((n, 26), generator=generator).argsort(1)[:, :length]
        factors = 2 * torch.randint(2, (n, length), generator=generator) - 1
        # The upper half of an odd chain leaves its middle out.
        first_asked = (length + 1) // 2
        asked = torch.randint(first_asked, length, (n, 1), generator=generator)
        values = factors.cumprod(1)
        clauses = self._clauses(variables, factors)
        query, value = variables.gather(1, asked), values.gather(1, asked)
        prompt = self.row(
            "If", self.listed(clauses, ","), ". Then , what is the value of", query, "?"
        )
        answer = self.row("The answer is", self._sign(value), "1 .")
        steps = self._steps(variables, factors, values, clauses, asked)
        return prompt, self.with_steps(steps, answer)

    def _steps(
        self,
        variables: Chain,
        factors: Chain,
        values: Chain,
        clauses: Clauses,
        asked: Int[Tensor, "example 1"],
    ) -> Iterator[Step]:
        """One step for each variable up to the one that is asked for."""
        signs, value_signs = self._sign(factors), self._sign(values)
        for index in range(variables.shape[1]):
            variable, sign = variables[:, [index]], signs[:, [index]]
            computation = variable[:, :0]
            if index:
                before, known = variables[:, [index - 1]], value_signs[:, [index - 1]]
                computation = self.row(sign, before, "=", sign, known, "1")
            yield Step(
                input=variable,
                computation=computation,
                output=self.row(value_signs[:, [index]], "1"),
                remaining=self.listed(clauses[:, index + 1 :], ","),
                taken=asked[:, 0] >= index,
            )

    def _clauses(self, variables: Chain, factors: Chain) -> Clauses:
        """The first clause gives a number, the others each the variable before."""
        equals, one = self.tokenizer.encode("= 1")
        operands = torch.cat([torch.full_like(variables[:, :1], one), variables[:, :-1]], dim=1)
        columns = [variables, torch.full_like(variables, equals), self._sign(factors), operands]
        return torch.stack(columns, dim=2)

    def _sign(self, values: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        plus, minus = self.tokenizer.encode("+ -")
        return torch.where(values > 0, plus, minus)


TASKS = (LegoTask,)
