"""What `compare` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from dataclasses import dataclass
from typing import ClassVar, no_type_check

from experiments.variants.config import ProbingConfig
from nope_interp.errors import UserError


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class CompareConfig(ProbingConfig):
    """Which model is compared with its other variants, beside what `ProbingConfig` asks.

    Attributes:
        variants: whether the random-init and bidirectional variants are read beside the model;
            without them nothing is compared.
        history: whether the model is kept as it was after 0, 1, 2, 4, 8, ... steps of its training,
            and read at each of these, too.
    """

    experiment: ClassVar[str] = "compare"

    variants: bool = True
    history: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history and self.model is not None:
            raise UserError(
                f"history follows a training, but {self.model!r} is trained already: leave one of "
                "the two out."
            )

    @property
    def code_ablation(self) -> str:
        """How position codes are taken away; without other variants a model is read only."""
        return super().code_ablation if self.variants else "no"

    @property
    def command_name(self) -> str:
        """The command of `nope-interp` that runs this."""
        return "compare" if self.variants else "probe"
