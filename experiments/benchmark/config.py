"""What `benchmark` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, no_type_check

from experiments.benchmark.methods import METHODS, of_yours
from experiments.variants.words import Shorthand, Worded
from nope_interp.errors import FieldError, unknown_name
from nope_interp.fields import Range, Seed, check_fields, check_seeds

SEEDS = 20


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class BenchmarkConfig(Worded):
    """Which methods judge which planted models.

    Attributes:
        n_seeds: models of each kind, 1 to 1000; a full run has 20.
        methods: methods by name; None takes them all.
        kinds: kinds of planted models by name; None takes them all.
        seed: the first one; the others follow it.

    Raises:
        UserError: for unknown methods, a name that comes twice, and values out of range.
    """

    experiment: ClassVar[str] = "benchmark"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        "seeds": Shorthand(("n_seeds",)),
        "method": Shorthand(("methods",)),
        "kind": Shorthand(("kinds",)),
    }
    # It has its own models, and reads no text.
    model: ClassVar[str | None] = None
    text: ClassVar[str | None] = None

    n_seeds: Annotated[int, Range(least=1, most=1000)] = SEEDS
    methods: tuple[str, ...] | None = field(default=None, metadata={"repeated": True})
    kinds: tuple[str, ...] | None = field(default=None, metadata={"repeated": True})
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, "benchmark")
        for name in self.methods or ():
            if name not in METHODS:
                raise unknown_name("method", name, METHODS)
        for name in ("methods", "kinds"):
            given = getattr(self, name)
            if given is not None and len(set(given)) != max(len(given), 1):
                raise FieldError(name, f"are {list(given)}: give each once, and one at least.")
        check_seeds(self.seeds)

    @property
    def seeds(self) -> range:
        """The seeds in use."""
        return range(self.seed, self.seed + self.n_seeds)

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """The methods in use."""
        return tuple(METHODS) if self.methods is None else self.methods

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells methods of one's own, beside their names."""
        return of_yours(self.chosen_methods)

    @property
    def on_cpu_alone(self) -> str:
        """Its name: models this small run fastest on the CPU."""
        return "benchmark"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def run_name(self) -> str:
        """The readable half of the run folder's name.

        Returns:
            What a file name can hold.
        """
        return "benchmark"

    def command(self) -> str:
        """The command line that runs this again.

        Returns:
            One line for a shell; where methods are one's own, a comment says that it lacks them.
        """
        words = ["nope-interp", "benchmark", "--seeds", str(self.n_seeds), "--seed", str(self.seed)]
        for option, names in (("--method", self.methods), ("--kind", self.kinds)):
            for name in names or ():
                words += [option, name]
        own = ", ".join(self.fingerprints)
        return f"{shlex.join(words)}{f'  # from Python, with {own} in METHODS' if own else ''}"
