"""What several trainings of one kind of model agree on. Needs no torch."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd

from experiments.results.answer import Answer
from experiments.results.findings import over_seeds
from experiments.results.position_use import Word

OF_CELL = "cell."
_SEED = f"{OF_CELL}seed"
_SHARE = ("share", "share_low", "share_high")


def verdict_rows(answer: Answer) -> list[dict[str, object]]:
    """What is said of each code of one model.

    Args:
        answer: of its comparison.

    Returns:
        One entry for each code that has a word: code, word; `share`, `share_low` and `share_high`,
        what follows the code or rests on it, NaN where it has no share; `score`, that of the intact
        model, and `chance`.
    """
    score = answer.score
    right, chance = (np.nan, np.nan) if score is None else (score.value[0], score.chance)
    return [
        {
            "code": of.code,
            "word": str(of.word),
            **dict(zip(_SHARE, of.share or (np.nan,) * 3, strict=True)),
            "score": right,
            "chance": chance,
        }
        for of in answer.codes
        if of.word is not None
    ]


def agreement(verdicts: pd.DataFrame) -> pd.DataFrame:
    """What trainings that differ in nothing but their seed say of each code.

    Args:
        verdicts: the rows of `verdict_rows`, with a column `cell.KEY` for all that tells models
            apart.

    Returns:
        One row for each kind of model and code: the `cell.KEY` but the seed, code; `words`, how
        often which was said, as "used 4, undecided 1"; `trainings`, how many there are; `share`,
        its mean over those that have one, with its 95% interval over them, NaN where it is one,
        and `least` and `most` of them; `score` and `chance`, means over all.
    """
    keys = [key for key in map(str, verdicts) if key.startswith(OF_CELL) and key != _SEED]
    rows = []
    for values, of in verdicts.groupby([*keys, "code"], sort=False, dropna=False):
        share, low, high = _mean(of["share"].dropna().to_numpy())
        named: dict[str, object] = dict(zip((*keys, "code"), values, strict=True))
        rows.append(
            {
                **named,
                "words": _counted(of["word"]),
                "trainings": len(of),
                **dict(zip(_SHARE, (share, low, high), strict=True)),
                "least": of["share"].min(),
                "most": of["share"].max(),
                "score": of["score"].mean(),
                "chance": of["chance"].mean(),
            }
        )
    return pd.DataFrame(rows)


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{word} {counts[word]}" for word in map(str, Word) if counts[word])


def _mean(shares: np.ndarray) -> tuple[float, float, float]:
    if len(shares) < 2:
        return (float(shares[0]) if len(shares) else np.nan), np.nan, np.nan
    found = over_seeds(shares)
    return found.value, found.ci_low, found.ci_high
