"""Tables for a terminal: at most fifteen lines each, whatever a run found."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.papers.listing import RECORDED, time_of
from experiments.results.answer import Answer, Reading
from experiments.results.benchmark import MISSED, OUTCOMES, told
from experiments.results.claims import AFTER, BEFORE, PILOTS, SETTING_LATER, TOO_LITTLE
from experiments.results.intervals import Interval, with_interval
from experiments.results.measurements import LOSS
from experiments.results.percent import percent

# With a title of columns, a rule and the empty lines around them, fifteen lines.
MOST_ROWS = 11
_UNTRAINED = "read, untrained"
# When bounds were set, in a word.
_BOUNDS = {BEFORE: "before", PILOTS: "pilots", SETTING_LATER: "changed", AFTER: "after"}

_STYLES = {
    "used": "bold green",
    "readable": "green",
    "reproduced": "green",
    "reproduced small": "green",
    "contributes": "green",
    "redundant": "cyan",
    "contradicted": "red",
    "contradicted small": "yellow",
    "invalid": "red",
    "has not learned order": "red",
    "undecided": "yellow",
    "uncertain": "yellow",
}


def of_answer(answer: Answer, width: int) -> Table:
    """Each code: how well it is read before and after training, and whether it is used.

    Args:
        answer: with at least one code.
        width: of the terminal, in letters. Where not all fits, what is read of the untrained model
            and what comes back are left out, and the table says so.

    Returns:
        A line for each code.
    """
    judged = any(code.word is not None for code in answer.codes)
    before = any(code.before is not None for code in answer.codes)
    columns: dict[str, list[Text]] = {"position code": [Text(code.code) for code in answer.codes]}
    if before:
        columns[_UNTRAINED] = [_read(code.before) for code in answer.codes]
    columns["read, this model"] = [_read(code.after) for code in answer.codes]
    if judged:
        columns["used?"] = [_worded(str(code.word or "–")) for code in answer.codes]
        columns[answer.share_of] = [_share(code.share) for code in answer.codes]
        columns[answer.restored_of] = [_share(code.restored) for code in answer.codes]
    cut = judged and _needed(columns) > width
    if cut:
        columns = {n: of for n, of in columns.items() if n not in (_UNTRAINED, answer.restored_of)}
    table = _table([*columns], [*zip(*columns.values(), strict=True)])
    needed = _needed(columns)
    roomy = needed + 2 * len(columns) <= width
    table.show_edge, table.padding = roomy, (0, 0, 0, int(roomy))
    for column, (name, cells) in zip(table.columns, columns.items(), strict=True):
        # Headers break between their words, and nothing below them does.
        column.width = _breadth(name, cells) if needed <= width else None
    if cut:
        table.caption, table.caption_justify = "More columns on the page.", "left"
    return table


def _needed(columns: Mapping[str, Sequence[Text]]) -> int:
    """Letters of width at which no cell breaks, one of them between columns."""
    return sum(_breadth(*column) for column in columns.items()) + len(columns) - 1


def _breadth(name: str, cells: Sequence[Text]) -> int:
    return max(*map(len, cells), *map(len, name.split()))


def of_heads(heads: pd.DataFrame, ablated: bool) -> Table:
    """How many heads have each label, and how many of them keep it without positions.

    Args:
        heads: the table of heads.
        ablated: whether positions were taken away.

    Returns:
        A line for each label, the commonest first.
    """
    rows = []
    for label, group in heads.groupby("label", sort=False):
        kept = (group["label"] == group["ablated_label"]).sum()
        surest = group.sort_values("confidence", ascending=False, kind="stable").iloc[0]
        row = [label, len(group), *([kept] if ablated else [])]
        rows.append([*map(str, row), f"L{surest['layer']}H{surest['head']}"])
    rows.sort(key=lambda row: -int(row[1]))
    kept_too = ["same label, positions ablated"] if ablated else []
    return _table(["label", "heads", *kept_too, "for example"], rows)


def of_atlas(models: pd.DataFrame) -> Table:
    """Several models' heads.

    Args:
        models: a row for each.

    Returns:
        A line for each model; of many the first ones, and how many more there are.
    """
    shown = models.astype(object).fillna("–")
    rows = [[str(value) for value in row] for row in shown.itertuples(index=False)]
    table = _table([str(name) for name in models.columns], rows)
    # A long name takes a second line, and no number's place.
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for column, name in zip(table.columns[1:-1], models.columns[1:-1], strict=True):
        column.width = _breadth(str(name), [Text(str(value)) for value in shown[name]])
    return table


def of_onsets(onsets: pd.DataFrame, followed: pd.DataFrame) -> Table:
    """When each code is first surely readable, and when it is first followed where it is moved.

    Args:
        onsets: a row for each seed, a column for each code; NaN where it never is.
        followed: the same of what is followed; no columns where nothing was moved.

    Returns:
        A line for each code, those readable first.
    """
    rows = []
    # What never comes counts: a code that comes in one seed of five is not among the first.
    order = onsets.fillna(float("inf")).median().sort_values(kind="stable").index
    for code in [*order, *followed.columns.difference(order, sort=False)]:
        spans = [_span(times[code]) if code in times else "" for times in (onsets, followed)]
        rows.append(["loss half way down" if code == LOSS else str(code), *spans])
    return _table(["code", "first readable at step", "first followed at step"], rows)


def _span(steps: "pd.Series[float]") -> str:
    found = steps.dropna()
    if found.empty:
        return "never"
    return f"{found.min():.0f} to {found.max():.0f} ({len(found)} of {len(steps)} seeds)"


def of_dropped(variants: pd.DataFrame) -> Table:
    """Loss and passkeys of each variant of a model whose positions were dropped.

    Args:
        variants: a row for each, the number at each length in a column.

    Returns:
        A line for each variant.
    """
    rows = []
    for row in variants.to_dict("records"):
        told = [
            "–" if pd.isna(value) else f"{value:.0%}" if "passkeys" in str(name) else f"{value:.2f}"
            for name, value in row.items()
            if name != "variant"
        ]
        rows.append([str(row["variant"]), *told])
    return _table([str(name) for name in variants.columns], rows)


def of_claims(claims: pd.DataFrame) -> Table:
    """Each claim, its verdict, and the number behind it.

    Args:
        claims: the claims of one paper with their outcomes.

    Returns:
        A line for each claim, those measured first.
    """
    measured = claims.sort_values("value", key=lambda value: value.isna(), kind="stable")
    rows = [
        [
            str(row["claim"]),
            _worded(str(row["status"])) + (f", {TOO_LITTLE}" if row["too_small"] else ""),
            "–" if pd.isna(row["value"]) else _number(row),
            str(row["test"]).rpartition("lies ")[2],
        ]
        for row in measured.to_dict("records")
    ]
    return _table(["claim", "verdict", "measured [95% interval]", "it must lie"], rows)


def of_methods(methods: pd.DataFrame) -> Table:
    """How often each method is right of planted models, and falsely positive.

    What it misses is part of what it is wrong of; the page tells it apart.

    Args:
        methods: as `experiments.results.benchmark.by_method` gives them.

    Returns:
        A line for each method and place.
    """
    shown = [outcome for outcome in OUTCOMES if outcome != MISSED]
    rows = [
        [row["method"], row["place"], *(told(row, outcome) for outcome in shown)]
        for _, row in methods.iterrows()
    ]
    return _table(["method", "place", *shown], rows)


def of_papers(claims: pd.DataFrame) -> Table:
    """Each paper: its title, what came of its claims, and the run that says so.

    Args:
        claims: of all papers, as `experiments.papers.listing.listing` gives them.

    Returns:
        One line for each paper; a title too long for it ends in an ellipsis.
    """
    papers = claims.groupby("paper", sort=False)
    rows = [
        [
            name,
            found["title"].iloc[0],
            _came_out(found[~found["ours"]]),
            _came_out(found[found["ours"]]),
            _took(found),
        ]
        for name, found in papers
    ]
    table = _table(["paper", "title", "reproduced", "ours", "took"], rows)
    title = table.columns[1]
    # All that the others leave: names, counts and times stay whole.
    title.no_wrap, title.ratio = True, 1
    table.expand = table.collapse_padding = True
    return table


def _came_out(claims: pd.DataFrame) -> str:
    if claims.empty:
        return "–"
    if not (claims["run"] != "").any():
        return "not run"
    counts = claims["status"].value_counts()
    whole, small, against = (
        counts.get(word, 0) for word in ("reproduced", "reproduced small", "contradicted")
    )
    told = f"{whole + small} of {len(claims)}{'*' if small else ''}"
    return f"{told} (-{against})" if against else told


def _took(claims: pd.DataFrame) -> str:
    """How long all runs took that claims were read from; whether any is kept with the package."""
    runs = set(claims["run"]) - {""}
    if not runs:
        return "–"
    return f"{time_of(claims)} (kept)" if RECORDED in runs else time_of(claims)


def runs_of(claims: pd.DataFrame) -> Iterator[str]:
    """The runs that a paper's claims were read from, the one of most claims first.

    Args:
        claims: of one paper, as `experiments.papers.listing.listing` gives them.

    Yields:
        Of each run how many claims are its, its size, its time and where it is kept.
    """
    for (size, cost, run), n in _runs(claims).most_common():
        where = "kept with the package" if run == RECORDED else run
        yield f"Run of {n} {'claim' if n == 1 else 'claims'}: {size}, {cost}, {where}"


def _runs(claims: pd.DataFrame) -> Counter[tuple[str, str, str]]:
    """How many claims were read from each run, by its size, its time and its folder."""
    told = claims[["size", "cost", "run"]].astype(str).itertuples(index=False, name=None)
    return Counter((size, cost, run) for size, cost, run in told if run)


def of_listed(claims: pd.DataFrame) -> Table:
    """Each claim of a paper: what came of it, over what, and what such a run can see.

    Args:
        claims: of one paper, as `experiments.papers.listing.listing` gives them.

    Returns:
        A line for each claim, however many.
    """
    rows = []
    for row in claims.to_dict("records"):
        absent, no_spread = pd.isna(row["value"]), row["sees"] == 0
        over = "no spread" if no_spread else f"{row['n']} {row['over']}"
        number = "–" if absent else f"{_number(row)}, {over}"
        effects = ["–" if pd.isna(row[of]) else f"{row[of]:.2g}" for of in ("sees", "matters")]
        late = _BOUNDS[row["bounds_set"]]
        rows.append([row["claim"], _worded(row["status"]), number, " / ".join(effects), late])
    columns = ["claim", "came out", "measured [95% interval], over", "sees / matters", "bounds"]
    table = _table(columns, rows, most=len(rows))
    table.collapse_padding = True
    # In a narrow terminal numbers take a second line; what came out stays whole.
    table.columns[1].no_wrap = True
    table.columns[-1].no_wrap = True
    return table


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], most: int = MOST_ROWS) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for nth, name in enumerate(columns):
        table.add_column(Text(name), no_wrap=nth == 0)
    shown = rows if len(rows) <= most else rows[: most - 1]
    for row in shown:
        # Labels and names come from files: they are text, never markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    if len(shown) < len(rows):
        table.add_row(Text(f"and {len(rows) - len(shown)} more"))
    return table


def _worded(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _read(reading: Reading | None) -> Text:
    if reading is None:
        return Text("–")
    return _worded(reading.word) + Text(f" {percent(reading.gain[0])}")


def _share(interval: Interval | None) -> Text:
    return Text("–" if interval is None else _percents(interval))


def _percents(interval: Iterable[float]) -> str:
    value, low, high = map(percent, interval)
    return f"{value} [{low.removesuffix('%')}, {high.removesuffix('%')}]"


def _number(row: dict[Any, Any]) -> str:
    if row["ci_low"] == row["ci_high"]:  # no spread
        return f"{row['value']:.3g}"
    return with_interval(row["value"], row["ci_low"], row["ci_high"])
