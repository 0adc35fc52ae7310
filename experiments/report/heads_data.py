"""What a run of `nope-interp heads` hands to its page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nope_interp.errors import UserError

# Beside the conditions, `offset_profiles` may hold what a head without preference would show.
CHANCE = "chance"

HEAD_COLUMNS = (
    "layer",
    "head",
    "label",
    "runner_up",
    "confidence",
    "p_shuffled",
    "p_random_init",
    "q_value",
    "dependence",
    "retention",
    "retention_low",
    "retention_high",
    "ablated_label",
)
_AXES = ("layer", "head")

# The name of an array by head, itself, and the sizes of its axes after [layer head], None for any.
_Drawn = tuple[str, np.ndarray, tuple[int | None, ...]]

# Half-precision weights may pass 1, and a hidden cell zero, by this much.
_ROUNDING = 1e-2


@dataclass(frozen=True)
class HeadsReportData:
    """Everything that the heads page shows; the page computes nothing beyond it.

    `conditions` is ("intact",) or ("intact", the ablation's name). `heads` has one row for each
    layer and head: `HEAD_COLUMNS` and, for each metric m of `metrics`, m (positions intact), m_low,
    m_high, m_chance and m_ablated; m_ablated_low and m_ablated_high are shown where they are there.
    Any number may be NaN and any word missing.

    `losses` are in nats per token. `offset_profiles` holds the mean attention weight at each
    distance from query to key, {condition: [layer head offset]}, and may hold "chance": [offset].
    `frequencies` is None without rotary positions, else radians_per_token [layer freq], query_norm
    and key_norm [layer head freq], with NaN for layers that do not rotate. `patterns` holds one
    [layer head query key] array for each prompt, {condition: [prompt ...]}; `edges` K-composition
    scores of head pairs with their chance level; `rules` the classification table. info is
    JSON-able; its "command" and "notes" are shown apart from the rest.

    Raises:
        UserError: an array has another shape than the heads and prompts ask for, or a pattern is no
            causal attention: the run's files were damaged, or are of different runs.
    """

    title: str
    headline: str
    measurements: pd.DataFrame
    heads: pd.DataFrame
    metrics: Sequence[str]
    conditions: Sequence[str]
    losses: Sequence[Mapping[str, Any]]
    offset_profiles: Mapping[str, np.ndarray]
    frequencies: Mapping[str, Any] | None
    prompts: Sequence[Sequence[str]]
    patterns: Mapping[str, Sequence[np.ndarray]]
    edges: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, str]]
    info: Mapping[str, Any]

    def __post_init__(self) -> None:
        sizes = [1 + int(self.heads[axis].max()) if len(self.heads) else 0 for axis in _AXES]
        for name, array, rest in self._by_head():
            shape = np.shape(array)
            few = any(size < least for size, least in zip(shape, sizes, strict=False))
            if few or len(shape) != 2 + len(rest) or (None not in rest and shape[2:] != rest):
                raise _damaged(name, f"has shape {shape}")
        for name, pattern, _ in self._patterns():
            if not ((pattern >= -_ROUNDING) & (pattern <= 1 + _ROUNDING)).all():
                raise _damaged(name, "holds weights outside 0 to 1")
            if (np.triu(pattern, k=1) > _ROUNDING).any():
                raise _damaged(name, "attends to later tokens")

    def _by_head(self) -> Iterator[_Drawn]:
        for condition, profile in self.offset_profiles.items():
            if condition != CHANCE:
                yield f"offset_profile/{condition}", profile, (None,)
        if self.frequencies is not None:
            n_freq = np.shape(self.frequencies["radians_per_token"])[-1]
            for name in ("query_norm", "key_norm"):
                yield f"frequency/{name}", self.frequencies[name], (n_freq,)
        yield from self._patterns()

    def _patterns(self) -> Iterator[_Drawn]:
        for condition, patterns in self.patterns.items():
            for i, (pattern, tokens) in enumerate(zip(patterns, self.prompts, strict=True)):
                yield f"pattern/{condition}/{i}", pattern, (len(tokens), len(tokens))


def _damaged(name: str, how: str) -> UserError:
    return UserError(
        f"the array {name!r} {how}, which does not fit the run's table of heads and prompts: "
        "delete the run folder and run the command again."
    )
