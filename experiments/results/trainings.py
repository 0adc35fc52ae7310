"""What runs that differ in their seeds alone agree on. Needs no torch."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from experiments.results.answer import Answer
from experiments.results.findings import over_seeds
from experiments.results.position_use import Word
from probes.code_names import COUNTING, SMOOTH

# How the columns begin that hold what a sweep gave each cell.
OF_CELL = "cell."
_SHARE = ("share", "share_low", "share_high")


def verdict_rows(answer: Answer) -> list[dict[str, object]]:
    """What is said of each code in one run.

    Args:
        answer: of its comparison.

    Returns:
        One entry for each code that has a word: code, a smooth trend by this name also where it
        counts; what it is `called`, word; `share`, `share_low` and `share_high`,
        what follows the code or rests on it, NaN where it has no share; `score`, that of the intact
        model, and `chance`.
    """
    score = answer.score
    right, chance = (np.nan, np.nan) if score is None else (score.value[0], score.chance)
    return [
        {
            "code": SMOOTH if of.code == COUNTING else of.code,
            "called": of.code,
            "word": str(of.word),
            **dict(zip(_SHARE, of.share or (np.nan,) * 3, strict=True)),
            "score": right,
            "chance": chance,
        }
        for of in answer.codes
        if of.word is not None
    ]


def agreement(verdicts: pd.DataFrame) -> pd.DataFrame:
    """What runs that differ in nothing but their seeds say of each code.

    Args:
        verdicts: the rows of `verdict_rows`, with a column `cell.KEY` for all that tells runs
            apart.

    Returns:
        One row for each kind of run and code: the `cell.KEY` but seeds, code; `words`, how often
        which was said, as "used 4, undecided 1"; `runs`, how many there are; `draws`, how many of
        those that have a share are independent: of crossed seeds no more than the one with fewest
        values has; `share`, its mean over those that have one, with its 95% interval over draws,
        NaN where it is one, and `least` and `most` of them; `score` and `chance`, means over all.
    """
    of_cells = [key for key in map(str, verdicts) if key.startswith(OF_CELL)]
    keys = [key for key in of_cells if not _is_seed(key)]
    seeds = [key for key in of_cells if _is_seed(key)]
    rows = []
    grouped = verdicts.groupby([*keys, "code"], sort=False, dropna=False) if len(verdicts) else ()
    for values, of in grouped:
        share, low, high, draws = _mean(of, seeds)
        named: dict[str, object] = dict(zip((*keys, "code"), values, strict=True))
        rows.append(
            {
                **named,
                "words": _counted(of["word"]),
                "runs": len(of),
                "draws": draws,
                **dict(zip(_SHARE, (share, low, high), strict=True)),
                "least": of["share"].min(),
                "most": of["share"].max(),
                "score": of["score"].mean(),
                "chance": of["chance"].mean(),
            }
        )
    shown = (*keys, "code", "words", "runs", "draws", *_SHARE, "least", "most", "score", "chance")
    return pd.DataFrame(rows, columns=list(shown))


def _is_seed(key: str) -> bool:
    """Of the run, of weights or of training."""
    return key.rpartition(".")[2] == "seed"


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{word} {counts[word]}" for word in map(str, Word) if counts[word])


def _mean(of: pd.DataFrame, seeds: Sequence[str]) -> tuple[float, float, float, int]:
    """The mean share with its interval, and over how many draws that is.

    Runs that share one seed are no draws of their own, so each seed's values count by their means.
    The grand mean errs by what weights and what training happen to do: the squares of how far the
    bounds lie from it add up. Over 25 simulated designs such intervals hold the truth in 95% to
    100% of cases, those over the seed with fewest values alone in as few as 19%.
    """
    shares = of["share"].dropna()
    units = [of.groupby(key, sort=False, dropna=False)["share"].mean() for key in _apart(of, seeds)]
    every = [means.dropna().to_numpy() for means in units] or [shares.to_numpy()]
    draws = min(map(len, every))
    if draws < 2:
        return float(shares.mean()), np.nan, np.nan, draws
    found = [over_seeds(means) for means in every]
    below = math.hypot(*(one.value - one.ci_low for one in found))
    above = math.hypot(*(one.ci_high - one.value for one in found))
    value = float(shares.mean())
    return value, value - below, value + above, draws


def _apart(of: pd.DataFrame, seeds: Sequence[str]) -> list[str]:
    """The seeds that vary, but those whose every value goes with one value of another: in pairs
    such as (0, 0), (1, 1) one of the two tells all runs apart."""
    kept: list[str] = []
    for key in seeds:
        if of[key].nunique(dropna=False) == 1 or any(_within(of, key, other) for other in kept):
            continue
        kept = [other for other in kept if not _within(of, other, key)] + [key]
    return kept


def _within(of: pd.DataFrame, key: str, other: str) -> bool:
    return bool((of.groupby(key, dropna=False)[other].nunique(dropna=False) == 1).all())
