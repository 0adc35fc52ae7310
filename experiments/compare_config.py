"""What `compare` is asked to do, as one validated, JSON-able value. Imports nothing heavy."""

import dataclasses
import json
import re
import shlex
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nope_interp.config import TransformerConfig
from nope_interp.errors import UserError, unknown_name
from nope_interp.fields import check_seed, check_types, from_mapping
from nope_interp.sites import check_site
from nope_interp.tasks.names import TASK_NAMES
from nope_interp.training_config import TrainingConfig


def default_transformer() -> TransformerConfig:
    """The embedded model: small enough to train in two minutes on two cores.

    257 tokens are the bytes and a begin token. NoPE, pre-norm, GPT-2's initialisation.
    """
    return TransformerConfig(n_layers=4, d_model=128, n_heads=4, d_vocab=257, n_ctx=128)


@dataclass(frozen=True)
class CompareConfig:
    """Which model is read, where, and on how much.

    Attributes:
        model: a hub name, a Hugging Face folder, a GGUF file, or a model.safetensors of ours; None
            trains `transformer` on `task`.
        task: `text` or `reversal`; what the model is trained on and read on.
        text: a UTF-8 file to read instead of Python's own documentation.
        transformer: the model to train where `model` is None.
        training: how it is trained.
        layers: which blocks are read; None reads all of them.
        sites: where in each layer probes read.
        twins: whether the model's twins are read beside it; without them nothing is compared.
        seq_len: tokens in a sequence, begin token included.
        n_fit: sequences that probes are fitted on.
        n_held_out: other sequences that they are scored on.
        batch_size: sequences in one forward pass.
        seed: of tokens, controls, bootstrap, and the random-init twin of a pretrained model.
    """

    model: str | None = None
    task: str = "text"
    text: str | None = None
    transformer: TransformerConfig = field(default_factory=default_transformer)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    layers: tuple[int, ...] | None = None
    sites: tuple[str, ...] = ("resid_post", "attn_out")
    twins: bool = True
    seq_len: int = 128
    n_fit: int = 512
    n_held_out: int = 256
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "sites"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_types(self, "compare")
        check_seed(self.seed, "compare")
        if self.task not in TASK_NAMES:
            raise unknown_name("task", self.task, TASK_NAMES)
        if self.text is not None and self.task != "text":
            raise UserError(f"the task {self.task!r} reads no text: leave the text out.")
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
        least = {"seq_len": 8, "n_fit": 8, "n_held_out": 8, "batch_size": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise UserError(f"{name} is {getattr(self, name)}: use at least {smallest}.")
        if self.model is None and self.seq_len > self.transformer.n_ctx:
            raise UserError(
                f"sequences of {self.seq_len} tokens are longer than the model's context of "
                f"{self.transformer.n_ctx}: shorten them or raise n_ctx."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **own,
            "transformer": self.transformer.to_dict(),
            "training": asdict(self.training),
            "layers": None if self.layers is None else list(self.layers),
            "sites": list(self.sites),
        }

    @classmethod
    def from_dict(cls, values: Any) -> "CompareConfig":
        """Raises UserError for unknown keys, wrong types and values that make no sense."""
        if not isinstance(values, dict):
            raise UserError(f"the config is {type(values).__name__}: expected named values.")
        values = dict(values)
        if "transformer" in values:
            sizes = values["transformer"]
            base = default_transformer().to_dict()
            merged = {**base, **sizes} if isinstance(sizes, dict) else sizes
            values["transformer"] = TransformerConfig.from_dict(merged)
        if "training" in values:
            values["training"] = from_mapping(TrainingConfig, values["training"], "training")
        return from_mapping(cls, values, "the config")

    @classmethod
    def read(cls, path: Path) -> "CompareConfig":
        """Read a TOML or JSON file, or the config.json of a run folder."""
        try:
            text = path.read_text(encoding="utf-8")
            values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except OSError as error:
            raise UserError(f"cannot read the config {str(path)!r} ({error.strerror}).") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"the config {str(path)!r} is not valid ({error}).") from error
        if isinstance(values, dict) and {"config", "environment"} == values.keys():
            values = values["config"]
        return cls.from_dict(values)

    def run_name(self) -> str:
        """The readable half of the run folder's name."""
        if self.model is None:
            return f"{self.transformer.positions}-{self.task}"
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", Path(self.model).name).strip("-.")
        return f"{stem[:60] or 'model'}-{self.task}"

    def command(self) -> str:
        """The command line that runs this again, given in the run folder."""
        options = []
        for name in ("model", "text"):
            value = getattr(self, name)
            if value is not None:
                is_local = Path(value).exists()
                options += [f"--{name}", str(Path(value).resolve()) if is_local else value]
        command = "compare" if self.twins else "probe"
        return shlex.join(["nope-interp", command, *options, "--config", "config.json"])
