"""Random tokens that come again: what tells induction, duplicate-token and copying heads."""

from jaxtyping import Int
from torch import Tensor

from nope_interp.tasks.sources import Split, UniformSource, with_begin_token


class RepeatedSource(UniformSource):
    """Uniform random tokens, then the same ones again (Olsson et al. 2022, arXiv 2209.11895).

    Where the tokens do not split into two rounds, there is one token fewer than asked for.
    """

    name = "repeated"

    @staticmethod
    def period(seq_len: int, *, begin_token: bool) -> int:
        """How many tokens there are before they come again."""
        return (seq_len - begin_token) // 2

    def sequences(
        self, n: int, seq_len: int, *, begin_token: bool, split: Split, seed: int
    ) -> Int[Tensor, "sequence pos"]:
        """`n` fresh sequences; the two splits draw from different random streams.

        Args:
            n: sequences.
            seq_len: tokens in each, begin token included.
            begin_token: whether each begins with it.
            split: `fit` or `held_out`.
            seed: of the draws.

        Returns:
            Tokens, `[sequence pos]`.
        """
        period = self.period(seq_len, begin_token=begin_token)
        once = super().sequences(n, period, begin_token=False, split=split, seed=seed)
        tokens = once.repeat(1, 2)
        return with_begin_token(tokens, self.begin_id) if begin_token else tokens


class CopiesSource(UniformSource):
    """One random token over and over (Barbero et al. 2024, on what heads without positions do)."""

    name = "copies"

    def sequences(
        self, n: int, seq_len: int, *, begin_token: bool, split: Split, seed: int
    ) -> Int[Tensor, "sequence pos"]:
        """`n` sequences, each of a token of its own; the splits draw from different streams.

        Args:
            n: sequences.
            seq_len: tokens in each, begin token included.
            begin_token: whether each begins with it.
            split: `fit` or `held_out`.
            seed: of the draws.

        Returns:
            Tokens, `[sequence pos]`.
        """
        once = super().sequences(n, 1, begin_token=False, split=split, seed=seed)
        tokens = once.repeat(1, seq_len - begin_token)
        return with_begin_token(tokens, self.begin_id) if begin_token else tokens
