"""A made-up run of the heads command: random numbers, names and shapes as in a real one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.heads_page import HeadsReportData
from experiments.results.found_by import Finding, told
from experiments.results.measurements import COLUMNS

HOSTILE = "</script><script>document.title='x'</script>"
METRICS = (
    "diagonal",
    "previous_token",
    "first_token",
    "local",
    "uniform",
    "entropy",
    "induction",
    "duplicate_token",
    "positional_share",
    "token_share",
    "repeated_token",
)
METRIC_OF = {
    "previous-token": "previous_token",
    "first-token": "first_token",
    "diagonal": "diagonal",
    "induction": "induction",
    "local": "local",
    "uniform": "uniform",
    "content": "token_share",
}
KINDS = (*METRIC_OF, "none")
ABLATED = {
    "previous-token": "uniform",
    "diagonal": "uniform",
    "local": "content",
    "induction": "none",
}
RULES = [
    {
        "label": label,
        "rule": f"{metric.replace('_', ' ')} of at least 0.4",
        "nulls": "shuffled offsets; random-init",
    }
    for label, metric in METRIC_OF.items()
]


def hybrid_heads() -> HeadsReportData:
    """The same of a model whose layers 1 and 3 alone have heads: arrays have two rows."""
    made = synthetic_heads(n_layers=2, n_tokens=24, n_prompts=1)
    attending = {0: 1, 1: 3}
    frames = {
        name: getattr(made, name).assign(layer=getattr(made, name)["layer"].replace(attending))
        for name in ("heads", "finders")
    }
    return replace(made, edges=[], **frames)


def synthetic_heads(
    n_layers: int = 4,
    n_heads: int = 4,
    n_tokens: int = 32,
    n_prompts: int = 2,
    ablation: str | None = "rotary:none",
    seed: int = 0,
    **changes: Any,
) -> HeadsReportData:
    """A HeadsReportData of that size; `changes` replace whole fields."""
    rng = np.random.default_rng(seed)
    kinds = [
        [KINDS[int(k)] for k in _kinds(rng, layer, n_layers, n_heads)] for layer in range(n_layers)
    ]
    conditions = ["intact", *([ablation] if ablation else [])]
    prompts = [_prompt(n_tokens, p) for p in range(n_prompts)]
    patterns = {
        condition: [
            np.stack(
                [
                    np.stack([_pattern(rng, _under(kind, condition), n_tokens) for kind in row])
                    for row in kinds
                ]
            )
            for _ in prompts
        ]
        for condition in conditions
    }
    heads = _heads(rng, kinds, len(conditions) > 1)
    fields: dict[str, Any] = {
        "title": "The attention heads of a made-up model",
        "needing": "",
        "headline": "Synthetic numbers: 5 of 16 heads have a label, and none keeps it.",
        "measured": "Read on text with a begin token. Its loss is 3.1 nats per token.",
        "brief": "Loss 3.10, chance 5.50 nats per token.",
        "measurements": _measurements(heads, conditions),
        "heads": heads,
        "finders": (finders := _finders(n_layers)),
        "finding": told(finders, n_layers * n_heads),
        "metrics": list(METRICS),
        "conditions": conditions,
        "losses": _losses(conditions),
        "offset_profiles": {c: _profiles(patterns[c]) for c in conditions}
        | {
            "chance": np.array(
                [np.mean(1 / np.arange(o + 1, n_tokens + 1)) for o in range(n_tokens)]
            )
        },
        "frequencies": _frequencies(rng, n_layers, n_heads),
        "prompts": prompts,
        "patterns": patterns,
        "edges": _edges(rng, kinds),
        "settling": [
            {
                "condition": c,
                "n": [8, 16, 32],
                "share": [0.5, 0.75, 1.0],
                "chance": [0.2, 0.2, 0.25 + 0.3 * i],
            }
            for i, c in enumerate(conditions)
        ],
        "rules": RULES,
        "own_rules": [],
        "info": {
            "model": "made-up",
            "sequences": 32,
            "seed": seed,
            "command": "nope-interp heads made-up --ablate rotary",
            "notes": [
                "The window of layer 2 is shorter than the prompts and still shows position."
            ],
        },
    }
    return HeadsReportData(**(fields | changes))


def _finders(n_layers: int) -> pd.DataFrame:
    """Of heads in the last layer: by each word, and with shares that pass the scale's two ends."""
    shares = {
        "previous": [(1.04, -0.02, 0.0), (0.1, 0.7, 0.1), (0.3, 0.1, 0.3)],
        "own": [(0.05, 0.01, 0.93), (-0.2, 0.6, 0.9)],
    }
    rows = []
    for token, of_heads in shares.items():
        for head, found in enumerate(of_heads):
            where = {"token": token, "layer": n_layers - 1, "head": head}
            attention = dict(
                zip(("value", "ci_low", "ci_high"), _near(0.6 - head / 10), strict=True)
            )
            rows.append({**where, **attention, **Finding(*map(_near, found)).columns()})
    return pd.DataFrame(rows)


def _near(value: float) -> tuple[float, float, float]:
    return value, value - 0.02, value + 0.02


def _kinds(rng: np.random.Generator, layer: int, n_layers: int, n_heads: int) -> np.ndarray:
    # Every kind occurs; induction only where an earlier layer can feed it.
    early = [0, 1, 2, 4, 5, 6, 7]
    late = [3, 1, 6, 7, 5, 3, 0]
    pool = early if layer < n_layers / 2 else late
    return rng.permutation([pool[(layer + h) % len(pool)] for h in range(n_heads)])


def _under(kind: str, condition: str) -> str:
    return kind if condition == "intact" else ABLATED.get(kind, kind)


def _prompt(n: int, p: int) -> list[str]:
    words = ["The", " quick", " brown", " fox", " jumps", " over", "\n", " lazy", " dog", " and"]
    return [HOSTILE, *(words[(p + i) % len(words)] for i in range(n - 1))]


def _pattern(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    scores = rng.normal(0, 1, (n, n))
    offset = np.subtract.outer(np.arange(n), np.arange(n))
    bias = {
        "previous-token": 6.0 * (offset == 1),
        "first-token": 5.0 * (offset == np.arange(n)[:, None]),
        "diagonal": 6.0 * (offset == 0),
        "induction": 6.0 * (offset == 9),
        "local": 4.0 * (offset < 5),
        "uniform": -scores * 0.9,
    }.get(kind, scores)
    weights = np.tril(np.exp(scores + bias))
    return weights / weights.sum(-1, keepdims=True)


def _profiles(patterns: Sequence[np.ndarray]) -> np.ndarray:
    mean = np.mean(patterns, axis=0)
    n = mean.shape[-1]
    return np.stack(
        [np.diagonal(mean, -offset, axis1=-2, axis2=-1).mean(-1) for offset in range(n)], axis=-1
    )


def _heads(rng: np.random.Generator, kinds: list[list[str]], ablated: bool) -> pd.DataFrame:
    rows = []
    for layer, row in enumerate(kinds):
        for head, kind in enumerate(row):
            nothing = kind == "none"
            under = ABLATED.get(kind, kind)
            positional = kind in ("previous-token", "diagonal", "local", "induction")
            retention = rng.uniform(0, 0.1) if positional else rng.uniform(0.85, 1.1)
            asked = ablated and kind not in ("none", "uniform")
            found: dict[str, Any] = {
                "layer": layer,
                "head": head,
                "label": kind,
                "runner_up": None if nothing else str(rng.choice(KINDS[:-1])),
                "confidence": float(rng.uniform(0.4, 1)),
                "p_shuffled": float(rng.uniform(0.2, 1) if nothing else rng.uniform(0, 1e-3)),
                "p_random_init": float(rng.uniform(0.2, 1) if nothing else rng.uniform(0, 1e-2)),
                "q_value": float(rng.uniform(0.2, 1) if nothing else rng.uniform(0, 0.04)),
                "dependence": ("positional" if positional else "content") if asked else "",
                "retention": retention if asked else np.nan,
                "retention_low": retention - 0.03 if asked else np.nan,
                "retention_high": retention + 0.04 if asked else np.nan,
                "ablated_label": under if ablated else None,
                "settled_at": 2048.0,
            }
            for metric in METRICS:
                value = (
                    rng.uniform(0.5, 0.95) if METRIC_OF.get(kind) == metric else rng.uniform(0, 0.2)
                )
                after = (
                    rng.uniform(0.5, 0.9) if METRIC_OF.get(under) == metric else rng.uniform(0, 0.2)
                )
                chance = np.nan if metric in ("uniform", "entropy") else 0.04
                found |= {
                    metric: value,
                    f"{metric}_low": value - 0.03,
                    f"{metric}_high": value + 0.03,
                    f"{metric}_chance": chance,
                    f"{metric}_ablated": after if ablated else np.nan,
                }
            rows.append(found)
    return pd.DataFrame(rows)


def _measurements(heads: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    common = {
        "experiment": "heads",
        "model": "made-up",
        "variant": "pretrained",
        "tokens": "text",
        "begin_token": True,
        "seed": 0,
        "step": None,
        "site": "attn.hook_pattern",
        "probe": "heads",
        "control": "",
    }
    rows = [
        common
        | {
            "positions": condition,
            "layer": head["layer"],
            "head": head["head"],
            "metric": metric,
            "value": head[metric] if condition == "intact" else head[f"{metric}_ablated"],
            "ci_low": head[f"{metric}_low"],
            "ci_high": head[f"{metric}_high"],
            "chance": head[f"{metric}_chance"],
            "n": 32 if condition == "intact" else 16385,
        }
        for head in heads.to_dict("records")
        for metric in METRICS
        for condition in conditions
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _losses(conditions: Sequence[str]) -> list[dict[str, Any]]:
    values = {"text": (3.1, 4.6), "random": (11.2, 11.4)}
    return [
        {
            "positions": condition,
            "tokens": tokens,
            "value": pair[c],
            "ci_low": pair[c] - 0.15,
            "ci_high": pair[c] + 0.15,
            "chance": 10.8,
            "n": 32,
        }
        for tokens, pair in values.items()
        for c, condition in enumerate(conditions)
    ]


def _frequencies(rng: np.random.Generator, n_layers: int, n_heads: int) -> dict[str, Any]:
    n_freq = 16
    radians = np.tile(10_000.0 ** (-np.arange(n_freq) / n_freq), (n_layers, 1))
    shape = (n_layers, n_heads, n_freq)
    rise = np.linspace(0.5, 3, n_freq)
    norms = {f"{part}_norm": rise * rng.gamma(4, 0.25, shape) for part in ("query", "key")}
    radians[-1] = np.nan  # the last layer does not rotate
    for norm in norms.values():
        norm[-1] = np.nan
    return {"radians_per_token": radians, **norms}


def _edges(rng: np.random.Generator, kinds: list[list[str]]) -> list[dict[str, Any]]:
    places = [
        (layer, head, kind) for layer, row in enumerate(kinds) for head, kind in enumerate(row)
    ]
    return [
        {
            "from_layer": l1,
            "from_head": h1,
            "to_layer": l2,
            "to_head": h2,
            "score": float(rng.uniform(0.02, 0.3)),
            "chance": 0.05,
        }
        for l1, h1, before in places
        for l2, h2, after in places
        if before == "previous-token" and after == "induction" and l1 < l2
    ]
