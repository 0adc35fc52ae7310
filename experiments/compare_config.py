"""What `compare` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.subject_config import SubjectConfig
from nope_interp.errors import UserError
from nope_interp.sites import check_site


@dataclass(frozen=True)
class CompareConfig(SubjectConfig):
    """Which model is read, where, and on how much.

    Attributes, beside those of `SubjectConfig`:
        layers: which blocks are read; None reads all of them.
        sites: where in each layer probes read.
        twins: whether the model's twins are read beside it; without them nothing is compared.
        n_fit: sequences that probes are fitted on.
        n_held_out: other sequences that they are scored on.
    """

    experiment: ClassVar[str] = "compare"
    least: ClassVar[dict[str, int]] = {**SubjectConfig.least, "n_fit": 8, "n_held_out": 8}

    layers: tuple[int, ...] | None = None
    sites: tuple[str, ...] = ("resid_post", "attn_out")
    twins: bool = True
    n_fit: int = 512
    n_held_out: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        for site in self.sites:
            check_site(site)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise UserError(f"sites are {list(self.sites)}: name at least one, each once.")
        if self.layers is not None and (
            not self.layers or len(set(self.layers)) < len(self.layers) or min(self.layers) < 0
        ):
            raise UserError(
                f"layers are {list(self.layers)}: name at least one, each once, from 0."
            )

    def run_name(self) -> str:
        """The readable half of the run folder's name."""
        return f"{self.model_name()}-{self.task}"

    @property
    def command_name(self) -> str:
        return "compare" if self.twins else "probe"
