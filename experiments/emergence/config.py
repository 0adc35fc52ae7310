"""What `emergence` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, no_type_check

from experiments.variants.config import ExperimentConfig, ProbingConfig
from experiments.variants.words import Shorthand
from nope_interp.errors import FieldError, UserError, shown
from nope_interp.fields import Range, check_seeds
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig


def _small_transformer() -> TransformerConfig:
    return TransformerConfig(n_layers=3, d_model=64, n_heads=4, d_vocab=257, n_ctx=64)


def _short_training() -> TrainingConfig:
    return TrainingConfig(steps=600, seq_len=64)


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class EmergenceConfig(ExperimentConfig):
    """Which training is watched, and how often it is run, beside what `ExperimentConfig` asks.

    Attributes:
        n_seeds: trainings, 2 to 1000, each with weights, batches and tokens of its own; `seed` is
            the first.

    Raises:
        UserError: as `ExperimentConfig`, for a model, and for seeds of weights or batches alone.
    """

    experiment: ClassVar[str] = "emergence"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        **ExperimentConfig.shorthands,
        "seeds": Shorthand(("n_seeds",)),
    }
    # Below this heads cannot be told apart.
    least: ClassVar[dict[str, int]] = {**ExperimentConfig.least, "seq_len": 24}

    transformer: TransformerConfig = field(default_factory=_small_transformer)
    training: TrainingConfig = field(default_factory=_short_training)
    seq_len: int = 64
    n_seeds: Annotated[int, Range(least=2, most=1000)] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            raise UserError(
                f"emergence trains its own models, but {self.model!r} is trained already: leave it "
                "out."
            )
        # Where they are not given they have their defaults, or what the shorthand gave all three.
        for name, usual in (("transformer", TransformerConfig), ("training", TrainingConfig)):
            own = getattr(self, name).seed
            if own not in (usual.seed, self.seed):
                raise _own_seed(f"{name}.seed", own)
        check_seeds(self.seeds)

    @classmethod
    def check_agreement(cls, given: Mapping[str, Any]) -> None:
        super().check_agreement(given)
        # Here a default that was given is told from one that was not.
        for word in ("transformer.seed", "training.seed"):
            if "seed" in given and given.get(word, given["seed"]) != given["seed"]:
                raise _own_seed(word, given[word])

    @property
    def seeds(self) -> range:
        """The seeds in use."""
        return range(self.seed, self.seed + self.n_seeds)

    @property
    def on_cpu_alone(self) -> str:
        """Its name: models this small train fastest on the CPU."""
        return "emergence"

    def of_seed(self, seed: int) -> ProbingConfig:
        """One of the trainings, and how it is read.

        Args:
            seed: of its weights, batches and tokens.

        Returns:
            The config of that training alone.
        """
        transformer = replace(self.transformer, seed=seed)
        training = replace(self.training, seed=seed)
        return ProbingConfig.like(self, transformer=transformer, training=training, seed=seed)

    def run_name(self) -> str:
        return f"emergence-{self.model_name()}-{self.task}"


def _own_seed(word: str, value: object) -> FieldError:
    """Weights or batches were given a seed of their own."""
    says = f"is {shown(value)}, but seed is that of weights, batches and tokens: leave it out."
    return FieldError(word, says)
