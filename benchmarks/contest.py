"""Measure contestants side by side, each in a process of its own where memory counts."""

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import psutil


@dataclass(frozen=True)
class Claim:
    """A ratio that should be at most, or at least, a goal; None where it is only told."""

    name: str
    ratio: float
    goal: float | None
    at_most: bool = True

    @property
    def met(self) -> bool:
        if self.goal is None:
            return True
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal

    def __str__(self) -> str:
        if self.goal is None:
            return f"{self.name:<72} {self.ratio:6.3f}"
        bound = f"{'at most' if self.at_most else 'at least'} {self.goal:.2f}"
        return f"{self.name:<72} {self.ratio:6.3f}   {bound:<14} {'met' if self.met else 'MISSED'}"


def paired_ratio(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> float:
    """The median over rounds of our time by the peer's, each pair taken back to back.

    A machine's slow moments hit both.
    """
    ratios = [timed(ours) / timed(peer) for _ in range(rounds + 1)]
    # The first round warms up.
    return median(ratios[1:])


def timed(run: Callable[[], object]) -> float:
    """In seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# glibc hands memory back as soon as it is freed: what stays is what is held.
RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def in_process(
    module: str, contestant: str, environment: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Run `python -m module contestant` alone; it prints its own measurements as JSON."""
    run = subprocess.run(
        [sys.executable, "-m", module, contestant],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return json.loads(run.stdout.splitlines()[-1])


def peak_megabytes() -> float:
    """The largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def extra_megabytes(run: Callable[[], object]) -> float:
    """How far the resident size rises above its level before `run`, sampled 200 times a second."""
    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    sizes = [before]

    def watch() -> None:
        while not done.wait(0.005):
            sizes.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (max(sizes) - before) / 2**20
