"""Where and on how much a model is probed, as one validated, JSON-able value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, no_type_check

from experiments.variants.config import ExperimentConfig
from experiments.variants.words import Shorthand
from nope_interp.errors import FieldError, unknown_name
from nope_interp.positions.conditions import parse_condition
from nope_interp.sites import check_site

USES = ("no", "stream", "sites")
_LEAST = 8


def _thirds(sequences: Any) -> tuple[int, int]:
    """How many of all sequences are fitted on, and how many are held out."""
    if not isinstance(sequences, int) or sequences < 3 * _LEAST:
        raise FieldError("sequences", f"is {sequences!r}: use at least {3 * _LEAST}.")
    return sequences - sequences // 3, sequences // 3


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ProbingConfig(ExperimentConfig):
    """Which model is probed, where, and on how much, beside what `ExperimentConfig` asks.

    Attributes:
        layers: which blocks are read; None reads all of them.
        sites: where in each layer probes read: resid_pre, resid_mid, resid_post, attn_out, mlp_out.
        n_fit: sequences that probes are fitted on.
        n_held_out: other sequences that they are scored on.
        ablate: positions to take away before anything is read: all, learned, sinusoidal, rotary,
            alibi or t5, with a condition such as rotary:shuffled or rotary:keep_highest=0.25.
        uses: take position codes away, to see which the model uses: no, stream (through the whole
            stream) or sites (also site by site); None takes the latter for models of ours and
            stream for pretrained ones, whose every forward pass is long.
    """

    experiment: ClassVar[str] = "probe"
    shorthands: ClassVar[Mapping[str, Shorthand]] = {
        **ExperimentConfig.shorthands,
        "sequences": Shorthand(
            ("n_fit", "n_held_out"),
            "sequences in all: two thirds to fit probes on, one third held out.",
            _thirds,
        ),
    }
    least: ClassVar[dict[str, int]] = {
        **ExperimentConfig.least,
        "n_fit": _LEAST,
        "n_held_out": _LEAST,
    }

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
        if self.ablate is not None:
            parse_condition(self.ablate)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise FieldError("sites", f"are {list(self.sites)}: name at least one, each once.")
        if self.layers is not None and (
            not self.layers or len(set(self.layers)) < len(self.layers) or min(self.layers) < 0
        ):
            raise FieldError(
                "layers", f"are {list(self.layers)}: name at least one, each once, from 0."
            )

    @property
    def code_ablation(self) -> str:
        """How position codes are taken away: one of `USES`."""
        own = self.model is None or self.model.endswith(".safetensors")
        return self.uses or ("sites" if own else "stream")

    @property
    def n_shareable(self) -> int:
        """Sequences that shards can share."""
        return min(self.n_fit, self.n_held_out)
