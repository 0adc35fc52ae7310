"""What `reproduce` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, ClassVar, no_type_check

from experiments.papers.registry import paper
from experiments.results.claims import SIZES, Paper
from experiments.variants.config import resolved
from experiments.variants.words import Shorthand, Worded
from nope_interp.errors import FieldError, UserError, unknown_name
from nope_interp.fields import Seed, check_fields, check_seeds
from nope_interp.models.config import DeclaredPositions

_LARGEST = 64.0


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ReproduceConfig(Worded):
    """Which paper is reproduced, and at which size.

    Attributes:
        name: the paper: chi2023, zuo2025, haviv2022, kazemnejad2023, barbero2024, koutnik2014,
            kim2025 or gelberg2025.
        n_seeds: draws of weights and data, at least 2 for an interval; None takes the paper's.
        width: factor on the default width.
        length: factor on the default length.
        depth: factor on the default number of layers.
        training: factor on the training steps.
        preset: measure more, at these sizes. tiny trains models for kazemnejad2023 (about an hour
            on two cores) and zuo2025 (40 minutes). tiny-all trains kazemnejad2023's on all tasks
            (four hours); so do small and paper, on a GPU. tiny-nope trains those without positions
            alone (one hour). large gives a probe of chi2023 64,000 sequences (an hour and a half).
        seed: the first one; the others follow it.
        model: one more model to read, where the paper's experiment reads one: a hub name, a Hugging
            Face folder, a GGUF file, or a model.safetensors of ours.
        positions: which positions that model has: none, rotary, learned, alibi or t5; auto goes by
            its config and a table of published models.
        text: a UTF-8 file for it to read instead of Python's own documentation.

    Raises:
        UserError: for an unknown paper, values out of range, multipliers of what the paper's
            experiment does not have, and a model where it reads none.
    """

    experiment: ClassVar[str] = "reproduce"
    argument: ClassVar[str | None] = "name"
    named: ClassVar[str] = "name"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {"seeds": Shorthand(("n_seeds",))}

    name: str
    n_seeds: int | None = None
    width: float = 1.0
    length: float = 1.0
    depth: float = 1.0
    training: float = 1.0
    preset: str | None = None
    seed: Seed = 0
    model: str | None = None
    positions: DeclaredPositions = "auto"
    text: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "reproduce")
        if self.n_seeds is not None and not 2 <= self.n_seeds <= 10_000:
            raise FieldError("n_seeds", f"is {self.n_seeds}: give 2 to 10000, for an interval.")
        if self.preset is not None and self.preset not in self.paper.presets:
            if not self.paper.presets:
                raise UserError(f"{self.name} has no preset: leave {self.preset!r} out.")
            raise unknown_name(f"preset of {self.name}", self.preset, self.paper.presets)
        if self.model is not None and not self.paper.reads_model:
            raise UserError(f"{self.name} reads no model of yours: leave {self.model!r} out.")
        if self.text is not None and self.model is None:
            raise UserError("a text is given without a model to read it: add --model.")
        if self.positions != "auto" and self.model is None:
            raise UserError("positions are given without a model that has them: add --model.")
        sizes = self.paper.sizes
        for size, factor in self.factors.items():
            if not 0 < factor <= _LARGEST:
                raise FieldError(size, f"is {factor:g}: give a factor above 0 and up to 64.")
            if factor != 1 and size not in sizes:
                raise UserError(
                    f"{self.name} has no {size} to multiply: leave it out, or choose from "
                    f"{', '.join(sizes)}."
                )
        check_seeds(self.seeds)

    @property
    def paper(self) -> Paper:
        """What the config's name stands for."""
        return paper(self.name)

    @property
    def seeds(self) -> range:
        """The seeds in use."""
        return range(self.seed, self.seed + (self.n_seeds or self.paper.n_seeds))

    @property
    def on_cpu_alone(self) -> str | None:
        """The paper's name, where its experiment runs on the CPU alone."""
        return None if self.paper.on_device else self.name

    def scaled(self, size: str, default: int, *, multiple_of: int = 1, least: int = 1) -> int:
        """A default size times its factor.

        Args:
            size: width, length, depth or training.
            default: the size at factor 1.
            multiple_of: what the size is rounded to a multiple of.
            least: the smallest that is given.

        Returns:
            The size.
        """
        wanted = round(getattr(self, size) * default / multiple_of) * multiple_of
        return max(wanted, least, multiple_of)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self) | {"n_seeds": len(self.seeds)}
        # Run folders are named for these values: those from before it existed keep their names.
        if self.positions == "auto":
            del found["positions"]
        return found

    def run_name(self) -> str:
        """The readable half of the run folder's name.

        Returns:
            What a file name can hold.
        """
        return f"reproduce-{self.name}"

    @property
    def reduced(self) -> bool:
        """Whether anything is smaller than by default."""
        return len(self.seeds) < self.paper.n_seeds or any(f < 1 for f in self.factors.values())

    @property
    def factors(self) -> dict[str, float]:
        """The factor on each of the default sizes."""
        return {size: getattr(self, size) for size in SIZES}

    @property
    def size_options(self) -> list[str]:
        """How much is run, as options of the command line."""
        scaled = [
            [f"--{size}", f"{factor:g}"] for size, factor in self.factors.items() if factor != 1
        ]
        preset = [] if self.preset is None else ["--preset", self.preset]
        return [*preset, "--seeds", str(len(self.seeds)), *chain.from_iterable(scaled)]

    def command(self) -> str:
        """The command line that runs this again.

        Returns:
            One line for a shell.
        """
        words = ["nope-interp", "reproduce", self.name, *self.size_options]
        words += ["--seed", str(self.seed)]
        for option, value in (("--model", self.model), ("--text", self.text)):
            words += [] if value is None else [option, resolved(value)]
        words += [] if self.positions == "auto" else ["--positions", self.positions]
        return shlex.join(words)
