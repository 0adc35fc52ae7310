"""The bar of a step that takes long, below the line that tells of all steps."""

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(
    items: Iterable[Any] | None, description: str | None, unit: str, total: int | None = None
) -> Any:
    """A bar on standard error that goes when it is done; none where that is a file or a pipe.

    Args:
        items: what is gone through; None where `update` is called instead.
        description: label of the bar; None draws none.
        unit: what one item is called.
        total: how many there are, where items have no length.

    Returns:
        tqdm's bar, which yields the items.
    """
    # None asks tqdm whether it stands on a terminal.
    disable = True if description is None else None
    return tqdm(items, description, total, leave=False, unit=unit, disable=disable)
