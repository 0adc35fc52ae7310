"""How long, how fast and on how much a model is trained. Imports nothing heavy."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, no_type_check

from nope_interp.fields import Count, Positive, Range, Seed, check_fields


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class TrainingConfig:
    """How long, how fast, on how much.

    Attributes:
        steps: optimiser steps.
        batch_size: sequences in a step.
        seq_len: tokens in a sequence, begin token included.
        learning_rate: the peak, reached after `warmup` steps.
        warmup: steps over which the learning rate rises to its peak. A longer one than the training
            is warned of: the peak is never reached.
        schedule: how the learning rate falls from its peak: `cosine`, to a tenth, or `linear`, to
            zero.
        weight_decay: AdamW's, on matrices only.
        clip: largest norm of the gradient; a larger one is scaled down to it.
        precision: of the forward and backward pass, `float32` or `bfloat16`; weights and the
            optimiser's moments stay in single precision.
        compile: run the loss through torch.compile. Losses are equal to rounding; dropout draws
            other numbers, and a killed training ends in the same numbers to rounding only.
        checkpoint_every: steps between two savings of the training state.
        seed: the seed of batches and dropout.

    Raises:
        UserError: for values of a wrong type or out of range, with the field and the remedy.
    """

    steps: Count = 1200
    batch_size: Count = 16
    seq_len: Annotated[int, Range(least=2)] = 128
    learning_rate: Positive = 2e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup: Annotated[int, Range(least=0)] = 100
    weight_decay: Annotated[float, Range(least=0)] = 0.1
    clip: Positive = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    checkpoint_every: Count = 200
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, "training")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, which read back as keyword arguments.

        Returns:
            Values by name.
        """
        values = asdict(self)
        # Run folders are named for these values: those from before it existed keep their names.
        if not self.compile:
            del values["compile"]
        return values
