"""The first screen of a comparison's page: one figure, understood without its caption."""

from collections.abc import Sequence
from typing import Any

from experiments.report.encode import number
from experiments.results.answer import STRONGER_CONTROL, Answer, CodeAnswer, Reading
from experiments.results.intervals import Interval
from experiments.results.measurements import RANDOM_INIT
from experiments.results.percent import percent
from experiments.results.worth import WORTH_NAMING
from probes.code_names import IRREGULAR, MEAN_RESIDUAL, SMOOTH

# A scale goes from no gain to all of it, with room for a mark at either end.
_START, _LENGTH = 3.0, 94.0
# What each other variant of the model in question is.
_VARIANTS = {
    RANDOM_INIT: "the same model before training",
    "bidirectional": "the same weights without the causal mask",
}
# The entry of the glossary that says what a test does to a code.
_TESTS = {
    "moved": "moved",
    "put back": "put-back",
    "removed": "removed",
    "kept alone": "sufficiency",
}
# What is said of codes that position is surely read from, and where there are none.
_READ = ("readable", "faint")
_NOWHERE = "Layer by layer; position is surely read from no code."
# Of a removal the controls stand beside its shares.
_NET_OF_CONTROLS = "moved"
# What these two are halves of.
_PARTS = dict.fromkeys((SMOOTH, IRREGULAR), f"part of the {MEAN_RESIDUAL}")
# Why nothing is read of a code that has no probe.
_UNREAD = {IRREGULAR: "Not probed alone: the probe reads the whole mean residual"}
_HEADER = ["code", "verdict", "shown", "value", "ci_low", "ci_high", "word", "best_at"]


def first_figure(answer: Answer) -> dict[str, Any] | None:
    """What the figure draws, in percent of its scales.

    Args:
        answer: what is said at a glance.

    Returns:
        A row for each code, which scales there are, and the numbers that are saved; None where
        nothing was read and nothing judged.
    """
    if not answer.codes:
        return None
    judged = bool(answer.share_of)
    readers = [name for name in ("before", "after") if any(getattr(c, name) for c in answer.codes)]
    controlled = any(code.control is not None for code in answer.codes)
    return {
        "judged": judged,
        "variant": next((c.after.variant for c in answer.codes if c.after), ""),
        "share_of": answer.share_of,
        "restored_of": answer.restored_of,
        "share_term": _term(answer.share_of),
        "restored_term": _term(answer.restored_of),
        "net": _term(answer.share_of) == _NET_OF_CONTROLS,
        "control": STRONGER_CONTROL if controlled else "",
        "readers": readers,
        "least": _at(WORTH_NAMING),
        "rows": [_row(code, judged) for code in answer.codes],
    }


def gists(answer: Answer, variants: Sequence[str]) -> dict[str, str]:
    """One line under the title of each part, which says what is inside before it is opened.

    Args:
        answer: what is said at a glance.
        variants: the model variants of the run.

    Returns:
        Lines by part.
    """
    sites: dict[str, list[str]] = {}
    for code in answer.codes:
        if code.after is not None and code.after.word in _READ:
            sites.setdefault(code.after.site, []).append(code.code)
    best = [f"{', '.join(codes)} at {site}" for site, codes in sites.items()]
    nowhere = _NOWHERE if any(code.after for code in answer.codes) else "Layer by layer."
    others = [_VARIANTS[name] for name in variants if name in _VARIANTS]
    controls = ["permuted positions", *(["changes of the same size"] if answer.share_of else [])]
    return {
        "where": f"Read best: {'; '.join(best)}." if best else nowhere,
        "sure": f"95% intervals over held-out sequences; controls: {', '.join(controls)}.",
        "compared": f"With {' and '.join(others)}." if others else "With chance.",
    }


def first_csv(answer: Answer) -> dict[str, Any]:
    """The numbers behind the figure, as the page saves them."""
    rows = []
    for code in answer.codes:
        word = None if code.word is None else str(code.word)
        for shown, reading in (("untrained model", code.before), ("this model", code.after)):
            if reading is not None:
                numbers = [number(value) for value in reading.gain]
                rows.append([code.code, word, shown, *numbers, reading.word, reading.site])
        for shown, share in (
            (answer.share_of, code.share),
            (answer.restored_of, code.restored),
        ):
            if share is not None:
                rows.append([code.code, word, shown, *map(number, share), None, None])
        if code.control is not None:
            control = number(code.control)
            rows.append([code.code, word, STRONGER_CONTROL, control, *[None] * 4])
    return {"header": _HEADER, "rows": rows}


def _term(shown: str) -> str:
    test, *_ = shown.split(":")
    return _TESTS.get(test, "")


def _row(code: CodeAnswer, judged: bool) -> dict[str, Any]:
    after = code.after
    word = code.word if judged else None if after is None else after.word
    return {
        "code": code.code,
        "term": code.code.replace(" ", "-"),
        "part": _PARTS.get(code.code, ""),
        "word": None if word is None else str(word),
        "before": _read(code.before),
        "after": _read(after),
        "unread": _UNREAD.get(code.code, "Not probed"),
        "share": None if code.share is None else _mark(code.share),
        "restored": None if code.restored is None else _mark(code.restored),
        "control": None if code.control is None else _at(code.control),
    }


def _read(reading: Reading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    return _mark(reading.gain) | {"word": reading.word, "site": reading.site}


def _mark(interval: Interval) -> dict[str, Any]:
    value, low, high = interval
    return {
        "at": _at(value),
        "low": _at(low),
        "high": _at(high),
        "percent": percent(value),
        "bounds": f"{percent(low)} to {percent(high)}",
    }


def _at(share: float) -> float:
    return round(_START + _LENGTH * min(max(share, 0.0), 1.0), 2)
