"""What `heads` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from dataclasses import dataclass
from typing import ClassVar, no_type_check

from experiments.variants.config import ExperimentConfig
from nope_interp.errors import UserError


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class HeadsConfig(ExperimentConfig):
    """Which model's heads are classified, and which of its positions are taken away.

    Attributes, beside those of `SubjectConfig`:
        ablate: the positions to take away, as `ablate_positions` names them ("rotary",
            "rotary:keep_highest=0.25", "all"); None classifies the intact model only.
        ablate_layers: the blocks it acts in; None for all of them.
        ablate_heads: the heads it acts in; None for all of them.
        lift_window: also makes sliding-window layers plainly causal.
        random_init: reads the untrained twin of the model in place of its trained weights.
        begin_token: begin text and repeated tokens with the begin token, where there is one.
        n_sequences: sequences of text; half as many of repeated tokens and to hold out scores on,
            a quarter as many of copies.
        prompts: texts whose attention the report shows; None takes some of the text that is read.
    """

    experiment: ClassVar[str] = "heads"
    model_option: ClassVar[str] = ""  # an argument of its own
    # Below this, a quarter of the sequences are too few to resample.
    least: ClassVar[dict[str, int]] = {**ExperimentConfig.least, "seq_len": 24, "n_sequences": 16}

    ablate: str | None = None
    ablate_layers: tuple[int, ...] | None = None
    ablate_heads: tuple[int, ...] | None = None
    lift_window: bool = False
    random_init: bool = False
    begin_token: bool = True
    n_sequences: int = 64
    prompts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ablate is None:
            for name in ("ablate_layers", "ablate_heads", "lift_window"):
                if getattr(self, name) not in (None, False):
                    raise UserError(f"{name} is given without ablate: say what to take away.")
        if self.prompts is not None and (not self.prompts or "" in self.prompts):
            raise UserError("prompts hold no text: give at least one prompt, none of them empty.")
        for prompt in self.prompts or ():
            # What a terminal passes on of bytes that are no text.
            if any("\ud800" <= character <= "\udfff" for character in prompt):
                raise UserError(f"the prompt {prompt!r} is not valid Unicode: give it as UTF-8.")

    def run_name(self) -> str:
        """The readable half of the run folder's name."""
        return f"heads-{self.model_name()}"
