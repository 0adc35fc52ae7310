"""`nope-interp --help` answers before it is missed."""

import subprocess
import sys
from functools import partial

from benchmarks.contest import Claim, timed

LIMIT_S = 0.5


def claims() -> list[Claim]:
    return [
        Claim(f"nope-interp {' '.join(words)} / half a second", fastest(words) / LIMIT_S, 1.0)
        for words in (["--help"], ["compare", "--help"])
    ]


def fastest(words: list[str]) -> float:
    command = [sys.executable, "-m", "experiments.cli", *words]
    run = partial(subprocess.run, command, check=True, capture_output=True)
    return min(timed(run) for _ in range(5))
