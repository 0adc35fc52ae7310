"""How far a long step is: within the line that tells of all steps, or as a bar of its own."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

# Who tells of all steps, while somebody does.
_tellers: list[Callable[[str], None]] = []


@contextmanager
def told_by(tell: Callable[[str], None]) -> Iterator[None]:
    """While it is open, how far a step is goes to `tell`, in words; no bar is drawn."""
    _tellers.append(tell)
    try:
        yield
    finally:
        _tellers.pop()


def progress(
    items: Iterable[Any] | None, description: str | None, unit: str, total: int | None = None
) -> Any:
    """What tells how far a step is, on standard error, until it is done; nothing where that is a
    file or a pipe.

    Args:
        items: what is gone through; None where `update` is called instead.
        description: label of the step; None tells nothing.
        unit: what one item is called.
        total: how many there are, where items have no length.

    Returns:
        A bar of tqdm's or what stands for one, which yields the items.
    """
    if description is not None and _tellers:
        return _Told(_tellers[-1], items, description, unit, total)
    # None asks tqdm whether it stands on a terminal.
    disable = True if description is None else None
    return tqdm(items, description, total, leave=False, unit=unit, disable=disable)


class _Told:
    """The part of tqdm's bars that is needed here, in words."""

    def __init__(
        self,
        tell: Callable[[str], None],
        items: Any,
        description: str,
        unit: str,
        total: int | None,
    ) -> None:
        self._tell, self._items, self._unit, self._n = tell, items, unit, 0
        self._total = len(items) if total is None else total
        self._description = description
        self.update(0)

    def update(self, n: int = 1) -> None:
        self._n += n
        self._tell(f"{self._description}: {self._unit} {self._n} of {self._total}")

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def __enter__(self) -> "_Told":
        return self

    def __exit__(self, *error: object) -> None:
        pass
