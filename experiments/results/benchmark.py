"""What methods said of planted models, held against the truth. Needs no torch.

A method says a word of each code that it speaks of, through the whole stream of a model or at one
of its sites. The word is right where it is the truth; `undecided`, and that a model has not learned
order, are no answers; any other word is wrong. A false positive is a code that is not used and is
called used or redundant; a missed code is used or redundant and is called not used.

Of a model at a place a method is right where it is right of every code that it speaks of, wrong
where it is wrong of any, and undecided otherwise. Shares are of models at places, which differ in
kind and seed; their 95% intervals are Wilson's. Models of one kind are alike: the intervals speak
of other seeds, not of other kinds.
"""

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.code_ablation import EVERYWHERE
from experiments.results.findings import Figure, Panel, Series, share
from experiments.results.intervals import percents
from experiments.results.measurements import INTACT
from experiments.results.position_use import Word

TRUTHS = (Word.USED, Word.REDUNDANT, Word.NOT_USED)

RIGHT, WRONG, FALSE_POSITIVE, MISSED = "right", "wrong", "false positive", "missed"
OUTCOMES = (RIGHT, str(Word.UNDECIDED), WRONG, FALSE_POSITIVE, MISSED)
WHOLE_STREAM, SINGLE_SITES, ON_TEXT = "whole stream", "single sites", "whole stream, on text"
PLACES = (WHOLE_STREAM, SINGLE_SITES, ON_TEXT)
_PLACE = {
    WHOLE_STREAM: "Through the whole stream",
    SINGLE_SITES: "At single sites",
    ON_TEXT: "On text",
}
_CASES = {
    WHOLE_STREAM: "planted models",
    SINGLE_SITES: "sites of planted models",
    ON_TEXT: "planted language models",
}

_MODEL = ["kind", "seed", "layer", "site"]

# What columns of the tidy table have here.
MEANING = MappingProxyType(
    {"probe": "method", "model": "kind", "metric": "code", "variant": "truth", "control": "word"}
)


def judged(
    context: Mapping[str, Any], method: str, code: str, truth: str, word: str
) -> dict[str, Any]:
    """A row of the tidy table: one word of one method on one code.

    The column `variant` has the truth, `control` the word, `probe` the method, `metric` the code;
    the value is 1 where the word is the truth, 0 where it is not.

    Args:
        context: the columns that model and place decide.
        method: whose word it is.
        code: that it speaks of.
        truth: one of `TRUTHS`.
        word: one of `experiments.results.position_use.Word`.

    Returns:
        The row.
    """
    right = float(word == truth)
    return {
        **context,
        "variant": truth,
        "positions": INTACT,
        "probe": method,
        "control": word,
        "metric": code,
        "value": right,
        "ci_low": right,
        "ci_high": right,
        "chance": np.nan,
        "n": 1,
    }


def judgements(measurements: pd.DataFrame) -> pd.DataFrame:
    """Every word, by what the columns of the tidy table stand for here.

    Args:
        measurements: rows of `judged`.

    Returns:
        method, place, kind, seed, layer, site, code, truth, word, whether the code is unused, and
        whether the word is right, wrong, a false positive, and misses a code.
    """
    found = measurements.rename(columns=dict(MEANING))
    whole, on_text = found["layer"] == EVERYWHERE, found["tokens"] == "text"
    place = np.where(on_text, ON_TEXT, np.where(whole, WHOLE_STREAM, SINGLE_SITES))
    found = found.assign(place=place)
    found = found[["method", "place", *_MODEL, "code", "truth", "word"]]
    decided = found["word"].isin(TRUTHS)
    positive = found["word"].isin([Word.USED, Word.REDUNDANT])
    unused = found["truth"] == Word.NOT_USED
    return found.assign(
        right=found["word"] == found["truth"],
        wrong=decided & (found["word"] != found["truth"]),
        false_positive=positive & unused,
        missed=(found["word"] == Word.NOT_USED) & ~unused,
        unused=unused,
    )


def by_method(measurements: pd.DataFrame) -> pd.DataFrame:
    """How often each method is right, wrong, undecided and falsely positive, and misses a code.

    Args:
        measurements: rows of `judged`.

    Returns:
        One row for each method and place: method, place, codes (that it speaks of), n (models at
        places), and each of `OUTCOMES` with its share of these, 0 to 1, and the bounds `_low` and
        `_high` of its 95% interval. False positives are of the models with an unused code, missed
        codes of those with another one.
    """
    return pd.DataFrame([_shares(*group) for group in _grouped(judgements(measurements))])


def by_kind(measurements: pd.DataFrame) -> pd.DataFrame:
    """How often each method is right of each kind of model.

    Args:
        measurements: rows of `judged`.

    Returns:
        The share of models at places, 0 to 1: a row for each kind and place, a column for each
        method.
    """
    words = judgements(measurements)
    models = words.groupby(["place", "method", *_MODEL], sort=False)["right"].all().reset_index()
    methods, kinds = words["method"].unique(), words["kind"].unique()
    found = models.groupby(["place", "kind", "method"], sort=False)["right"].mean().unstack()
    order = [(place, kind) for place in PLACES for kind in kinds if (place, kind) in found.index]
    return found.loc[order][list(methods)]


def confusion(measurements: pd.DataFrame) -> pd.DataFrame:
    """How many codes of each truth each method gave each word.

    Args:
        measurements: rows of `judged`.

    Returns:
        method, place, truth, and a count for each word that any method gave.
    """
    words = judgements(measurements)
    found = pd.crosstab([words["method"], words["place"], words["truth"]], words["word"])
    methods = words["method"].unique()
    every = [(m, place, truth) for m in methods for place in PLACES for truth in TRUTHS]
    order = [key for key in every if key in found.index]
    said = [str(word) for word in Word if word in found.columns]
    return found.loc[order][said].reset_index().rename_axis(columns=None)


def headline(measurements: pd.DataFrame) -> str:
    """Which method is right most often, how often it is undecided, and how often falsely positive.

    Args:
        measurements: rows of `judged`.

    Returns:
        One sentence: of the whole stream, or of single sites where methods speak of these alone.
        Shares of the two are of different questions and are not compared. Of methods that are right
        equally often the one with the fewest false positives comes first.
    """
    table = by_method(measurements)
    place = next(place for place in PLACES if (table["place"] == place).any())
    here = table[table["place"] == place]
    best, *others = here.sort_values(
        [RIGHT, FALSE_POSITIVE], ascending=[False, True], kind="stable"
    ).to_dict("records")
    alike = [str(row["method"]) for row in others if row[RIGHT] == best[RIGHT]]
    most = f", the most of {len(here)} methods" if others else ""
    if alike:
        most = f", as {'do' if len(alike) > 1 else 'does'} {' and '.join(alike)}"
    return f"{_PLACE[place]} {_judges(best)}{most}{_else(best)}."


def sentences(measurements: pd.DataFrame) -> list[str]:
    """How often each method is right, undecided and falsely positive, at each place that it speaks
    of.

    Args:
        measurements: rows of `judged`.

    Returns:
        One for each method and place, the whole stream before single sites, and the method that is
        right most often first.
    """
    best_first = by_method(measurements).sort_values(RIGHT, ascending=False, kind="stable")
    return [
        f"{_PLACE[place]} {_judges(row)}{_else(row)}."
        for place in PLACES
        for row in best_first[best_first["place"] == place].to_dict("records")
    ]


def _judges(row: Mapping[Hashable, Any]) -> str:
    return f"{row['method']} judges {told(row, RIGHT)} of {row['n']} {_CASES[row['place']]} right"


def _else(row: Mapping[Hashable, Any]) -> str:
    """What is not right may be no answer; no false positive is told of where no code is unused."""
    undecided = f"; {told(row, Word.UNDECIDED)} undecided"
    if np.isnan(row[FALSE_POSITIVE]):
        return undecided
    return f"{undecided}; false positives: {told(row, FALSE_POSITIVE)}"


def told(row: "pd.Series[Any] | Mapping[Hashable, Any]", outcome: str) -> str:
    """A share with its interval, in words.

    Args:
        row: of `by_method`.
        outcome: one of `OUTCOMES`.

    Returns:
        Percentages; a dash where the share is of no models.
    """
    if np.isnan(row[outcome]):
        return "–"
    return percents((row[outcome], row[f"{outcome}_low"], row[f"{outcome}_high"]))


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """`by_method` for people: shares as percentages with their intervals."""
    said = {outcome: [told(row, outcome) for _, row in table.iterrows()] for outcome in OUTCOMES}
    named = {"method": "method", "place": "place", "codes": "codes", "n": "cases"}
    return pd.DataFrame({name: table[column] for column, name in named.items()} | said)


def figures(measurements: pd.DataFrame) -> tuple[Figure, Figure]:
    """Methods by correctness, and by kind of model."""
    # A method may have the name of a level of the index.
    table, kinds = by_method(measurements), by_kind(measurements)
    methods = tuple(dict.fromkeys(table["method"]))
    at = {method: float(number) for number, method in enumerate(methods)}

    def outcomes(rows: pd.DataFrame) -> tuple[Series, ...]:
        x = np.array([at[method] for method in rows["method"]])
        n = int(rows["n"].max())
        ends = {
            outcome: [rows[f"{outcome}{end}"].to_numpy(float) for end in ("", "_low", "_high")]
            for outcome in OUTCOMES
        }
        return tuple(
            Series(outcome, "measured", x, value, low, high, n)
            for outcome, (value, low, high) in ends.items()
        )

    def rights(rows: pd.DataFrame) -> tuple[Series, ...]:
        x = np.arange(float(len(methods)))
        shares = zip(rows.index.get_level_values("kind"), rows.to_numpy(float), strict=True)
        return tuple(Series(str(kind), "measured", x, share) for kind, share in shares)

    correctness = Figure(
        "correctness",
        "How often each method is right",
        "Shares of planted models. Right: the method is right of every code that it speaks of. "
        "Wrong: it is wrong of any. False positives: of models with an unused code, those in which "
        "one is called used or redundant. Missed: of models with a used or redundant code, those "
        "in which one is called not used. A model with two sites counts twice at single sites. "
        "Bars are Wilson's 95% intervals over models.",
        "method",
        "share of models",
        tuple(
            Panel(str(place), outcomes(rows)) for place, rows in table.groupby("place", sort=False)
        ),
        ticks=methods,
    )
    by_kinds = Figure(
        "kinds",
        "Right, by kind of model",
        "The share of models of each kind of which a method is right, 0 to 1.",
        "method",
        "share of models",
        tuple(
            Panel(str(place), rights(rows))
            for place, rows in kinds.groupby(level="place", sort=False)
        ),
        ticks=methods,
        heat_about=0.5,
    )
    return correctness, by_kinds


def _grouped(words: pd.DataFrame) -> Any:
    """By method, in the order of the table, and the whole stream before single sites."""
    for method, rows in words.groupby("method", sort=False):
        for place in PLACES:
            here = rows[rows["place"] == place]
            if len(here):
                yield method, place, here


def _shares(method: str, place: str, words: pd.DataFrame) -> dict[str, Any]:
    models = words.groupby(_MODEL, sort=False)
    right, wrong = models["right"].all(), models["wrong"].any()
    counts = {
        RIGHT: (right.sum(), len(right)),
        str(Word.UNDECIDED): ((~right & ~wrong).sum(), len(right)),
        WRONG: (wrong.sum(), len(right)),
        FALSE_POSITIVE: (models["false_positive"].any().sum(), models["unused"].any().sum()),
        MISSED: (models["missed"].any().sum(), (~models["unused"].all()).sum()),
    }
    found: dict[str, Any] = {
        "method": method,
        "place": place,
        "codes": ", ".join(dict.fromkeys(words["code"])),
        "n": len(right),
    }
    for outcome, (count, n) in counts.items():
        of = share(int(count), int(n))
        found |= {outcome: of.value, f"{outcome}_low": of.ci_low, f"{outcome}_high": of.ci_high}
    return found
