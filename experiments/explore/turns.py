"""Who may use the model next: one at a time, in the order of asking; the newest of a page wins."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from nope_interp.hooked_model import HookedModel

# A newer one of these ends all that its page still waits for; any other, an older one of its name.
_ENDS_ALL = "read"


# What is open while a request uses the model; between two of them others come.
Taking = Callable[[], AbstractContextManager[object]]


class Cancelled(Exception):
    """A newer request took the place of this one; raised between the layers of a model."""


class Turn:
    """One request's place in the queue; made by `Turns.ask`."""

    def __init__(self, turns: "Turns", page: str, name: str) -> None:
        self.page, self.name = page, name
        self._turns = turns
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End it, wherever it is."""
        self._cancelled.set()
        self._turns.wake()

    def check(self) -> None:
        """Raise Cancelled where it is ended."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextmanager
    def taken(self, model: HookedModel) -> Iterator[None]:
        """While it is open, nobody else uses the model, and its layers look whether to go on.

        A long request takes one turn after the other, so that short ones come between.

        Args:
            model: what is used.

        Raises:
            Cancelled: before it is this turn, and in a pass through the model.
        """
        with self._turns.held_by(self), ExitStack() as undo:
            for block in model.blocks:
                undo.callback(block.register_forward_pre_hook(self._look).remove)
            yield

    def _look(self, module: object, args: object) -> None:
        self.check()


class Turns:
    """The queue in front of one model."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Turn] = deque()
        self._open: list[Turn] = []
        self._closed = False

    @contextmanager
    def ask(self, page: str, name: str) -> Iterator[Turn]:
        """A request's turn, which ends older ones of the same page.

        Args:
            page: which page asks.
            name: of the request.

        Yields:
            The turn, to be taken.
        """
        turn = Turn(self, page, name)
        with self._changed:
            older = [
                other
                for other in self._open
                if other.page == page and name in (other.name, _ENDS_ALL)
            ]
            self._open.append(turn)
            closed = self._closed
        for other in [*older, turn] if closed else older:
            other.cancel()
        try:
            yield turn
        finally:
            with self._changed:
                self._open.remove(turn)

    def close(self) -> None:
        """End every request, and those to come: nobody uses the model any more."""
        with self._changed:
            self._closed = True
            every = [*self._open]
        for turn in every:
            turn.cancel()

    def wake(self) -> None:
        """Have all that wait look again."""
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def held_by(self, turn: Turn) -> Iterator[None]:
        """While it is open, it is this turn and no other; raises Cancelled where it is ended."""
        with self._changed:
            self._waiting.append(turn)
            try:
                while self._waiting[0] is not turn:
                    turn.check()
                    self._changed.wait()
                turn.check()
            except BaseException:
                self._leave(turn)
                raise
        try:
            yield
        finally:
            with self._changed:
                self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        self._waiting.remove(turn)
        self._changed.notify_all()
