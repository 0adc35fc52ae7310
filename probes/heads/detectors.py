"""What attention heads look at: detectors fed with attention maps, one probe for each layer.

The detectors follow Elhage et al. 2021 and Olsson et al. 2022 (arXiv 2209.11895; previous-token,
duplicate-token and induction heads), Barbero et al. 2024 (arXiv 2410.06205; diagonal and
previous-token heads as what positional encodings are used for, and repeated tokens as what a head
without positions cannot tell apart) and Wang et al. 2024 (arXiv 2404.12224; entropy against log m).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from probes.checks import check_another, check_whole
from probes.errors import ProbeError
from probes.head_rules import FEEDS, METRICS
from probes.heads._attention import FIRST_QUERY as FIRST_QUERY
from probes.heads._attention import Block, n_visible, require_maps
from probes.heads._feed import HeadFeed
from probes.heads._offsets import OffsetProfile
from probes.heads._offsets import local_chance as local_chance
from probes.heads._offsets import offset_chance as offset_chance
from probes.heads._pattern_sums import (
    Pending,
    copies_sums,
    repeated_sums,
    score_sums,
    text_sums,
)
from probes.heads._score_shares import ScoreShares
from probes.heads._settling import aligned


@dataclass(frozen=True)
class HeadScores:
    """The numbers of every head of one layer; NaN, and n 0, where nothing was fed to know them.

    ci_low and ci_high bound 95% bootstrap intervals over sequences; chance is what attention
    without preference gives (NaN where that is no question); stderr is the standard error over the
    n sequences; replicates are the values in every bootstrap resample, NaN in one that drew no
    sequence. early holds value, stderr and n over ever fewer sequences, each time about the first
    half of those before. offset_profile is the mean attention at each offset back, over the queries
    of natural text that reach so far. by_offset is what of `induction` and `duplicate_token` no
    match explains, with its standard error: what natural text has above chance at the same offset.
    """

    metrics: tuple[str, ...]
    value: Float[np.ndarray, "head metric"]
    ci_low: Float[np.ndarray, "head metric"]
    ci_high: Float[np.ndarray, "head metric"]
    chance: Float[np.ndarray, "head metric"]
    stderr: Float[np.ndarray, "head metric"]
    n: Int[np.ndarray, "head metric"]
    replicates: Float[np.ndarray, "resample head metric"]
    early: Float[np.ndarray, "stage three head metric"]
    offset_profile: Float[np.ndarray, "head offset"]
    by_offset: Float[np.ndarray, "two head metric"]

    @property
    def n_heads(self) -> int:
        """How many heads the layer has."""
        return len(self.value)

    def column(self, metric: str) -> int:
        """The column of a metric; raises ProbeError, with the known names, where there is none."""
        if metric not in self.metrics:
            raise ProbeError(f"no metric {metric!r}: there are {', '.join(self.metrics)}")
        return self.metrics.index(metric)

    def stage(self, number: int) -> "HeadScores":
        """What the sequences of a stage of `early` gave; only value, stderr and n are theirs."""
        value, stderr, n = self.early[number]
        return replace(self, value=value, stderr=stderr, n=np.nan_to_num(n).astype(int))


class HeadProbe:
    """Scores every head of one layer, from attention maps that are given batch by batch.

    Nothing of a batch is kept but sums. m is the number of keys a query sees. All are means over
    queries, then over sequences:

    * natural text (`read_text`), from query `FIRST_QUERY` on, since a query that sees few keys
      makes all heads look alike: `diagonal` and `previous_token`, the weight at offset 0 and 1;
      `first_token`, on key 0; `local`, on offsets 0 to local_window - 1; `uniform`, 1 - the total
      variation distance of the row from 1/m; `entropy` / log m.
    * random tokens and the same again (`read_repeated`), from the queries of the second time:
      `induction`, the weight on the token after the earlier copy; `duplicate_token`, on that copy.
    * random tokens from a small alphabet (`read_scores`): `positional_share` and `token_share`, the
      held-out R² of the scores, centred in each row, by offset alone and by key token alone,
      fitted on other sequences. At most 1, below 0 where the fit is worse than none. Tokens drawn
      evenly keep the two apart.
    * one token repeated (`read_copies`): `repeated_token`, the total variation distance from
      uniform of a row among the copies, from the query that sees `FIRST_QUERY` earlier copies on.
      A head of the first layer that knows no positions scores 0, as all copies are the same to it.

    Chance is what equal weights on all visible keys give: the mean of 1/m over the queries for one
    key, of as many times that as there are keys for `local`; 0 for the shares and `repeated_token`;
    none for `uniform` and `entropy`.

    Args:
        seed: of the bootstrap. Two probes with one seed, given the same sequences in the same
            batches, have paired replicates; shards that are merged need seeds of their own.
        n_resamples: of the bootstrap over sequences.
        local_window: how many offsets count as local.
        window: how many keys back a query of this layer sees, itself included, if it has a sliding
            window.

    Raises:
        ProbeError: for no local offset, for a window in which a query sees itself alone, and for
            what is no seed.
    """

    def __init__(
        self,
        seed: int = 0,
        n_resamples: int = 1000,
        local_window: int = 8,
        window: int | None = None,
    ) -> None:
        if local_window < 1:
            raise ProbeError(f"local_window is {local_window}; give at least 1 offset")
        if window is not None and window < 2:
            raise ProbeError(
                f"window is {window}; a query must see at least one key besides its own"
            )
        seed = check_whole("seed", seed, 0)
        self.n_resamples = n_resamples
        self.local_window = local_window
        self.window = window
        self._n_heads = 0
        self._offsets = OffsetProfile(window)
        self._shares = ScoreShares(window)
        self._pending = {name: Pending() for name in FEEDS}
        # Other sequences, other draws: one seed would couple feeds that share nothing.
        self._feeds = {
            name: HeadFeed(metrics, n_resamples, len(FEEDS) * seed + i)
            for i, (name, metrics) in enumerate(FEEDS.items())
        }

    # Shapes are checked in words, rather than by the annotations.
    def read_text(self, pattern: Tensor, length: int | None = None) -> None:
        """Adds attention on natural text.

        Args:
            pattern: attention after the softmax, [batch head query key].
            length: tokens in a sequence, where the pattern has only some of their queries: the next
                ones, in order, with the keys up to the last of them. None for whole sequences.

        Raises:
            ProbeError: for other shapes, rows that are no probabilities over earlier keys, fewer
                than `FIRST_QUERY` + 1 tokens, and where heads or lengths change between batches.
        """
        block = self._block("text", pattern, "patterns", length, at_least=FIRST_QUERY + 1)
        sums = text_sums(pattern, block, self.window, self.local_window)
        whole = self._pending["text"].add(block, sums)
        if whole is None:
            return
        length = block.length
        m = n_visible(length, self.window)[FIRST_QUERY:]
        first_key = np.where(np.arange(FIRST_QUERY, length) < (self.window or length), 1 / m, 0)
        chance = {
            "diagonal": (1 / m).mean(),
            "previous_token": (1 / m).mean(),
            "first_token": first_key.mean(),
            "local": local_chance(length, self.window, self.local_window),
            "uniform": np.nan,
            "entropy": np.nan,
        }
        by_offset = whole["by_offset"]
        near = {"diagonal": by_offset[..., 0], "previous_token": by_offset[..., 1]}
        means = {name: {**whole, **near}[name] / len(m) for name in chance}
        self._feeds["text"].add(means, chance, (length,))
        self._offsets.add(by_offset)

    def read_repeated(
        self, pattern: Tensor, period: int, start: int, length: int | None = None
    ) -> None:
        """Adds attention on some tokens, then random ones, and these again.

        Args:
            pattern: attention after the softmax, [batch head query key].
            period: how many random tokens.
            start: how many tokens before them.
            length: as `read_text`.

        Raises:
            ProbeError: as `read_text`, and where the length is not start + 2 period.
        """
        block = self._block("repeated", pattern, "patterns", length, at_least=1)
        length = block.length
        if period < 2 or start < 0 or length != start + 2 * period:
            raise ProbeError(
                f"{length} tokens are not {start} and twice {period}: give the period of the "
                "repetition, at least 2, and the number of tokens before it"
            )
        sums = repeated_sums(pattern, block, self.window, period, start)
        whole = self._pending["repeated"].add(block, sums)
        if whole is None:
            return
        m = n_visible(length, self.window)[start + period :]
        chance = {
            "induction": ((period - 1 < m) / m).mean(),
            "duplicate_token": ((period < m) / m).mean(),
        }
        means = {name: sums / period for name, sums in whole.items()}
        self._feeds["repeated"].add(means, chance, (length, period, start))

    def read_copies(self, pattern: Tensor, start: int, length: int | None = None) -> None:
        """Adds attention on some tokens and then one token repeated to the end.

        Args:
            pattern: attention after the softmax, [batch head query key].
            start: how many tokens before the copies.
            length: as `read_text`.

        Raises:
            ProbeError: as `read_text`, and where there are fewer than `FIRST_QUERY` + 1 copies.
        """
        if start < 0:
            raise ProbeError(f"start is {start}; give the number of tokens before the copies")
        first = start + FIRST_QUERY
        block = self._block("copies", pattern, "patterns", length, at_least=first + 1)
        sums = copies_sums(pattern, block, self.window, start)
        whole = self._pending["copies"].add(block, sums)
        if whole is not None:
            means = {"repeated_token": whole["repeated_token"] / (block.length - first)}
            self._feeds["copies"].add(means, {"repeated_token": 0.0}, (block.length, start))

    def read_scores(
        self, scores: Tensor, tokens: Tensor, held_out: bool = False, start: int = 0
    ) -> None:
        """Adds attention scores before the softmax, on random tokens from a small alphabet.

        First sequences to fit the shares on, then, with `held_out`, others to judge them by. Later
        keys and those beyond the window do not count, whatever stands there, nor do the first
        `start` tokens: a begin token always stands at one position, and what heads make of it
        would be called both position and token.

        Args:
            scores: [batch head query key], of all queries, or of the next ones, as `read_text`.
            tokens: [batch key], the model's input: whole sequences.
            held_out: whether the shares are judged, not fitted.
            start: how many tokens before the random ones.

        Raises:
            ProbeError: for other shapes, masks that are not the window's, NaN or infinity, more
                than 512 different tokens, and for held-out sequences before or others after the
                fit.
        """
        if start < 0:
            raise ProbeError(f"start is {start}; give the number of tokens before the random ones")
        if not isinstance(tokens, Tensor) or tokens.is_floating_point():
            raise ProbeError("tokens must be a tensor of whole numbers: give the model's input")
        require_maps(scores, "scores", whole=False)
        n_keys = scores.shape[-1]
        if tokens.ndim != 2 or len(tokens) != len(scores) or tokens.shape[1] < n_keys:
            raise ProbeError(
                f"tokens have shape {tuple(tokens.shape)}; expected {(len(scores), n_keys)}, as "
                "many as the scores have keys"
            )
        length = tokens.shape[1]
        block = self._block("scores", scores, "scores", length, at_least=start + FIRST_QUERY + 1)
        kept = block.without(start)
        some = scores.detach()[
            ..., block.n_queries - kept.n_queries :, block.n_keys - kept.n_keys :
        ]
        whole = self._pending["scores"].add(block, score_sums(some, kept, self.window))
        if whole is None:
            return
        tokens = tokens[:, start:].to(scores.device).contiguous()
        feed = self._feeds["scores"]
        if held_out:
            chance = {"positional_share": 0.0, "token_share": 0.0}
            feed.add(self._shares.shares(whole, tokens), chance, (length, start))
        else:
            feed.adopt((length, start))
            self._shares.fit(whole, tokens)

    def merge(self, other: "HeadProbe") -> None:
        """Adds what another probe was given.

        Args:
            other: a probe of the same layer, given other sequences.

        Raises:
            ProbeError: where the two have other settings, heads or lengths, drew the same bootstrap
                weights, judged held-out scores by different fits, or are one.
        """
        check_another(self, other)
        ours, theirs = (
            (probe.local_window, probe.window, probe.n_resamples) for probe in (self, other)
        )
        if ours != theirs:
            raise ProbeError(
                f"cannot merge probes with (local_window, window, n_resamples) {ours} and "
                f"{theirs}: give all shards the same"
            )
        if not other._n_heads:
            return
        self._adopt_heads(other._n_heads)
        for name, feed in self._feeds.items():
            feed.merge(other._feeds[name])
        self._shares.merge(other._shares)
        self._offsets.merge(other._offsets)

    def for_shard(self, seed: int) -> "HeadProbe":
        """An empty probe with the same fit of the shares, for held-out scores on another machine.

        The fit is thereby finished.

        Args:
            seed: of its bootstrap; give every shard another.

        Returns:
            The empty probe.

        Raises:
            ProbeError: before 2 sequences were fitted.
        """
        shard = HeadProbe(seed, self.n_resamples, self.local_window, self.window)
        self._shares.finish()
        shard._shares.merge(self._shares)
        shard._n_heads = self._n_heads
        shard._feeds["scores"].adopt(self._feeds["scores"].layout)
        return shard

    def result(self) -> HeadScores:
        """What came out.

        Returns:
            The numbers of every head, in shares of attention or as the metric says.

        Raises:
            ProbeError: before any sequence, or after only one of a kind.
        """
        if self._shares.n_fitted and not self._feeds["scores"].n:
            raise ProbeError(
                "the shares were fitted and never judged: give other sequences to read_scores with "
                "held_out=True"
            )
        for name, pending in self._pending.items():
            if pending.open:
                raise ProbeError(f"the last sequences of {name} lack queries: give all of them")
        if not any(feed.n for feed in self._feeds.values()):
            raise ProbeError("the head probe has been given nothing: feed it attention first")
        feeds = [feed.numbers(self._n_heads) for feed in self._feeds.values()]
        feeds = [f | {"early": of} for f, of in zip(feeds, aligned(feeds), strict=True)]
        columns = {name: np.concatenate([f[name] for f in feeds], axis=-1) for name in feeds[0]}
        return HeadScores(
            metrics=METRICS,
            **columns,
            offset_profile=self._offsets.means(self._n_heads),
            by_offset=self._by_offset(),
        )

    def _by_offset(self) -> Float[np.ndarray, "two head metric"]:
        """What of the scores on repeated tokens offset alone explains, and the standard errors."""
        found = np.zeros((2, self._n_heads, len(METRICS)))
        if self._feeds["repeated"].n:
            _, period, _ = self._feeds["repeated"].layout
            for metric, offset in (("induction", period - 1), ("duplicate_token", period)):
                of_offset = self._offsets.beyond_chance(offset, self._n_heads)
                found[:, :, METRICS.index(metric)] = of_offset
        return found

    def _block(
        self, feed: str, maps: Tensor, name: str, length: int | None, at_least: int
    ) -> Block:
        """Where the maps stand in their sequences, once they are found to be this layer's."""
        require_maps(maps, name, whole=length is None)
        length = length or maps.shape[-1]
        if length < at_least:
            raise ProbeError(
                f"{name} of {length} tokens are too short: give sequences of at least {at_least}"
            )
        self._adopt_heads(maps.shape[1])
        return self._pending[feed].block(maps, length)

    def _adopt_heads(self, n_heads: int) -> None:
        if self._n_heads and n_heads != self._n_heads:
            raise ProbeError(
                f"the number of heads changed from {self._n_heads} to {n_heads}: use one probe for "
                "each layer"
            )
        self._n_heads = n_heads
