"""Random tokens that come again: what tells induction, duplicate-token and copying heads."""

from torch import Generator

from nope_interp.shapes import Sequences
from nope_interp.tasks.sources import Split, UniformSource


class RepeatedSource(UniformSource):
    """Uniform random tokens, then the same ones again (Olsson et al. 2022, arXiv 2209.11895).

    Where the tokens do not split into two rounds, there is one token fewer than asked for.
    """

    name = "repeated"

    @staticmethod
    def period(seq_len: int, *, begin_token: bool) -> int:
        """How many tokens there are before they come again."""
        return (seq_len - begin_token) // 2

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """Fresh tokens, twice."""
        return super().drawn(n, (seq_len - begin) // 2, 0, split, generator).repeat(1, 2)


class CopiesSource(UniformSource):
    """One random token over and over (Barbero et al. 2024, on what heads without positions do)."""

    name = "copies"

    def drawn(
        self, n: int, seq_len: int, begin: int, split: Split, generator: Generator
    ) -> Sequences:
        """A token for each sequence, as often as it is long."""
        return super().drawn(n, 1, 0, split, generator).repeat(1, seq_len - begin)
