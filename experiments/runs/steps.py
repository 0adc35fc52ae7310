"""What a run tells while it goes on: what it will do, which step of how many, how long is left."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tqdm import tqdm

from nope_interp.progress import told_by

# What follows the kind of a step in its title: counting/text, intact, 64 tokens, probing, seed 3.
_KIND_ENDS = re.compile(r"/| at step \d|, \d+ tokens|, .*\bseed|(?<=\bseed) ")


class Steps:
    """One line on standard error: step 3 of 9, about 2 min left over the whole.

    Time left is what the steps so far took, each by its weight: before the first, what was
    expected of them.

    Args:
        name: what runs.
        show: whether anything is told.
        total: how many steps there are, where that is known at once.
    """

    def __init__(self, name: str, show: bool, total: int | None = None) -> None:
        self._name, self._show = name, show
        self._left: dict[str, float] = {}
        self._grows = False
        self._titles: set[str] = set()
        self._total, self._done = total, 0
        self._took = self._weighed = self._pace = 0.0
        self._at = time.monotonic()
        # One line that changes; in a file or a pipe, one for each step.
        self._changes = show and sys.stderr.isatty()
        how: dict[str, Any] = {"dynamic_ncols": True, "leave": False}  # cut at the terminal's width
        self._bar = tqdm(bar_format="{desc}", disable=not self._changes, **how)
        self._inside = ExitStack()

    def __enter__(self) -> "Steps":
        if self._show:
            self._inside.enter_context(told_by(self._tell))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.close()
        self._bar.close()

    def plan(self, weights: Mapping[str, float], seconds: float, at_once: int = 1) -> None:
        """Say what will be done, and how long it should take.

        Args:
            weights: of each step, by its title: how much work it is.
            seconds: that a weight of one takes on this machine, as measured.
            at_once: how many steps are done side by side.
        """
        self._left = dict(weights)
        self._total, self._pace = len(weights), seconds / at_once
        n = _counted(len(weights))
        expected = duration(self._pace * sum(weights.values()))
        self.say(f"{n} ({_listed(list(weights))}); about {expected} by a short measurement")
        self._begin()

    def expect(self, titles: Iterable[str]) -> None:
        """Count steps that are known only now: there may be more, so no time left is told.

        Args:
            titles: of the steps; those that were counted before are no new ones.
        """
        new = [title for title in titles if title not in self._left and title not in self._titles]
        self._left |= dict.fromkeys(new, 1.0)
        self._total, self._grows = (self._total or 0) + len(new), True
        self._tell("")

    def say(self, what: str) -> None:
        """Say what will be done.

        Args:
            what: in words, without a full stop.
        """
        if self._show:
            self._bar.clear()
            print(f"{self._name}: {what}.", file=sys.stderr)

    def done(self, title: str, kept: bool = False) -> None:
        """Tell that a step is done.

        Args:
            title: of the step.
            kept: whether an earlier run did it, so that it says nothing of how long others take.
        """
        if title in self._titles:  # read back by the run that made it
            return
        self._titles.add(title)
        # One of another name than was planned stands for the next one.
        planned = title if title in self._left else next(iter(self._left), title)
        took, weight = time.monotonic() - self._at, self._left.pop(planned, 1.0)
        self._done += 1
        if not kept:
            self._took, self._weighed = self._took + took, self._weighed + weight
            self._pace = self._took / self._weighed
        self._begin(title)

    def line(self) -> str:
        """Which step runs, and how long all that are left take; as it stands in the terminal."""
        step = f"{self._name}: step {self._done + 1}"
        if self._total is None:
            return step
        if self._done >= self._total:
            return f"{self._name}: {_counted(self._done)} done{' so far' if self._grows else ''}"
        if self._grows:  # what is not known yet may take longer than all that is
            return f"{step} of at least {self._total}"
        unweighed = self._total - self._done - len(self._left)
        left = self._pace * (sum(self._left.values()) + max(0, unweighed))
        told = f", about {duration(left)} left" if left >= 0.5 else ""
        return f"{step} of {self._total}{told}"

    def _begin(self, after: str = "") -> None:
        self._at = time.monotonic()
        if self._changes:
            self._tell(f"done: {after}" if after else "")
        elif self._show:
            print(self.line() + (f" (done: {after})" if after else ""), file=sys.stderr)

    def _tell(self, more: str) -> None:
        """Show the line, and how far its step is; in a file that would be a line for each part."""
        if self._changes:
            self._bar.set_description_str(self.line() + (f" ({more})" if more else ""))


def _counted(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"


def _listed(titles: Sequence[str]) -> str:
    """Titles, those with a common beginning as one."""
    groups = Counter(_KIND_ENDS.split(title)[0] for title in titles)
    return ", ".join(name if n == 1 else f"{name} ({n})" for name, n in groups.items())


def duration(seconds: float) -> str:
    """Words for a length of time: seconds below a minute and a half, then minutes, then hours.

    Args:
        seconds: how long.

    Returns:
        Such as 40 s, 3 min or 1.5 h.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
