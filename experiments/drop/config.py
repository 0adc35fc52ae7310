"""What `drop` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, no_type_check

from experiments.variants.config import ExperimentConfig
from experiments.variants.words import Shorthand
from nope_interp.errors import FieldError, UserError
from nope_interp.training.config import TrainingConfig

_CONTEXTS = (0.5, 1, 2, 4)
_LEAST_CONTEXT = 16
# What it has in common with other experiments, and a drop does not read.
MEANINGLESS = ("dtype", "task", "lengths", "scratchpad")


def default_training() -> TrainingConfig:
    """AdamW, a warm-up and a cosine, as Gelberg et al. used, at a length and batch that a CPU can
    do; its betas, its weight decay and how far the rate falls are ours."""
    return TrainingConfig(
        steps=200, batch_size=8, learning_rate=3e-4, warmup=20, checkpoint_every=20
    )


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class DropConfig(ExperimentConfig):
    """Whose positions are dropped, how the model is recalibrated, and how far it is then read.

    Attributes:
        model: a hub name, a Hugging Face folder or a GGUF file of a pretrained model with rotary
            positions.
        text: a UTF-8 file to train on and to read instead of Python's own documentation.
        trained: parts of the names of parameters that are trained, such as self_attn,norm; None
            trains all.
        qk_norm: give queries and keys a norm each when positions are dropped; for Llama and Qwen 2.
        vocabulary: tokens that losses are over: all, or those that the text has, which is faster.
        control: train the intact model as long on the same text, too: what the text alone gives.
        context: tokens that the model was trained to read; None takes its config's.
        read_lengths: lengths at which loss and passkeys are read; None takes half the context, the
            context, twice and four times it.
        n_held_out: sequences of text that losses are taken on.
        n_passkeys: prompts with a passkey at each depth and length; 0 leaves them out.
        n_depths: depths of the passkey, evenly spread from the beginning to the end.
    """

    experiment: ClassVar[str] = "drop"
    argument: ClassVar[str | None] = "model"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        "steps": Shorthand(("training.steps",)),
        "seq_len": Shorthand(("seq_len", "training.seq_len"), "tokens in a training sequence."),
        "seed": Shorthand(("seed", "training.seed"), "the seed of everything random."),
    }
    least: ClassVar[dict[str, int]] = {**ExperimentConfig.least, "n_held_out": 8, "n_depths": 1}

    training: TrainingConfig = field(default_factory=default_training)
    batch_size: int = 8
    trained: tuple[str, ...] | None = None
    qk_norm: bool = False
    vocabulary: Literal["all", "text"] = "all"
    control: bool = True
    context: int | None = None
    read_lengths: tuple[int, ...] | None = None
    n_held_out: int = 32
    n_passkeys: int = 16
    n_depths: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.is_ours:
            raise UserError(
                f"{self.model!r} is a model of ours: drop takes a pretrained one; train yours "
                "with --positions none."
            )
        for name in MEANINGLESS:
            if getattr(self, name) != getattr(DropConfig, name):
                raise FieldError(name, "means nothing to a drop: leave it out.")
        if self.training.compile:
            raise FieldError("training.compile", "is not for pretrained models: leave it out.")
        if self.trained is not None and (not self.trained or "" in self.trained):
            raise FieldError("trained", "names nothing: give parts of names, or leave it out.")
        if self.n_passkeys not in (0, *range(2, 10_000)):
            raise FieldError("n_passkeys", f"is {self.n_passkeys}: give 0, or 2 to 9999.")
        if self.context is not None and self.context < _LEAST_CONTEXT:
            raise FieldError("context", f"is {self.context}: use at least {_LEAST_CONTEXT}.")
        lengths = self.read_lengths or (_LEAST_CONTEXT,)
        if min(lengths) < _LEAST_CONTEXT or len(set(lengths)) < len(lengths):
            raise FieldError(
                "read_lengths",
                f"are {list(lengths)}: give lengths of at least {_LEAST_CONTEXT}, each once.",
            )

    def check_model(self) -> None:
        """Refuse to drop the positions of no model.

        Raises:
            UserError: where none is given.
        """
        if self.model is None:
            raise UserError(
                "drop takes a pretrained model: give its hub name, folder or GGUF file."
            )

    def run_name(self) -> str:
        return f"drop-{self.model_name()}"

    def lengths_of(self, context: int, most: int | None) -> tuple[int, ...]:
        """The lengths that are read, growing.

        Args:
            context: tokens that the model was trained to read.
            most: that it has positions for; None where there is no end.

        Returns:
            As many as were asked for, else those of the default that it has positions for.
        """
        usual = (int(share * context) for share in _CONTEXTS)
        asked = self.read_lengths or tuple(n for n in usual if most is None or n <= most)
        return tuple(sorted(asked))
