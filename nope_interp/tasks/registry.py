"""Tasks by name."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.tasks.names import TASK_NAMES
from nope_interp.tasks.reversal import ReversalTask
from nope_interp.tasks.sources import TokenSource
from nope_interp.tasks.text import TextTask, read_text


@runtime_checkable
class Task(Protocol):
    """What a model is trained on: batches to learn from, and a source for probes to read."""

    name: str

    @property
    def d_vocab(self) -> int: ...

    @property
    def tokenizer(self) -> object: ...

    def source(self) -> TokenSource: ...

    def uniform_source(self) -> TokenSource: ...

    def batch(
        self, n: int, seq_len: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]: ...


def make_task(name: str, text: str | None = None) -> Task:
    """The task of that name; `text` is a file that replaces the default text.

    Raises UserError for an unknown name, or a text for a task that reads none.
    """
    if name not in TASK_NAMES:
        raise unknown_name("task", name, TASK_NAMES)
    if name == "text":
        return TextTask(None if text is None else read_text(Path(text)))
    if text is not None:
        raise UserError(f"the task {name!r} reads no text: leave the text out.")
    return ReversalTask()
