"""How much of the attention scores' variance offset alone, or the key's token alone, explains."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from probes.errors import ProbeError
from probes.heads._attention import FIRST_QUERY, n_visible
from probes.heads._pattern_sums import Sums

Keys = Int[Tensor, "batch key"]
ByOffset = Float[Tensor, "batch head offset"]
ByKey = Float[Tensor, "batch head key"]
PerHead = Float[Tensor, "batch head"]
Gram = Float[np.ndarray, "group group"]

# The gram of the tokens is a square of this: a large alphabet would be slow, and say little.
_MAX_ALPHABET = 512

# Directions of a gram weaker than this are not determined: a constant shifts nothing that is seen.
_RANK_TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Sums:
    """The normal equations of both fits, over `n` sequences; token ids are ascending."""

    n: int
    by_offset: Float[np.ndarray, "head offset"]
    token_ids: Int[np.ndarray, " token"]
    by_token: Float[np.ndarray, "head token"]
    token_gram: Float[np.ndarray, "token token"]

    def __add__(self, other: "_Sums") -> "_Sums":
        ids = np.union1d(self.token_ids, other.token_ids)
        by_token, gram = np.zeros((len(self.by_token), len(ids))), np.zeros((len(ids), len(ids)))
        for part in (self, other):
            columns = np.searchsorted(ids, part.token_ids)
            by_token[:, columns] += part.by_token
            gram[np.ix_(columns, columns)] += part.token_gram
        return _Sums(self.n + other.n, self.by_offset + other.by_offset, ids, by_token, gram)

    def equals(self, other: "_Sums") -> bool:
        """Up to the rounding of sums taken in another order."""
        return (
            self.n == other.n
            and np.array_equal(self.token_ids, other.token_ids)
            and np.allclose(self.by_offset, other.by_offset, atol=1e-9 * np.ptp(self.by_offset))
            and np.allclose(self.by_token, other.by_token, atol=1e-9 * np.ptp(self.by_token))
        )


@dataclass(frozen=True)
class _Fits:
    """What each offset, and each token, adds to a score."""

    of_offset: Float[Tensor, "head offset"]
    offset_size: Float[Tensor, " head"]  # sum of squares of the predictions, over one sequence
    token_ids: Int[Tensor, " token"]
    of_token: Float[Tensor, "head token_or_unknown"]

    def of_keys(self, tokens: Keys) -> ByKey:
        """What each key's token adds; 0, as the mean does, where it was never fitted."""
        column = torch.searchsorted(self.token_ids, tokens).clamp(max=len(self.token_ids) - 1)
        known = self.token_ids[column] == tokens
        of_key = self.of_token[:, torch.where(known, column, len(self.token_ids))]
        return rearrange(of_key, "head batch key -> batch head key")


class ScoreShares:
    """Two least-squares fits of one layer's attention scores, from sums, and their held-out R².

    The scores of a query are centred over the keys it sees, because the softmax ignores what all of
    them share. The fits are s(q, k) = g(q - k) + a constant of the row, and s(q, k) = h(token of k)
    + a constant of the row, by least squares over all cells of all fitted sequences: group means,
    corrected for the rows' holding different groups. Their normal equations need nothing but the
    centred scores' sums at each offset and at each token; the rest follows from which keys a query
    sees and which tokens they hold. Queries before `FIRST_QUERY` are left out.

    The sums are those of `score_sums`; tokens come on the same device.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._sums: _Sums | None = None
        self._fits: _Fits | None = None

    @property
    def n_fitted(self) -> int:
        return 0 if self._sums is None else self._sums.n

    @property
    def solved(self) -> bool:
        return self._fits is not None

    def fit(self, sums: Sums, tokens: Keys) -> None:
        """Adds sequences to fit on; raises ProbeError after `shares`, which has solved the fit."""
        if self.solved:
            raise ProbeError(
                "scores to fit on came after held-out ones, which have solved the fit: give all "
                "sequences to fit on first, or start a new probe"
            )
        ids, groups = tokens.unique(return_inverse=True)
        _require_small(len(ids))
        by_offset, by_key, _ = _finite(sums)
        by_token = by_key.new_zeros(*by_key.shape[:2], len(ids)).scatter_add_(
            -1, repeat(groups, "batch key -> batch head key", head=by_key.shape[1]), by_key
        )
        found = _Sums(
            len(tokens),
            by_offset.sum(dim=0).cpu().numpy(),
            ids.cpu().numpy(),
            by_token.sum(dim=0).cpu().numpy(),
            self._token_gram(functional.one_hot(groups, len(ids)).double()).cpu().numpy(),
        )
        self._sums = found if self._sums is None else self._sums + found
        _require_small(len(self._sums.token_ids))

    def shares(self, sums: Sums, tokens: Keys) -> dict[str, PerHead]:
        """Each held-out sequence's own R²: `positional_share` by offset, `token_share` by token.

        R² = 1 - SSE/SST, sums of squares over all cells the sequence's queries see, scores and
        predictions centred in each row. 0 where scores never vary; below 0 where the fit is worse
        than none.
        """
        fits = self.finish()
        by_offset, by_key, total = _finite(sums)
        # SST - SSE = 2 (scores . predictions) - (predictions . predictions), and since the scores
        # are centred, the predictions in the first need not be.
        offset_gain = 2 * (by_offset * fits.of_offset.to(by_offset)).sum(dim=-1)
        offset_gain = offset_gain - fits.offset_size.to(by_offset)
        of_key = fits.of_keys(tokens.cpu()).to(by_key)
        token_gain = 2 * (by_key * of_key).sum(dim=-1) - self._size(of_key)
        total = torch.where(total > 0, total, torch.inf)
        return {"positional_share": offset_gain / total, "token_share": token_gain / total}

    def finish(self) -> _Fits:
        """Solves the fit, once; raises ProbeError where fewer than 2 sequences were fitted."""
        if self._fits is not None:
            return self._fits
        sums = self._sums
        if sums is None or sums.n < 2:
            raise ProbeError(
                f"held-out scores have nothing to be judged by: {self.n_fitted} sequences were "
                "fitted; give at least 2 with held_out=False first"
            )
        of_offset, sizes = _fit_of_offsets(sums.by_offset / sums.n, self.window)
        of_token = sums.by_token @ _pseudo_inverse(sums.token_gram)
        self._fits = _Fits(
            torch.from_numpy(of_offset),
            torch.from_numpy(sizes),
            torch.from_numpy(sums.token_ids),
            torch.from_numpy(np.pad(of_token, ((0, 0), (0, 1)))),
        )
        return self._fits

    def merge(self, other: "ScoreShares") -> None:
        """Adds what `other` was fitted on; where both have judged, checks that the fit is one."""
        if other._sums is None:
            return
        if self._sums is None:
            self._sums, self._fits = other._sums, other._fits
        elif self.solved != other.solved:
            raise ProbeError(
                "cannot merge a probe that has judged held-out scores with one that has not: merge "
                "the fits first, then judge on each machine with for_shard()"
            )
        elif not self.solved:
            self._sums = self._sums + other._sums
            _require_small(len(self._sums.token_ids))
        elif not self._sums.equals(other._sums):
            raise ProbeError(
                "cannot merge held-out scores judged by two different fits: merge the fits first, "
                "then judge on each machine with for_shard()"
            )

    def _token_gram(
        self, one_hot: Float[Tensor, "batch key token"]
    ) -> Float[Tensor, "token token"]:
        counts = self._over_visible(one_hot, dim=1)[:, FIRST_QUERY:]
        m = torch.from_numpy(n_visible(one_hot.shape[1], self.window))[FIRST_QUERY:]
        return _gram(
            rearrange(counts, "batch query token -> (batch query) token"),
            repeat(m.to(counts.device), "query -> (batch query)", batch=len(counts)),
        )

    def _size(self, of_key: ByKey) -> PerHead:
        """Sums of squares of predictions by key, centred in each row, over all rows."""
        m = torch.from_numpy(n_visible(of_key.shape[-1], self.window)).to(of_key.device)
        total = self._over_visible(of_key, dim=-1)
        squares = self._over_visible(of_key.square(), dim=-1) - total.square() / m
        return squares[..., FIRST_QUERY:].sum(dim=-1)

    def _over_visible(self, of_key: Float[Tensor, "*shape"], dim: int) -> Float[Tensor, "*shape"]:
        """Sums over the keys that each query sees, in place of the keys."""
        sums = of_key.cumsum(dim)
        if self.window is not None and self.window < of_key.shape[dim]:
            kept = of_key.shape[dim] - self.window
            sums.narrow(dim, self.window, kept).sub_(sums.narrow(dim, 0, kept).clone())
        return sums


def _finite(sums: Sums) -> tuple[ByOffset, ByKey, PerHead]:
    if not torch.isfinite(sums["total"]).all():
        raise ProbeError(
            "scores hold NaN, infinite or masked numbers at keys that the first sequence's "
            "queries see: look for padding, or run the model in float32"
        )
    return sums["by_offset"], sums["by_key"], sums["total"]


def _fit_of_offsets(
    sums: Float[np.ndarray, "head offset"], window: int | None
) -> tuple[Float[np.ndarray, "head offset"], Float[np.ndarray, " head"]]:
    """What each offset adds, and the sum of squares of the predictions, over one sequence.

    A query sees each of its m nearest offsets once. So the normal equations of offset i are c(i)
    g(i) - f(i) sum(g up to i) - sum(f g beyond i) = b(i), with c(i) how many queries see it and
    f(i) the sum of their 1/m. Two neighbouring ones differ by c, g and f at these two and the sum
    up to i: each g follows from those before it, but for a constant, which nothing sees.
    """
    m = n_visible(sums.shape[1], window)[FIRST_QUERY:]
    n = int(m.max())  # offsets beyond are seen by nobody
    queries = np.bincount(m, minlength=n + 1)[1:]
    c, f = (np.cumsum(of[::-1])[::-1] for of in (queries, queries / np.arange(1, n + 1)))
    b, g = sums[:, :n], np.zeros_like(sums)
    scaled, total = np.zeros(len(sums)), np.zeros(len(sums))
    for i in range(n - 1):
        scaled = scaled + b[:, i + 1] - b[:, i] - (f[i] - f[i + 1]) * total
        g[:, i + 1] = scaled / c[i + 1]
        total = total + g[:, i + 1]
    g[:, :n] -= g[:, :n].mean(axis=1, keepdims=True)
    # The sum of squares is g times the left side, whose last sum is of f g from i + 1 on.
    up_to = np.cumsum(g[:, :n], axis=1)
    beyond = np.cumsum((f * g[:, :n])[:, ::-1], axis=1)[:, ::-1] - f * g[:, :n]
    left = c * g[:, :n] - f * up_to - beyond
    return g, (g[:, :n] * left).sum(axis=1)


def _gram(
    counts: Float[Tensor, "row group"], n_keys: Int[Tensor, " row"]
) -> Float[Tensor, "group group"]:
    """Products of the groups' indicators, centred in each row, summed over all cells."""
    return counts.sum(dim=0).diag() - (counts / n_keys[:, None]).T @ counts


def _pseudo_inverse(gram: Gram) -> Gram:
    return np.linalg.pinv(gram, rcond=_RANK_TOLERANCE, hermitian=True)


def _require_small(n_tokens: int) -> None:
    if n_tokens > _MAX_ALPHABET:
        raise ProbeError(
            f"the scores were taken on {n_tokens} different tokens; draw them from at most "
            f"{_MAX_ALPHABET}, so that each comes back often enough to be fitted"
        )
