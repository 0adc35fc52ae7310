"""What runs that differ in their seeds alone agree on. Needs no torch."""

from collections import Counter
from collections.abc import Iterable

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
        which was said, as "used 4, undecided 1"; `runs`, how many there are; `share`,
        its mean over those that have one, with its 95% interval over them, NaN where it is one,
        and `least` and `most` of them; `score` and `chance`, means over all.
    """
    keys = [key for key in map(str, verdicts) if key.startswith(OF_CELL) and not _is_seed(key)]
    rows = []
    grouped = verdicts.groupby([*keys, "code"], sort=False, dropna=False) if len(verdicts) else ()
    for values, of in grouped:
        share, low, high = _mean(of["share"].dropna().to_numpy())
        named: dict[str, object] = dict(zip((*keys, "code"), values, strict=True))
        rows.append(
            {
                **named,
                "words": _counted(of["word"]),
                "runs": len(of),
                **dict(zip(_SHARE, (share, low, high), strict=True)),
                "least": of["share"].min(),
                "most": of["share"].max(),
                "score": of["score"].mean(),
                "chance": of["chance"].mean(),
            }
        )
    shown = (*keys, "code", "words", "runs", *_SHARE, "least", "most", "score", "chance")
    return pd.DataFrame(rows, columns=list(shown))


def _is_seed(key: str) -> bool:
    """Of the run, of weights or of training."""
    return key.rpartition(".")[2] == "seed"


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{word} {counts[word]}" for word in map(str, Word) if counts[word])


def _mean(shares: np.ndarray) -> tuple[float, float, float]:
    if len(shares) < 2:
        return (float(shares[0]) if len(shares) else np.nan), np.nan, np.nan
    found = over_seeds(shares)
    return found.value, found.ci_low, found.ci_high
