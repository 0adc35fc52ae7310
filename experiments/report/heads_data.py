"""What a run of `nope-interp heads` hands to its page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.measurements import COLUMNS, INTACT
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
_METRIC_COLUMNS = ("{}", "{}_low", "{}_high", "{}_chance", "{}_ablated")
_LOSS_KEYS = ("positions", "tokens", "value", "ci_low", "ci_high", "chance", "n")
_EDGE_KEYS = ("from_layer", "from_head", "to_layer", "to_head", "score", "chance")
_RULE_KEYS = ("label", "rule", "nulls")
_FREQUENCY_KEYS = ("radians_per_token", "query_norm", "key_norm")

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
        UserError: a column or key is missing, a head stands twice or outside an array, an array has
            another shape than the heads and tokens ask for, or a pattern is no causal attention.
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
        if tuple(self.conditions[:1]) != (INTACT,):
            raise UserError(f"the conditions {list(self.conditions)} must begin with {INTACT!r}.")
        if len(self.conditions) > 2:
            raise UserError(
                f"the page shows one ablation beside {INTACT!r}, not {len(self.conditions) - 1}: "
                "make one report for each."
            )
        _check_names("the measurements", self.measurements.columns, COLUMNS)
        wanted = [form.format(metric) for metric in self.metrics for form in _METRIC_COLUMNS]
        _check_names("the table of heads", self.heads.columns, [*HEAD_COLUMNS, *wanted])
        repeated = self.heads.duplicated(["layer", "head"])
        if repeated.any():
            layer, head = self.heads.loc[repeated, ["layer", "head"]].iloc[0]
            raise UserError(f"head {head} of layer {layer} stands twice in the table of heads.")
        for what, rows, keys in (
            ("a loss", self.losses, _LOSS_KEYS),
            ("an edge", self.edges, _EDGE_KEYS),
            ("a rule", self.rules, _RULE_KEYS),
        ):
            for row in rows:
                _check_names(what, row, keys)
        self._check_edges()
        self._check_profiles()
        self._check_frequencies()
        self._check_patterns()

    def _check_edges(self) -> None:
        known = set(zip(self.heads["layer"], self.heads["head"], strict=True))
        for edge in self.edges:
            for layer, head in (
                (edge["from_layer"], edge["from_head"]),
                (edge["to_layer"], edge["to_head"]),
            ):
                if (layer, head) not in known:
                    raise UserError(
                        f"an edge names head {head} of layer {layer}, which the table of heads "
                        "lacks: take both from the same run."
                    )

    def _check_profiles(self) -> None:
        self._check_conditions("offset profiles", set(self.offset_profiles) - {CHANCE})
        for name, profile in self.offset_profiles.items():
            if name == CHANCE:
                _check_shape("the offset profile of chance", profile, ("offset",))
            else:
                self._check_heads(f"the offset profile of {name!r}", profile, ("offset",))

    def _check_frequencies(self) -> None:
        if self.frequencies is None:
            return
        _check_names("the frequencies", self.frequencies, _FREQUENCY_KEYS)
        radians = np.asarray(self.frequencies["radians_per_token"])
        _check_shape("radians_per_token", radians, ("layer", "freq"))
        for name in ("query_norm", "key_norm"):
            norm = np.asarray(self.frequencies[name])
            self._check_heads(name, norm, ("freq",))
            if (norm.shape[0], norm.shape[2]) != radians.shape:
                raise UserError(
                    f"{name} has shape {norm.shape} for {radians.shape} radians per token "
                    "[layer freq]: give a number for each layer, head and frequency."
                )

    def _check_patterns(self) -> None:
        self._check_conditions("patterns", self.patterns)
        for condition, patterns in self.patterns.items():
            if len(patterns) != len(self.prompts):
                raise UserError(
                    f"there are {len(patterns)} patterns of {condition!r} for {len(self.prompts)} "
                    "prompts: give one for each."
                )
            for prompt, (pattern, tokens) in enumerate(zip(patterns, self.prompts, strict=True)):
                what = f"the pattern of {condition!r} on prompt {prompt}"
                self._check_heads(what, pattern, ("query", "key"))
                if np.shape(pattern)[2:] != (len(tokens), len(tokens)):
                    raise UserError(
                        f"{what} has shape {np.shape(pattern)} for {len(tokens)} tokens: give a "
                        "query and a key for each token."
                    )
                _check_weights(what, np.asarray(pattern))

    def _check_conditions(self, what: str, found: Iterable[str]) -> None:
        unknown = sorted(set(found) - set(self.conditions))
        if unknown:
            raise UserError(
                f"there are {what} of {unknown[0]!r}, which is none of the conditions "
                f"{', '.join(self.conditions)}."
            )

    def _check_heads(self, what: str, array: Any, more: tuple[str, ...]) -> None:
        """Refuse an array that is not [layer head ...] or lacks a head of the table."""
        _check_shape(what, array, ("layer", "head", *more))
        for axis, name in enumerate(("layer", "head")):
            most = int(self.heads[name].max()) if len(self.heads) else -1
            if np.shape(array)[axis] <= most:
                raise UserError(
                    f"{what} has shape {np.shape(array)}, but the table of heads goes up to {name} "
                    f"{most}: take both from the same run."
                )


def _check_names(what: str, found: Iterable[Any], wanted: Iterable[str]) -> None:
    present = set(found)
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UserError(
            f"{missing[0]!r} is missing from {what}: the report draws what nope-interp wrote; run "
            "the experiment again."
        )


def _check_shape(what: str, array: Any, axes: tuple[str, ...]) -> None:
    if np.ndim(array) != len(axes):
        raise UserError(f"{what} has shape {np.shape(array)}: it must be [{' '.join(axes)}].")


def _check_weights(what: str, pattern: np.ndarray) -> None:
    if not ((pattern >= -_ROUNDING) & (pattern <= 1 + _ROUNDING)).all():
        raise UserError(f"{what} holds weights outside 0 to 1: give attention after the softmax.")
    if (np.triu(np.abs(pattern), k=1) > _ROUNDING).any():
        raise UserError(f"{what} attends to later tokens: give the patterns of a causal model.")
