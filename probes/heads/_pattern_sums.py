"""What the detectors sum up over the queries of a block of attention, by the kind of its tokens."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.errors import ProbeError
from probes.heads._attention import (
    FIRST_QUERY,
    Block,
    Maps,
    at_keys,
    back,
    checked_patterns,
    distance_from_uniform,
    offset_sums,
    parts,
    sums_of,
)
from probes.shapes import AttentionMaps
from probes.streaming import upcast

Sums = Mapping[str, Float[Tensor, "batch head *of"]]


class Pending:
    """Sums over the queries of a batch whose blocks are still coming in."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._queries, self._layout = 0, (0, 0)

    @property
    def open(self) -> bool:
        """Whether there are blocks to come."""
        return self._queries > 0

    def block(self, maps: AttentionMaps, length: int) -> Block:
        """Where the next maps stand; raises ProbeError for those of another batch."""
        n_queries, n_keys = maps.shape[-2:]
        found = Block(length, self._queries, n_queries, n_keys)
        layout = (len(maps), length)
        beyond = found.first_query + n_queries > length
        if (self.open and layout != self._layout) or found.first_key < 0 or beyond:
            raise ProbeError(
                f"{n_queries} queries and {n_keys} keys of {len(maps)} sequences of {length} "
                f"tokens came after {self._queries} queries: give all queries of a batch, in "
                "order, with the keys up to the last of them"
            )
        self._layout = layout
        return found

    def add(self, block: Block, sums: Sums) -> Sums | None:
        """Adds a block's sums; all of them, after the last."""
        self._queries += block.n_queries
        for name, some in sums.items():
            self._sums[name] = self._sums[name] + some if name in self._sums else some
        if not block.ends:
            return None
        found, self._sums, self._queries = self._sums, {}, 0
        return found


def text_sums(pattern: AttentionMaps, block: Block, window: int | None, local_window: int) -> Sums:
    """Of natural text: weights by offset, on the first key, and of the shapes of rows."""
    skipped = block.skipped(FIRST_QUERY)
    m = block.n_seen(window, skipped).to(pattern.device)

    def summed(part: Maps) -> dict[str, Tensor]:
        by_offset, rows = offset_sums(part, block, skipped), part[:, skipped:]
        n_keys = m.to(part)
        return {
            "by_offset": by_offset,
            "first_token": rows[..., 0].sum(dim=-1) * (block.first_key == 0),
            "local": by_offset[:, :local_window].sum(dim=-1),
            "uniform": (1 - distance_from_uniform(rows, 1 / n_keys)).sum(dim=-1),
            "entropy": (_entropy(rows) / n_keys.log()).sum(dim=-1),
        }

    return _summed(pattern, block, window, summed)


def repeated_sums(
    pattern: AttentionMaps, block: Block, window: int | None, period: int, start: int
) -> Sums:
    """Of repeated tokens: weights one period back, and on the token after, in the second time."""
    again = start + period
    return _summed(
        pattern,
        block,
        window,
        lambda part: {
            "induction": back(part, block, period - 1, again),
            "duplicate_token": back(part, block, period, again),
        },
    )


def copies_sums(pattern: AttentionMaps, block: Block, window: int | None, start: int) -> Sums:
    """Of copies of one token: how far weights on them are from uniform."""
    skipped, among = block.skipped(start + FIRST_QUERY), block.without(start)
    n_copies = among.n_seen(window, among.skipped(FIRST_QUERY)).to(pattern.device)

    def summed(part: Maps) -> dict[str, Tensor]:
        copies = part[:, skipped:, block.n_keys - among.n_keys :]
        # In double precision the mean of equal weights is that weight, to the last bit.
        weight = copies.sum(dim=-1, dtype=torch.float64)
        level = (weight / n_copies).to(copies)
        # A row that leaves nothing for the copies prefers none of them.
        share = distance_from_uniform(copies, level) / torch.where(weight > 0, weight, 1.0)
        return {"repeated_token": share.sum(dim=-1)}

    return _summed(pattern, block, window, summed)


def score_sums(scores: AttentionMaps, block: Block, window: int | None) -> Sums:
    """Of scores, centred in each row: at each offset, at each key, and of squares.

    Raises ProbeError where the scores hide a key that a query should see.
    """
    visible = _shown(scores, block, window)
    m, skipped = visible.sum(dim=-1), block.skipped(FIRST_QUERY)

    def summed(part: Maps) -> dict[str, Tensor]:
        centred = upcast(part).masked_fill(~visible, 0.0)
        mean = centred.sum(dim=-1) / m
        centred.addcmul_(visible.to(centred), mean[..., None], value=-1)
        rows = centred[:, skipped:]
        return {
            "by_offset": offset_sums(centred, block, skipped),
            "by_key": at_keys(rows.sum(dim=-2), block),
            "total": torch.linalg.vecdot(rows, rows).sum(dim=-1),
        }

    return sums_of(scores, parts(scores), summed)


def _shown(scores: AttentionMaps, block: Block, window: int | None) -> Bool[Tensor, "query key"]:
    """The keys each query sees; raises ProbeError where the scores hide one of them.

    Scores may show more: logarithms of weights are finite beyond a window too.
    """
    expected = block.visible(window, scores.device)
    # Masks are minus infinity or the type's smallest number; both are far below any score.
    shown = scores[0, 0] > torch.finfo(scores.dtype).min / 2
    if (expected & ~shown).any():
        seen = int((shown & block.visible(None, scores.device))[-1].sum())
        raise ProbeError(
            f"the scores of the last query show {seen} of {block.n_keys} keys, but the window is "
            f"{window}: start the probe with the layer's sliding window, and give sequences "
            "without padding"
        )
    return expected


def _entropy(rows: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query"]:
    """In nats; a weight of zero adds nothing."""
    tiny = torch.finfo(rows.dtype).tiny
    entropy: Tensor = -torch.linalg.vecdot(rows, rows.clamp_min(tiny).log_())
    return entropy


def _summed(
    pattern: AttentionMaps,
    block: Block,
    window: int | None,
    summed: Callable[[Maps], dict[str, Tensor]],
) -> Sums:
    return sums_of(pattern, checked_patterns(pattern, block, window), summed)
