"""The section on what the model uses, as plain data: what code ablation measured, in order."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from experiments.report import lookup
from experiments.report.data import ReportData
from experiments.report.encode import number
from experiments.report.figures import Chart
from experiments.report.shell import MARKED, marks, top_of
from experiments.results import code_ablation as names
from experiments.results.intervals import Interval
from experiments.results.measurements import INTACT, LOSS, RANDOM_INIT, finished
from experiments.results.readability import HYPOTHESES, READ_AS, gain, gain_bounds, layer_and_site
from experiments.results.usage import Use, UseVerdict
from probes.code_names import CODES, IRREGULAR
from probes.scores import SHUFFLED

_NO_INCREASE = "no increase"
# measure -> (what its menu calls it, unit of its axis)
_MEASURES = {
    "necessity": ("necessity", "share of the lead"),
    "increase": ("loss increase", "loss increase, nats per token"),
}
# The conditions that take codes away, without each, each alone, and without all.
_OF_CODES = (*map(names.without, CODES), *map(names.only, CODES), names.NONE_KEPT)
_STILL_HEADER = ["condition", "of", "value", "ci_low", "ci_high", "of_control"]
# metric of `probes.codes.controls.side_effects` -> what its column is called
_SIDE_EFFECTS = {"norm": "norms moved", "cosine": "cosines moved"}


def use_groups(data: ReportData) -> list[dict[str, Any]]:
    """What the page's tables show of each use verdict."""
    drawn = [_scaled(use) for verdict in data.uses for use in verdict.of_stream]
    top = top_of(drawn, MARKED)
    # Beside the uses stand the readings of their variants, and of the untrained one.
    wanted = {verdict.variant for verdict in data.uses} | {RANDOM_INIT}
    words = {
        (verdict.hypothesis, row["variant"], row["tokens"], bool(row["begin_token"])): str(
            row["verdict"]
        )
        for verdict in data.verdicts
        for row in verdict.rows
    }
    read = {variant for _, variant, *_ in words}
    readers = [variant for variant in lookup.variants_of(data) if variant in wanted & read]
    return [_group(data, verdict, words, readers, top) for verdict in data.uses]


def _group(
    data: ReportData,
    verdict: UseVerdict,
    words: Mapping[tuple[Any, ...], str],
    readers: Sequence[str],
    top: float,
) -> dict[str, Any]:
    setting, table = (verdict.tokens, verdict.begin_token), finished(data.measurements)
    table = table[
        (table["variant"] == verdict.variant)
        & (table["tokens"] == verdict.tokens)
        & (table["begin_token"] == verdict.begin_token)
    ]
    return {
        "setting": setting,
        "verdict": verdict,
        "loss_without": verdict.intact[0] + verdict.total_effect[0],
        "readers": readers,
        "rows": [
            {
                "use": use,
                "read": [
                    # The irregular part is not read alone.
                    words.get((READ_AS.get(use.code, use.code), variant, *setting))
                    if use.code != IRREGULAR
                    else None
                    for variant in readers
                ],
                "marks": marks(_scaled(use), MARKED, top),
            }
            for use in verdict.of_stream
        ],
        "others": _others(table),
        "shifts": _shifts(table),
        "offset": names.OFFSET,
        "still": _still_readable(table),
    }


def still_readable_csv(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers behind a group's table of what is still readable, as the page saves them."""
    still = group["still"]
    rows = [
        [condition["name"], reads, *(number(cell[k]) for k in ("gain", "low", "high", "control"))]
        for condition in still["conditions"]
        for reads, cell in zip(still["columns"], condition["cells"], strict=True)
        if cell is not None
    ]
    rows += [
        [condition["name"], name, *map(number, interval), None]
        for condition in still["conditions"]
        for name, interval in zip(still["side_effects"], condition["moved"], strict=True)
        if interval is not None
    ]
    verdict = group["verdict"]
    begin = "begin" if verdict.begin_token else "nobegin"
    name = f"still-readable_{verdict.variant}_{verdict.tokens}_{begin}"
    return {"name": name, "header": _STILL_HEADER, "rows": rows}


def where_chart(uses: Sequence[UseVerdict]) -> Chart:
    """What taking a code away costs site by site, a panel for each code."""
    local = [(v, use) for v in uses for use in v.uses if use.layer != names.EVERYWHERE]
    apart = lookup.inputs_apart(use.site for _, use in local)
    found = [
        (v, use, lookup.located(v.tokens, v.begin_token, use.site, use.layer, apart))
        for v, use in local
    ]
    found.sort(key=lambda item: item[2])  # setting, stream, depth; codes keep their order
    views = {}
    for (tokens, begin, stream), group in groupby(found, key=lambda item: item[2][:3]):
        here = list(group)
        for measure, (_, unit) in _MEASURES.items():
            panels = [
                lookup.make_panel(
                    code, None, unit, _series(measure, [h for h in here if h[1].code == code])
                )
                for code in CODES
            ]
            views[lookup.view_key(tokens, begin, measure, stream)] = {"panels": panels}
    depths = [where[3] for _, _, where in found]
    return Chart(
        id="removal",
        title="Cost of removing each code, site by site",
        caption="What it costs to remove a code at one site. Large marks: removal there says used.",
        reading="Each code is removed at one layer and site only. Where positions were moved, the "
        "verdict above is that of the moves, and removal is a second opinion. Necessity is its "
        "share of the lead over a guesser who knows no order. There is no share where the total "
        "effect at that site is not surely above zero. Bars are 95% "
        "intervals over held-out sequences, widened for the four codes and all sites. Dashed: no "
        "increase. Dotted, under loss increase: the size-matched control.",
        x="after layer",
        controls=[
            lookup.menu(
                "measure", "Measure", {name: words for name, (words, _) in _MEASURES.items()}
            ),
            lookup.site_menu(where[2] for _, _, where in found),
        ],
        views=views,
        share_y=True,
        ticks=lookup.depth_ticks(depths),
        control=lookup.SIZE_MATCHED_CONTROL,
        chance=_NO_INCREASE,
        text="word",
    )


def _series(measure: str, found: list[tuple[UseVerdict, Use, Any]]) -> list[dict[str, Any]]:
    """No increase, the control and the numbers of one code, by depth and variant."""
    depths = sorted({where[3] for _, _, where in found})
    series = [lookup.make_series("chance", None, depths, [0.0] * len(depths), _NO_INCREASE)]
    for variant in dict.fromkeys(verdict.variant for verdict, _, _ in found):
        own = [(use, where[3]) for verdict, use, where in found if verdict.variant == variant]
        x = [depth for _, depth in own]
        if measure == "increase":
            moved = [use.size_matched[0] for use, _ in own]
            series.append(
                lookup.make_series(
                    "control", variant, x, moved, f"{variant}, {lookup.SIZE_MATCHED_CONTROL}"
                )
            )
        intervals = [getattr(use, measure) or (None, None, None) for use, _ in own]
        value, low, high = zip(*intervals, strict=True)
        line = lookup.make_series("value", variant, x, value, variant, low, high)
        series.append(line | {"text": [use.word for use, _ in own]})
    return series


def _scaled(use: Use) -> dict[str, float]:
    value, low, high = use.increase
    chance, control = 0.0, use.size_matched[0]
    return dict(zip(MARKED, (value, low, high, chance, control), strict=True))


def _others(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Interventions that are not on the four codes, with their controls where they have one."""
    rows = table[
        (table["probe"] == LOSS)
        & (table["layer"] == names.EVERYWHERE)
        & (table["metric"] == "increase")
    ]
    found = {(row.positions, row.control): _bounds(row) for row in rows.itertuples()}
    controls = {condition: control for condition, control in found if control}
    return [
        {
            "condition": condition,
            "increase": interval,
            "control": controls.get(condition),
            "of_control": found.get((condition, controls.get(condition))),
        }
        for (condition, control), interval in found.items()
        if not control and condition not in _OF_CODES
    ]


def _shifts(table: pd.DataFrame) -> list[dict[str, Any]]:
    """By site, how far the position read behind it follows one that is moved there."""
    rows = table[table["probe"] == names.PROBE]
    found = {(row.layer, row.site, row.control): _bounds(row) for row in rows.itertuples()}
    return [
        {
            "site": layer_and_site(at, site),
            "followed": share,
            "of_control": found[at, site, names.MIXED],
        }
        for (at, site, control), share in found.items()
        if not control
    ]


def _bounds(row: Any) -> Interval:
    return float(row.value), float(row.ci_low), float(row.ci_high)


def _still_readable(table: pd.DataFrame) -> dict[str, Any]:
    """What each probe gains at the last block's output: a row for each condition, intact first."""
    readings = table[table["probe"].isin({probe for probe, _, _ in HYPOTHESES.values()})]
    taken = readings[readings["positions"] != INTACT]
    last = taken[["layer", "site"]].drop_duplicates()
    here: dict[tuple[Any, ...], Any] = {}
    for row in readings.merge(last, on=["layer", "site"]).to_dict("records"):
        here.setdefault((row["positions"], row["probe"], row["metric"], row["control"]), row)
    asked = {name: of for name, of in HYPOTHESES.items() if (taken["probe"] == of[0]).any()}
    effects = table[(table["probe"] == names.SIDE_EFFECT) & (table["layer"] == names.EVERYWHERE)]
    moved = {
        (row.positions, row.metric): _bounds(row)
        for row in effects[effects["control"] == ""].itertuples()
    }
    return {
        "site": tuple(last.iloc[0]) if len(last) else None,
        "columns": list(asked),
        "side_effects": list(_SIDE_EFFECTS.values()),
        "conditions": [
            {
                "name": condition,
                "cells": [_cell(here, condition, *of) for of in asked.values()],
                "moved": [moved.get((condition, metric)) for metric in _SIDE_EFFECTS],
            }
            for condition in _ordered(taken["positions"].unique().tolist())
        ],
    }


def _ordered(conditions: list[str]) -> list[str]:
    """Intact, without each code, each alone, without all; then the others as they come."""
    ours = [condition for condition in _OF_CODES if condition in conditions]
    return [INTACT, *ours, *(c for c in conditions if c not in (INTACT, *_OF_CODES))]


def _cell(
    here: Mapping[tuple[Any, ...], Any], condition: str, probe: str, metric: str, smaller: bool
) -> dict[str, float] | None:
    row, control = (here.get((condition, probe, metric, of)) for of in ("", SHUFFLED))
    if row is None or control is None:
        return None
    value, bounds = gain(row["value"], row["chance"], smaller), gain_bounds(row, smaller)
    return {
        "gain": value,
        "low": bounds[0],
        "high": bounds[1],
        "control": gain(control["value"], control["chance"], smaller),
        "shade": round(100 * float(np.clip(np.nan_to_num(value), 0, 1)), 1),
    }
