"""What `heads` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, no_type_check

from experiments.heads.rules import own_rules
from experiments.variants.config import ExperimentConfig
from experiments.variants.words import Shorthand
from nope_interp.errors import FieldError, UserError
from nope_interp.positions.conditions import parse_condition


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class HeadsConfig(ExperimentConfig):
    """Which heads are classified, without which positions, beside what `ExperimentConfig` asks.

    Attributes:
        ablate: positions to take away: all, learned, sinusoidal, rotary, alibi or t5, with a
            condition such as rotary:shuffled or rotary:keep_highest=0.25; None classifies the
            intact model only.
        ablate_layers: the blocks it acts in; None for all of them.
        ablate_heads: the heads it acts in; None for all of them.
        lift_window: let sliding-window layers see all that came before, too.
        random_init: classify the heads of the random-init variant instead of the model's.
        begin_token: begin text and repeated tokens with the begin token, where there is one.
        n_sequences: sequences of text to read. Repeated random tokens take half as many, and copies
            of one token a quarter. A small alphabet takes half to fit scores on, and half held out.
        rules: a TOML file of label rules of your own, which are applied beside ours.
        quick: read a quarter of the sequences, at least 16, and skip the random-init null; the run
            says so.
        prompts: texts whose attention the report shows; None takes some of the text that is read.
    """

    experiment: ClassVar[str] = "heads"
    argument: ClassVar[str | None] = "model"
    several: ClassVar[bool] = True
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        **ExperimentConfig.shorthands,
        "sequences": Shorthand(("n_sequences",)),
        "prompt": Shorthand(("prompts",)),
    }
    # Below this, a quarter of the sequences are too few to resample.
    least: ClassVar[dict[str, int]] = {**ExperimentConfig.least, "seq_len": 24, "n_sequences": 16}

    ablate: str | None = None
    ablate_layers: tuple[int, ...] | None = None
    ablate_heads: tuple[int, ...] | None = None
    lift_window: bool = False
    random_init: bool = False
    begin_token: bool = True
    n_sequences: int = 64
    rules: str | None = None
    quick: bool = False
    prompts: tuple[str, ...] | None = field(default=None, metadata={"repeated": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ablate is None:
            for name in ("ablate_layers", "ablate_heads", "lift_window"):
                if getattr(self, name) not in (None, False):
                    raise FieldError(name, "is given without ablate: say what to take away.")
        else:
            parse_condition(self.ablate)
        if self.prompts is not None and (not self.prompts or "" in self.prompts):
            raise FieldError(
                "prompts", "is empty: give at least one text, each of a letter or more."
            )
        for prompt in self.prompts or ():
            # What a terminal passes on of bytes that are no text.
            if any("\ud800" <= character <= "\udfff" for character in prompt):
                raise UserError(f"the prompt {prompt!r} is not valid Unicode: give it as UTF-8.")

    def check_rules(self) -> None:
        """Raise UserError where its file of rules cannot be read or holds no rules."""
        own_rules(self.rules)

    @property
    def n_shareable(self) -> int:
        """Sequences that shards can share: those that are read."""
        quarter = max(self.n_sequences // 4, self.least["n_sequences"])
        return quarter if self.quick else self.n_sequences

    @property
    def left_out(self) -> str | None:
        """What a quick run leaves out, in a sentence."""
        if not self.quick:
            return None
        return (
            f"Quick: {self.n_shareable} of {self.n_sequences} sequences were read, and no "
            "random-init variant: labels are tested against shuffled offsets and tokens only."
        )

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        # Run folders from before there were quick runs keep their names.
        if not self.quick:
            del values["quick"]
        return values

    def run_name(self) -> str:
        return f"heads-{self.model_name()}"
