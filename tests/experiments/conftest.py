"""What several tests of experiments share: a synthetic run, a browser.

The run has the true schema: its numbers are random, names and shapes as in a real one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.codes.ablation import site_by_site, through_the_stream
from experiments.codes.in_depth import statistics_at
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.report.data import ReportData
from experiments.report.page import render
from experiments.results.answer import answer_of, judged_by_removal
from experiments.results.measurements import COLUMNS, table
from experiments.results.readability import Verdict
from experiments.results.usage import use_verdicts
from experiments.runs.workers import torch_threads
from nope_interp.constructions.planted import N_CTX, plant
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from probes.head_rules import RULES

HOSTILE = "</script><script>document.title='x'</script>"
METRICS = {
    "linear": ("mae", "r2"),
    "counting": ("r2", "mae"),
    "two_layer": ("mae", "r2"),
    "variance": ("mae", "r2", "law_r2"),
    "similarity": ("mae", "r2", "adjacency_a", "adjacency_b", "adjacency_c", "seriation_tau"),
    "positional_vectors": ("share",),
}


def _chance(metric: str, n_positions: int) -> float:
    chances = {"mae": n_positions / 4, "law_r2": np.nan, "seriation_tau": 0.08}
    return 0.5 if metric.startswith("adjacency") else chances.get(metric, 0.0)


def _value(rng: np.random.Generator, metric: str, chance: float, strength: float) -> float:
    if metric == "mae":
        return chance * (1 - 0.9 * strength) + rng.normal(0, 0.02 * chance)
    base = 0.0 if np.isnan(chance) else chance
    return base + (0.97 - base) * strength + rng.normal(0, 0.01)


def _places(n_layers: int) -> list[tuple[int, str]]:
    inner = [(layer, site) for layer in range(n_layers) for site in ("attn_out", "resid_post")]
    return [(0, "resid_pre"), *inner]


def synthetic_report(
    n_layers: int = 2,
    n_positions: int = 24,
    variants: Sequence[str] = ("trained", "random-init", "bidirectional"),
    tokens: Sequence[str] = ("text", "random"),
    example_tokens: Sequence[str] | None = None,
    seed: int = 0,
    **changes: Any,
) -> ReportData:
    """A ReportData of that size; `changes` replace whole fields."""
    rng = np.random.default_rng(seed)
    positions = np.arange(1, n_positions)
    m = positions + 1
    rows: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for variant in variants:
        for source in tokens:
            for begin in (False, True):
                for layer, site in _places(n_layers):
                    depth = 0 if site == "resid_pre" else layer + 1
                    reach = {"trained": 0.95, "pretrained": 0.95, "random-init": 0.4}.get(
                        variant, 0
                    )
                    strength = reach * depth / n_layers * (1.0 if begin else 0.85)
                    kept = f"{variant}/{source}/{'begin' if begin else 'nobegin'}/{layer}/{site}"
                    for probe, metrics in METRICS.items():
                        if probe == "two_layer" and site == "attn_out":
                            continue
                        for metric in metrics:
                            for control in ("", "shuffled positions"):
                                if control and metric in ("law_r2",):
                                    continue
                                chance = _chance(metric, n_positions)
                                value = _value(rng, metric, chance, 0 if control else strength)
                                half = 0.04 * abs(value) + 0.005
                                run = ("compare", "nope-4x128", variant, "intact")
                                where = (*run, source, begin, 0, None)
                                what = (layer, None, site, probe, control, metric)
                                score = (value, value - half, value + half, chance, 64)
                                rows.append(dict(zip(COLUMNS, where + what + score, strict=True)))
                        arrays[f"{kept}/{probe}/positions"] = positions
                    law = np.array([0.3 + depth, strength * 4])
                    curve = law[0] + law[1] / m + rng.normal(0, 0.02, len(m))
                    arrays |= {
                        f"{kept}/variance/curve": curve,
                        f"{kept}/variance/curve_low": curve - 0.05,
                        f"{kept}/variance/curve_high": curve + 0.05,
                        f"{kept}/variance/law": law,
                    }
                    i, j = np.meshgrid(m, m, indexing="ij")
                    cosine = strength * np.sqrt(np.minimum(i, j) / np.maximum(i, j))
                    noise = rng.normal(0, 0.01, cosine.shape)
                    cosine = np.clip(cosine + (noise + noise.T) / 2, -1, 1)
                    np.fill_diagonal(cosine, 1.0)
                    arrays[f"{kept}/similarity/cosine"] = cosine
                    for probe in ("linear", "two_layer"):
                        if probe == "two_layer" and site == "attn_out":
                            continue
                        error = (
                            n_positions
                            / 4
                            * (1 - 0.8 * strength * (1 - positions / 2 / n_positions))
                        )
                        error = error + rng.normal(0, 0.2, len(m))
                        arrays |= {
                            f"{kept}/{probe}/error": error,
                            f"{kept}/{probe}/error_low": error - 0.8,
                            f"{kept}/{probe}/error_high": error + 0.8,
                        }
    measurements = table(rows)
    fields: dict[str, Any] = {
        "title": "How nope-4x128 knows where it is",
        "measurements": measurements,
        "arrays": arrays,
        "info": {
            "model": "nope-4x128",
            "config": {"n_layers": n_layers, "d_model": 128, "positions": "none", "causal": True},
            "sequences fitted": 192,
            "sequences held out": 64,
            "seq_len": n_positions,
            "seed": 0,
            "versions": {"torch": "2.8.0", "transformer-lens": "4.3.0"},
            "platform": "Linux, 2 cores",
            "seconds": 231,
            "command": "nope-interp compare --seed 0",
            "notes": [
                "Position 0 is left out: the begin token and the attention sink give it away."
            ],
        },
        "verdicts": _verdicts(measurements, variants, tokens),
        "example": _example(rng, variants, n_layers, example_tokens or _tokens(n_positions)),
    }
    fields |= {"answer": answer_of(fields["verdicts"], None)} | changes
    return ReportData(**fields)


def _tokens(n: int) -> list[str]:
    words = ["The", "quick", "brown", "fox", "jumps", "over", "a", "dog", "and\n", "sleeps"]
    return [HOSTILE, *(" " + words[i % len(words)] for i in range(n - 1))]


def _verdicts(
    measurements: pd.DataFrame, variants: Sequence[str], tokens: Sequence[str]
) -> list[Verdict]:
    asked = {
        "variance": ("variance", "mae"),
        "similarity": ("similarity", "mae"),
        "counting": ("counting", "r2"),
        "mean residual": ("positional_vectors", "share"),
    }
    verdicts = []
    for hypothesis, (probe, metric) in asked.items():
        rows = []
        of_probe = measurements[
            (measurements["probe"] == probe) & (measurements["metric"] == metric)
        ]
        keys = ["variant", "tokens", "begin_token"]
        for key, group in of_probe.groupby(keys, sort=False):
            own = group[group["control"] == ""].sort_values("value", ascending=metric == "mae")
            best = own.iloc[0]
            control = group[
                (group["control"] != "")
                & (group["layer"] == best["layer"])
                & (group["site"] == best["site"])
            ]
            names = ["layer", "site", "metric", "value", "ci_low", "ci_high", "chance"]
            row = dict(zip(keys, key, strict=True)) | {name: best[name] for name in names}
            word = {"trained": "readable", "random-init": "faint"}.get(row["variant"], "unreadable")
            rows.append(row | {"control_value": control["value"].iloc[0], "verdict": word})
        sentence = (
            f"Synthetic sentence about {hypothesis}: read in the trained model, absent before."
        )
        verdicts.append(Verdict(hypothesis, sentence, rows))
    return verdicts


def _example(
    rng: np.random.Generator, variants: Sequence[str], n_layers: int, tokens: Sequence[str]
) -> dict[str, Any]:
    n = len(tokens)
    predictions: dict[str, dict[str, list[float | None]]] = {}
    patterns: dict[str, dict[str, np.ndarray]] = {}
    for variant in variants:
        predictions[variant], patterns[variant] = {}, {}
        for layer in range(n_layers):
            strength = (
                {"trained": 0.9, "pretrained": 0.9}.get(variant, 0.1) * (layer + 1) / n_layers
            )
            guess = strength * np.arange(n) + (1 - strength) * n / 2 + rng.normal(0, 1, n)
            predictions[variant][f"block {layer}"] = [None, *guess[1:].tolist()]
            weights = rng.exponential(1.0, (4, n, n))
            if variant != "bidirectional":
                weights = np.tril(weights)
            patterns[variant][f"block {layer}"] = weights / weights.sum(-1, keepdims=True)
    return {"tokens": list(tokens), "predictions": predictions, "patterns": patterns}


def with_code_ablations(report: ReportData) -> ReportData:
    """The report with two real code ablations, both of its trained model.

    On text without a begin token of a model that knows positions by the variance of activations,
    site by site too; on random tokens with one of an untrained model, which cannot lose anything.
    """
    planted = plant("variance")
    untrained = HookedTransformer(
        TransformerConfig(planted.model.cfg.n_layers, 32, 2, d_vocab=64, n_ctx=N_CTX)
    )
    split = Split(planted.sequences(32, seed=1), planted.sequences(16, seed=2))
    small = Split(split.fit % 64, split.held_out % 64)
    posts = [Site(layer, "resid_post") for layer in range(planted.model.cfg.n_layers - 1)]
    sites = [Site(0, "resid_pre"), *posts, Site(0, "attn_out")]
    same = {"experiment": "compare", "model": "nope-4x128", "variant": "trained", "seed": 0}
    task = InterventionTask(planted.model, split, planted.losses, torch.full((16,), planted.chance))
    on_text = same | {"tokens": "text", "begin_token": False}
    nothing_lost = InterventionTask(
        untrained, small, sequence_losses, torch.full((16,), math.log(64))
    )
    on_random = same | {"tokens": "random", "begin_token": True}
    rows = [
        *through_the_stream(task, context=on_text),
        *site_by_site(task, statistics_at(task, sites), context=on_text),
        *through_the_stream(nothing_lost, context=on_random),
    ]
    measurements = pd.concat([report.measurements, table(rows)], ignore_index=True)
    uses = use_verdicts(measurements)
    answer = answer_of(report.verdicts, judged_by_removal(uses[0]))
    return replace(report, measurements=measurements, uses=uses, answer=answer)


@pytest.fixture(scope="session")
def causal_file(causal_report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `causal_report`."""
    path = tmp_path_factory.mktemp("page") / "causal.html"
    path.write_text(render(causal_report), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def causal_report() -> ReportData:
    """A synthetic run of three layers with real code ablations."""
    # Of products this small a second thread does nothing but wait, on a busy machine for long.
    with torch_threads(1):
        return with_code_ablations(synthetic_report(n_layers=3, n_positions=N_CTX))


HISTORY_STEPS = (0, 1, 2, 4, 8, 12)
HISTORY_ONSETS = {"similarity": 0, "variance": 2, "linear": 4, "counting": 4}


def with_history(report: ReportData) -> ReportData:
    """The report with a planted history of its trained model, before its other rows.

    A probe gains a half, 0.01 more with each step, at block 1's attention output from its onset in
    `HISTORY_ONSETS` on; all else stands at chance. The loss falls by a half at each step. Head H of
    layer L scores L / 10 + H / 100, a thousandth more with each step; L1H1 is called previous-token
    from step 4 on.
    """
    rows: list[dict[str, Any]] = []
    same = {"experiment": "compare", "model": "nope-4x128", "variant": "trained", "seed": 0}
    same |= {"positions": "intact", "tokens": "text", "begin_token": False, "n": 64}

    def add(value: float, half: float = 0.001, **more: Any) -> None:
        ends = {"ci_low": value - half, "ci_high": value + half}
        rows.append({"control": "", "chance": 0.0, **same, **more, "value": value, **ends})

    measured = [
        (probe, metric, 0.5 if metric == "adjacency_a" else 6.0 * (metric == "mae"))
        for probe in ("linear", "counting", "variance", "similarity", "positional_vectors")
        for metric in ("mae", "r2", "share", "adjacency_a")
        if metric in METRICS[probe]
    ]
    for nth, step in enumerate(HISTORY_STEPS):
        at = {"step": step, "layer": -1, "site": "resid_post", "probe": "loss", "metric": "nats"}
        add(5.0 - nth / 2, **at, chance=3.3)
        for layer, site in _places(2)[1:]:
            for probe, metric, chance in measured:
                since = HISTORY_ONSETS.get(probe, 99)
                found = 0.5 + nth / 100 if (layer, site) == (1, "attn_out") else 0.0
                found = found if step >= since else 0.0
                value = chance * (1 - found) if metric == "mae" else chance + found / 2
                value = found if metric == "r2" else value
                what = {"step": step, "layer": layer, "site": site, "probe": probe}
                add(value, **what, metric=metric, chance=chance)
                add(chance, **what, metric=metric, chance=chance, control="shuffled positions")
        for layer, head in np.ndindex(2, 2):
            at = {"step": step, "layer": layer, "head": head, "site": "pattern", "n": 16}
            for rule in RULES:
                source = "repeated" if rule.metric == "induction" else "text"
                what = {"probe": "heads", "metric": rule.metric, "tokens": source}
                chance = np.nan if rule.metric == "uniform" else 0.05
                add(layer / 10 + head / 100 + nth / 1000, **at, **what, chance=chance)
            sought = step >= 4 and (layer, head) == (1, 1)
            label = "previous-token" if sought else "none"
            add(1.0, np.nan, **at | {"n": 0}, probe="label", metric=label, chance=np.nan)
    # Among the first rows they would be met first by whoever forgets that they have a step.
    measurements = pd.concat([table(rows), report.measurements], ignore_index=True)
    return replace(report, measurements=measurements)


@pytest.fixture(scope="session")
def history_report() -> ReportData:
    return with_history(synthetic_report())


@pytest.fixture(scope="session")
def make_report() -> Callable[..., ReportData]:
    return synthetic_report


@pytest.fixture(scope="session")
def small_report() -> ReportData:
    return synthetic_report()


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.experiments.report.browser import start_chromium

    driver = start_chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def downloads(driver: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("downloads")
    where = {"behavior": "allow", "downloadPath": str(folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The tests' own process computes with one, as workers do."""
    with torch_threads(1):
        yield
