"""What a sweep is doing, shown while it runs: a table in a terminal, else a line now and then."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.runs.steps import duration
from experiments.sweeps.sweep import State, Sweep, SweepCell

# Of the cells that run, and of those that failed.
_MOST_SHOWN = 12
_SECONDS_BETWEEN_LINES = 5.0
_COLOURS: dict[State, str] = {"running": "yellow", "failed": "red"}


class Progress:
    """Follows a sweep through its files alone, wherever its cells run."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._began = time.time()
        self._states = sweep.states()
        self._done_before = self.counts["done"]

    @property
    def counts(self) -> Counter[State]:
        """How many cells are in each state, as of the last `look`."""
        return Counter(self._states.values())

    def look(self) -> float:
        """Look at every cell that is not done; returns the seconds it took."""
        began = time.monotonic()
        for cell in self._sweep.cells:
            if self._states[cell.number] != "done":
                self._states[cell.number] = self._sweep.state(cell)
        return time.monotonic() - began

    def seconds_left(self) -> float | None:
        """At the pace so far; None before a cell was finished."""
        counts = self.counts
        ended = counts["done"] - self._done_before + counts["failed"]
        if not ended:
            return None
        return (time.time() - self._began) / ended * (counts["queued"] + counts["running"])

    def line(self) -> str:
        """2 of 6 cells done, 1 failed, 2 running, 1 queued; about 3 min left."""
        counts = self.counts
        parts = [f"{counts['done']} of {len(self._sweep.cells)} cells done"]
        others: tuple[State, ...] = ("failed", "running", "queued")
        parts += [f"{counts[state]} {state}" for state in others if counts[state]]
        left = self.seconds_left()
        about = "" if not left else f"; about {duration(left)} left"
        return ", ".join(parts) + about

    def table(self) -> Group:
        """The line, over the cells that run or failed."""
        table = Table(box=None, pad_edge=False)
        for title in ("cell", "state", "for", ""):
            table.add_column(title)
        for state in _COLOURS:
            cells = [c for c in self._sweep.cells if self._states[c.number] == state]
            for cell in cells[:_MOST_SHOWN]:
                table.add_row(*self._row(cell, state), style=_COLOURS[state])
            if len(cells) > _MOST_SHOWN:
                table.add_row("", f"and {len(cells) - _MOST_SHOWN} more", "", "")
        return Group(Text(self.line()), *([table] if table.row_count else []))

    def _row(self, cell: SweepCell, state: State) -> list[Text]:
        path = self._sweep.marker(cell) if state == "running" else self._sweep.log(cell)
        try:
            since = time.time() - path.stat().st_mtime
            said = path.read_text(encoding="utf-8").rstrip().splitlines()[-1:]
        except OSError:  # it has ended since
            since, said = 0.0, []
        running = duration(since) if state == "running" else ""
        words = (cell.label, state, running, *(said or [""]))
        return [Text(word, no_wrap=True, overflow="ellipsis") for word in words]


@contextmanager
def shown(sweep: Sweep) -> Iterator[None]:
    """Show on standard error what the sweep is doing while this is open."""
    progress = Progress(sweep)
    over = threading.Event()
    show = _show_table if sys.stderr.isatty() else _show_lines
    thread = threading.Thread(target=show, args=(progress, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_table(progress: Progress, over: threading.Event) -> None:
    with Live(progress.table(), console=Console(stderr=True), auto_refresh=False) as live:
        for _ in _looks(progress, over):
            live.update(progress.table(), refresh=True)


def _show_lines(progress: Progress, over: threading.Event) -> None:
    shown_at, line = -_SECONDS_BETWEEN_LINES, ""
    for last in _looks(progress, over):
        due = time.monotonic() - shown_at >= _SECONDS_BETWEEN_LINES
        if (due or last) and progress.line() != line:
            shown_at, line = time.monotonic(), progress.line()
            print(line, file=sys.stderr, flush=True)


def _looks(progress: Progress, over: threading.Event) -> Iterator[bool]:
    """Yields after each look, and whether it is the last.

    Looking takes a tenth of the time at most, however many cells there are.
    """
    while True:
        last = over.is_set()
        took = progress.look()
        yield last
        if last:
            return
        over.wait(max(0.5, 10 * took))
