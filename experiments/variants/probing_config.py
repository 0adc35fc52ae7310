"""Where and on how much a model is probed, as one validated, JSON-able value."""

from dataclasses import dataclass
from typing import ClassVar, no_type_check

from experiments.variants.config import ExperimentConfig
from nope_interp.errors import UserError, unknown_name
from nope_interp.sites import check_site

USES = ("no", "stream", "sites")


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ProbingConfig(ExperimentConfig):
    """Which model is probed, where, and on how much.

    Attributes, beside those of `ExperimentConfig`:
        layers: which blocks are read; None reads all of them.
        sites: where in each layer probes read.
        n_fit: sequences that probes are fitted on.
        n_held_out: other sequences that they are scored on.
        ablate: positions to take away before anything is read, as `ablate_positions` takes them:
            "all", "rotary:none", ...
        uses: whether position codes are taken away, to see which the model uses: "no", "stream"
            (through the whole stream) or "sites" (also site by site); None takes the latter for
            models of ours and "stream" for pretrained ones, whose every forward pass is long.
    """

    experiment: ClassVar[str] = "probe"
    least: ClassVar[dict[str, int]] = {**ExperimentConfig.least, "n_fit": 8, "n_held_out": 8}

    layers: tuple[int, ...] | None = None
    sites: tuple[str, ...] = ("resid_post", "attn_out")
    n_fit: int = 512
    n_held_out: int = 256
    ablate: str | None = None
    uses: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for site in self.sites:
            check_site(site)
        if self.uses is not None and self.uses not in USES:
            raise unknown_name("choice of uses", self.uses, USES)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise UserError(f"sites are {list(self.sites)}: name at least one, each once.")
        if self.layers is not None and (
            not self.layers or len(set(self.layers)) < len(self.layers) or min(self.layers) < 0
        ):
            raise UserError(
                f"layers are {list(self.layers)}: name at least one, each once, from 0."
            )

    @property
    def code_ablation(self) -> str:
        """How position codes are taken away: one of `USES`."""
        own = self.model is None or self.model.endswith(".safetensors")
        return self.uses or ("sites" if own else "stream")
