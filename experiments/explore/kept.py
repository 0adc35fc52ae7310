"""What was read of prompts is kept, the last ones in at most 1 GiB: clicks read nothing again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar, runtime_checkable

MOST_BYTES = 2**30


@runtime_checkable
class Sized(Protocol):
    """What says how much memory it takes."""

    @property
    def n_bytes(self) -> int:
        """Bytes."""


Value = TypeVar("Value", bound=Sized)


class Kept(Generic[Value]):
    """The values used last, by key.

    Args:
        most_bytes: of all of them together; a value that is larger alone is not kept.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    @property
    def n_bytes(self) -> int:
        """Of all that is kept."""
        return sum(value.n_bytes for value in self._values.values())

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not kept.

        Args:
            key: what it is kept under.
            make: makes it; where that raises, nothing is kept.

        Returns:
            The value.
        """
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        value = self._values[key]
        while self._values and self.n_bytes > self._most:
            self._values.popitem(last=False)
        return value
