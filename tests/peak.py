"""How much the tensors hold that are made on a way."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """What tensors hold that are made while it is open.

    Attributes:
        bytes: the most at one time.
        numbers: in the largest one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                held = one.untyped_storage()
                self.live[held._cdata] = StorageWeakRef(held), held.nbytes()
                self.numbers = max(self.numbers, held.nbytes() // one.element_size())
        self.live = {key: seen for key, seen in self.live.items() if not seen[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.live.values()))
        return made
