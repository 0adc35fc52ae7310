"""What `compare` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, no_type_check

from experiments.results.notes import FEWER
from experiments.variants.config import ProbingConfig
from experiments.variants.words import Shorthand
from nope_interp.errors import FieldError, UserError, shown

# What is shown first: few short sequences, and codes taken away at all sites together. They are
# enough to fit on up to a width of 806 components, which takes in GPT-2's and Gemma 3 270M's.
_QUICK = {"n_fit": 128, "n_held_out": 48, "seq_len": 64, "uses": "stream"}


def _quick(wanted: Any) -> tuple[Any, ...]:
    if not isinstance(wanted, bool):
        raise FieldError("quick", f"is {shown(wanted)}: give True or False.")
    return tuple(_QUICK.values()) if wanted else ()


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class CompareConfig(ProbingConfig):
    """Which model is compared with its other variants, beside what `ProbingConfig` asks.

    Attributes:
        variants: whether the random-init and bidirectional variants are read beside the model;
            without them nothing is compared.
        history: whether the model is also read as it was after 0, 1, 2, 4, 8, ... steps of its
            training.
    """

    experiment: ClassVar[str] = "compare"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        **ProbingConfig.shorthands,
        "quick": Shorthand(
            tuple(_QUICK),
            "a first answer, from fewer and shorter sequences; the page says what it leaves out.",
            _quick,
            kind=bool,
        ),
    }

    variants: bool = True
    history: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history and self.model is not None:
            raise UserError(
                f"history follows a training, but {self.model!r} is trained already: leave one of "
                "the two out."
            )
        if self.history and self.ablate is not None:
            raise UserError(
                f"history reads the model with its positions, but ablate takes {self.ablate!r} "
                "away: leave one of the two out."
            )

    @property
    def code_ablation(self) -> str:
        """How codes are taken away; without other variants only where that is asked for."""
        return super().code_ablation if self.variants or self.uses is not None else "no"

    @property
    def command_name(self) -> str:
        return "compare" if self.variants or self.uses is not None else "probe"


def left_out(config: CompareConfig) -> list[str]:
    """What a run leaves out that one by default does, a sentence each.

    Args:
        config: of the run.

    Returns:
        Sentences for its report.
    """
    usual, found = CompareConfig(), []
    read, all_read = (asked.n_fit + asked.n_held_out for asked in (config, usual))
    if read < all_read:
        found.append(
            f"{FEWER} {read} sequences under each condition; {all_read} are the default. "
            "Fewer sequences give wider intervals."
        )
    if config.task == "text" and config.seq_len < usual.seq_len:
        found.append(
            f"Sequences have {config.seq_len} tokens; {usual.seq_len} are the default. Nothing is "
            "said of later positions."
        )
    if config.is_ours and config.variants and config.code_ablation != usual.code_ablation:
        found.append("This run took no codes away at single sites, which is done by default.")
    return found
