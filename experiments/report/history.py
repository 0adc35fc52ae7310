"""The section on when the codes appear, as plain data: a training's history picked and ordered."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2, nan
from typing import Any

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.encode import number, numbers
from experiments.report.figures import Chart
from experiments.report.lookup import make_panel, make_series
from experiments.results.emergence import code_gains, followed_codes, order_sentence
from experiments.results.measurements import LOSS
from experiments.results.readability import layer_and_site, widened
from experiments.results.worth import WORTH_NAMING
from probes.head_rules import LABELS, NONE, RULES
from probes.scores import SHUFFLED

# A history is of one variant, in one setting.
_VARIANT = "trained"
_HEADER = [
    "step", "what", "measure", "best_at", "value", "ci_low", "ci_high", "chance", "control", "word"
]  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """One number at one step, with its 95% interval; what there is none of is NaN or "".

    `site` is where it is best, `control` the number of shuffled positions there, `word` what
    `experiments.results.readability` calls it.
    """

    step: int
    value: float
    low: float
    high: float
    chance: float = nan
    control: float = nan
    site: str = ""
    word: str = ""


@dataclass(frozen=True)
class Course:
    """One quantity at every watched step; `threshold` is what it has to reach for its word."""

    name: str
    measure: str
    moments: Sequence[Moment]
    threshold: float = nan


def history_of(data: ReportData) -> dict[str, Any] | None:
    """What the section shows; None of a run that kept no history.

    `steps` has the table of each step, `charts` the curves, `lookup` what the slider and the saved
    table need of the page's data.
    """
    kept = data.measurements[data.measurements["step"].notna()]
    if kept.empty:
        return None
    courses = [_loss(kept), *_codes(kept), *_moved(kept), *_adjacency(kept)]
    labels = _labels(kept)
    steps = [moment.step for moment in courses[0].moments]
    first = kept[kept["probe"] == LOSS].iloc[0]
    charts = (_chart(courses, **_OF_CODES), _chart(_heads(kept), **_OF_HEADS))
    return {
        "sentence": order_sentence(kept),
        "setting": (first["tokens"], bool(first["begin_token"])),
        "steps": [
            {
                "step": step,
                "rows": [(course, course.moments[nth]) for course in courses],
                "labels": _counted(labels.get(step, {})),
            }
            for nth, step in enumerate(steps)
        ],
        "charts": [chart for chart in charts if chart.views],
        "lookup": {
            "at": numbers(map(_at, steps), 7),
            "steps": steps,
            "table": {"header": _HEADER, "rows": _saved(courses, labels)},
        },
    }


def _loss(kept: pd.DataFrame) -> Course:
    moments = [
        Moment(row.step, row.value, row.ci_low, row.ci_high, row.chance)
        for row in _by_step(kept[kept["probe"] == LOSS])
    ]
    return Course("loss", "nats per token", moments)


def _codes(kept: pd.DataFrame) -> list[Course]:
    by_code: dict[str, list[Moment]] = defaultdict(list)
    for r in _by_step(code_gains(kept)):
        moment = Moment(r.step, r.gain, r.low, r.high, 0.0, r.control, _site(r), r.word)
        by_code[r.code].append(moment)
    return [Course(code, "gain", moments, WORTH_NAMING) for code, moments in by_code.items()]


def _moved(kept: pd.DataFrame) -> list[Course]:
    by_code: dict[str, list[Moment]] = defaultdict(list)
    for r in _by_step(followed_codes(kept)):
        by_code[r.code].append(Moment(r.step, r.net, r.low, r.high, 0.0, word=r.word))
    return [
        Course(f"{code}, moved", "net share that follows", moments, WORTH_NAMING)
        for code, moments in by_code.items()
    ]


def _adjacency(kept: pd.DataFrame) -> list[Course]:
    rows, where = kept[kept["metric"] == "adjacency_a"], ["step", "layer", "site"]
    shuffled = rows[rows["control"] == SHUFFLED].set_index(where)["value"].to_dict()
    moments = [
        replace(best, control=shuffled.get((row.step, row.layer, row.site), nan), site=_site(row))
        for best, row in _largest(rows[rows["control"] == ""])
    ]
    return [Course("adjacency A", "probability", moments)] if moments else []


def _heads(kept: pd.DataFrame) -> list[Course]:
    scores = kept[kept["probe"] == "heads"]
    courses = []
    for rule in RULES:
        found = _largest(scores[scores["metric"] == rule.metric])
        moments = [replace(best, site=f"L{row.layer}H{row.head}") for best, row in found]
        courses.append(Course(rule.label, "score", moments, rule.threshold))
    return [course for course in courses if course.moments]


def _by_step(rows: pd.DataFrame) -> list[Any]:
    """The rows by step, whose numbers are Python's own; within one, as they were."""
    ordered = rows.sort_values("step", kind="stable")
    return list(ordered.astype({"step": object}).itertuples())


def _largest(rows: pd.DataFrame) -> list[tuple[Moment, Any]]:
    """The largest value of each step, its interval widened for how many there are, and its row."""
    rows = rows.dropna(subset=["value"])
    found = []
    for row in _by_step(rows.loc[rows.groupby("step")["value"].idxmax()]):
        bounds = widened(row.value, row.ci_low, row.ci_high, len(rows), row.n)
        found.append((Moment(row.step, row.value, *bounds, row.chance), row))
    return found


def _site(row: Any) -> str:
    return layer_and_site(row.layer, row.site)


def _labels(kept: pd.DataFrame) -> dict[int, dict[str, int]]:
    """{step: {label: how many heads have it}}, in the order of the rules."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for row in _by_step(kept[kept["probe"] == "label"]):
        counts[row.step][row.metric] += 1
    rank = {label: nth for nth, label in enumerate(LABELS)}
    return {
        step: dict(sorted(found.items(), key=lambda pair: rank.get(pair[0], len(rank))))
        for step, found in counts.items()
    }


def _counted(labels: dict[str, int]) -> str:
    words = {NONE: "without a label"}
    return ", ".join(f"{count} {words.get(label, label)}" for label, count in labels.items())


def _saved(courses: Sequence[Course], labels: dict[int, dict[str, int]]) -> list[list[Any]]:
    """The rows behind the tables of all steps, as the page saves them."""
    rows = []
    for course in courses:
        for m in course.moments:
            found = numbers((m.value, m.low, m.high, m.chance, m.control))
            rows.append([m.step, course.name, course.measure, m.site, *found, m.word])
    for step, counts in labels.items():
        rows += [
            [step, f"heads labelled {label}", "count", "", count, None, None, None, None, ""]
            for label, count in counts.items()
        ]
    return sorted(rows, key=lambda row: row[0])


_OF_CODES = {
    "id": "history-codes",
    "title": "Loss, codes, what is followed, adjacency",
    "caption": "At every watched step the best site anew: it may move from step to step. The "
    "dashed line is chance, that of the loss a guesser who knows no order. The dotted one is "
    "shuffled positions at that site, the thin one a gain of a tenth. Gains of different codes "
    "cannot be compared. Of codes that are moved stands the share that follows, minus that of a "
    "move of the same size. Bars are 95% intervals over held-out sequences, of all but the "
    "loss widened for the number of sites and steps. The axis is logarithmic; step 0 stands one "
    "doubling before step 1.",
    "fit": "a gain of a tenth",
}
_OF_HEADS = {
    "id": "history-heads",
    "title": "The strongest head of each kind",
    "caption": "At every watched step the head with the largest score, as it attends then: the "
    "best of all heads, and so above chance by chance. The dashed line is chance, where there "
    "is one, the thin one the threshold of the label. Bars are 95% intervals over sequences, "
    "widened for the number of heads and steps.",
    "fit": "threshold of the label",
}


def _chart(courses: Sequence[Course], **words: Any) -> Chart:
    panels = [make_panel(c.name, None, c.measure, _series(c)) for c in courses]
    steps = sorted({moment.step for course in courses for moment in course.moments})
    return Chart(
        **words,
        x="optimiser steps",
        views={"": {"panels": panels}} if panels else {},
        ticks={f"{number(_at(step), 7):.7g}": str(step) for step in steps},
        switched=False,
        text="at",
        named_x=True,
    )


def _series(course: Course) -> list[dict[str, Any]]:
    moments = course.moments
    x = [_at(moment.step) for moment in moments]
    levels = [
        ("chance", None, "chance", [m.chance for m in moments]),
        ("control", _VARIANT, SHUFFLED, [m.control for m in moments]),
        ("fit", None, "threshold", [course.threshold for _ in moments]),
    ]
    series = [
        make_series(kind, variant, x, values, name)
        for kind, variant, name, values in levels
        if any(number(value) is not None for value in values)
    ]
    low, high = [m.low for m in moments], [m.high for m in moments]
    line = make_series("value", _VARIANT, x, [m.value for m in moments], course.name, low, high)
    text = [f"step {m.step}{m.site and ', '}{m.site}" for m in moments]
    return [*series, line | {"text": text}]


def _at(step: int) -> float:
    """Where a step stands on the axis: in doublings, step 0 one before step 1."""
    return log2(step or 0.5)
