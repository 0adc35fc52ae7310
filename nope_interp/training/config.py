"""How long, how fast and on how much a model is trained. Imports nothing heavy."""

from dataclasses import asdict, dataclass, fields
from typing import Any, no_type_check

from nope_interp.errors import FieldError, unknown_name
from nope_interp.fields import check_seed, check_types

SCHEDULES = ("cosine", "linear")
PRECISIONS = ("float32", "bfloat16")


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class TrainingConfig:
    """How long, how fast, on how much.

    Attributes:
        steps: optimiser steps.
        batch_size: sequences in a step.
        seq_len: tokens in a sequence, begin token included.
        learning_rate: its peak, reached after `warmup` steps.
        warmup: steps over which the learning rate rises to its peak.
        schedule: how it falls from there: `cosine`, to a tenth, or `linear`, to zero.
        weight_decay: AdamW's, on matrices only.
        clip: the gradient's norm is scaled down to this.
        precision: of the forward and backward pass, `float32` or `bfloat16`; weights and the
            optimiser's moments stay in single precision.
        compile: run the loss through torch.compile. Losses are equal to rounding; dropout draws
            other numbers, and a killed training ends in the same numbers to rounding only.
        checkpoint_every: steps between two savings of the training state.
        seed: of batches and dropout.
    """

    steps: int = 1200
    batch_size: int = 16
    seq_len: int = 128
    learning_rate: float = 2e-3
    schedule: str = "cosine"
    warmup: int = 100
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: str = "float32"
    compile: bool = False
    checkpoint_every: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self, "training")
        check_seed(self.seed, "training")
        for name, choices in (("schedule", SCHEDULES), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise unknown_name(f"training {name}", getattr(self, name), choices)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str | bool):
                continue
            may_be_zero = field.name in ("warmup", "weight_decay", "seed")
            if value < 0 or (value == 0 and not may_be_zero):
                raise FieldError(field.name, f"is {value}: it is too small.", "training")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; reads back as keyword arguments."""
        values = asdict(self)
        # Run folders are named for these values: those from before it existed keep their names.
        if not self.compile:
            del values["compile"]
        return values
