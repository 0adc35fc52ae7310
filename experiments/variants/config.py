"""Which model an experiment reads, and on which tokens. Imports nothing heavy."""

import dataclasses
import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, no_type_check

from experiments.variants.words import Shorthand, Worded, asked, check_words, flat, nested, within
from nope_interp.errors import FieldError, UserError, shown, unknown_name
from nope_interp.fields import Seed, check_fields, check_lengths, from_mapping, is_whole
from nope_interp.files import file_slug, given_path, utf8_of
from nope_interp.models.config import DeclaredPositions, TransformerConfig
from nope_interp.positions.conditions import parse_condition
from nope_interp.pretrained.source import is_own
from nope_interp.sites import check_site
from nope_interp.tasks.names import TASK_NAMES
from nope_interp.training.config import TrainingConfig

_DTYPES = ("float32", "bfloat16", "float16")
_OF_EXAMPLES = ("lengths", "scratchpad")
# The nested configs, and how sentences call them.
_NESTED = {"transformer": "the model's config", "training": "training"}
_SHORTHANDS = {
    "init": Shorthand(("transformer.init",)),
    "steps": Shorthand(("training.steps",)),
    "seq_len": Shorthand(("seq_len", "transformer.n_ctx", "training.seq_len")),
    "seed": Shorthand(
        ("seed", "transformer.seed", "training.seed"), "the seed of everything random."
    ),
}

Config = TypeVar("Config", bound="ExperimentConfig")


def default_transformer() -> TransformerConfig:
    """The embedded model, which ships with the package and is trained by `TrainingConfig()`.

    257 tokens are the bytes and a begin token. NoPE, pre-norm, GPT-2's initialisation.
    """
    return TransformerConfig(n_layers=4, d_model=128, n_heads=4, d_vocab=257, n_ctx=128)


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ExperimentConfig(Worded):
    """What every experiment on one model is asked: which model, which tokens, which seed.

    Attributes:
        model: a hub name, a Hugging Face folder, a GGUF file, or a model.safetensors of ours. None
            takes the small one that ships with the package, or trains another if options such as
            text say so.
        revision: branch, tag or commit of a hub name.
        dtype: number format of a pretrained model's weights: `float32`, `bfloat16` or `float16`.
        positions: which positions the model has, or is trained with here. auto goes by
            transformer.positions, or by a pretrained model's config and a table of published ones.
        task: what the model is trained on and read on: text, reversal, addition, copy-cmc, scan,
            sort-single, indexing and others.
        text: a UTF-8 file to read instead of Python's own documentation. Without a model one is
            trained on it.
        lengths: the shortest and the longest examples of a task with answers; None for the paper's.
        scratchpad: parts of the task's steps that are written down, in any order: input,
            computation, output, variables, remaining; None for the answer alone.
        transformer: the model to train where `model` is None.
        training: how it is trained.
        seq_len: tokens in a sequence, begin token included.
        batch_size: sequences in one forward pass.
        seed: the seed of tokens, controls, bootstrap, and a pretrained model's random-init variant.

    Raises:
        UserError: for values that make no sense, by themselves or together.
    """

    experiment: ClassVar[str]
    shorthands: ClassVar[Mapping[str, Shorthand]] = _SHORTHANDS
    least: ClassVar[dict[str, int]] = {"seq_len": 8, "batch_size": 1}

    model: str | None = None
    revision: str | None = None
    dtype: str = "float32"
    positions: DeclaredPositions = "auto"
    task: str = "text"
    text: str | None = None
    lengths: tuple[int, int] | None = None
    scratchpad: tuple[str, ...] | None = None
    transformer: TransformerConfig = field(default_factory=default_transformer)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    seq_len: int = 128
    batch_size: int = 32
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.task not in TASK_NAMES:
            raise unknown_name("task", self.task, TASK_NAMES)
        if self.dtype not in _DTYPES:
            raise unknown_name("dtype", self.dtype, _DTYPES)
        if self.is_ours and (self.revision is not None or self.dtype != "float32"):
            raise UserError("revision and dtype are for pretrained models: leave them out.")
        self._settle_positions()
        if self.text is not None and self.task != "text":
            raise UserError(f"the task {self.task!r} reads no text: leave the text out.")
        self._check_examples()
        for name, smallest in self.least.items():
            if getattr(self, name) < smallest:
                raise FieldError(name, f"is {getattr(self, name)}: use at least {smallest}.")
        if self.model is None and self.seq_len > self.transformer.n_ctx:
            raise UserError(
                f"sequences of {self.seq_len} tokens are longer than the model's context of "
                f"{self.transformer.n_ctx}: shorten them or raise transformer.n_ctx."
            )

    def _settle_positions(self) -> None:
        """What is said of a model to be trained stands in its own config, and there alone."""
        if self.positions == "auto" or not self.is_ours:
            return
        if self.model is not None:
            says = f"are given, but {self.model!r} says itself which it has: leave them out."
            raise FieldError("positions", says)
        trained = dataclasses.replace(self.transformer, positions=self.positions)
        object.__setattr__(self, "transformer", trained)
        object.__setattr__(self, "positions", "auto")

    def _check_examples(self) -> None:
        for name in _OF_EXAMPLES:
            if self.task == "text" and getattr(self, name) is not None:
                raise UserError(
                    f"the task 'text' has no {name}: name another task, or leave the {name} out."
                )
        if self.scratchpad is not None:
            object.__setattr__(self, "scratchpad", tuple(sorted(set(self.scratchpad))))
        check_lengths(self.lengths)

    @classmethod
    def like(cls: type[Config], other: "ExperimentConfig", **changes: Any) -> Config:
        """A config that asks what another asks of which model, tokens and seed.

        Args:
            other: of any experiment.
            changes: fields with other values.

        Returns:
            A config of this class.
        """
        shared = {f.name: getattr(other, f.name) for f in dataclasses.fields(ExperimentConfig)}
        return cls(**shared | changes)

    def to_dict(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        # Run folders are named for these values: those from before they existed keep their names.
        for name in _OF_EXAMPLES:
            if own[name] is None:
                del own[name]
        if own["positions"] == "auto":
            del own["positions"]
        lists = {name: list(value) for name, value in own.items() if isinstance(value, tuple)}
        return own | lists | {name: own[name].to_dict() for name in _NESTED}

    @classmethod
    def from_dict(cls: type[Config], values: Any) -> Config:
        values = nested(flat("the config", values))
        check_words(cls, values)
        for own in dataclasses.fields(cls):
            if own.name in values and own.name in _NESTED:
                assert callable(own.default_factory)
                over = partial(_over, own.default_factory(), _NESTED[own.name])
                values[own.name] = within(own.name, over, values[own.name])
        return from_mapping(cls, values, "the config")

    @classmethod
    def check_agreement(cls, given: Mapping[str, Any]) -> None:
        own, trained = (given.get(word) for word in ("positions", "transformer.positions"))
        if own not in (None, "auto") and trained not in (None, own):
            says = f"is {shown(own)}, but transformer.positions is {shown(trained)}: leave one out."
            raise FieldError("positions", says)

    @classmethod
    def read(cls: type[Config], path: Path | str) -> Config:
        """Read a TOML or JSON file, or the config.json of a run folder.

        Args:
            path: the file, in the words of the command line; a run folder's has fields alone.

        Returns:
            The config.

        Raises:
            UserError: where it cannot be read, is neither TOML nor JSON, or as `from_dict`.
        """
        values, words = cls._told(path)
        return asked(cls, None, words) if values is None else cls.from_dict(values)

    @classmethod
    def words_in(cls, path: Path | str) -> dict[str, Any]:
        """What a file says in the words of the command line.

        Args:
            path: as `read` takes it.

        Returns:
            Values by field or shorthand; none of a run folder's config.json, which has all fields,
            whatever was asked.

        Raises:
            UserError: as `read`.
        """
        return cls._told(path)[1]

    @classmethod
    def _told(cls, given: Path | str) -> tuple[Any, dict[str, Any]]:
        """The values of a run folder's config.json, or the words of another file."""
        path = given_path(given)
        text = utf8_of(path, "the config", "give a TOML or JSON one")
        try:
            in_json = path.suffix.lower() != ".toml"
            values = json.loads(text, object_pairs_hook=_once) if in_json else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            kind, else_ = ("JSON", ", or name it .toml if it is TOML") if in_json else ("TOML", "")
            raise UserError(
                f"the config {str(path)!r} is not valid {kind} ({error}): mend it there{else_}."
            ) from error
        if isinstance(values, dict) and {"config", "environment"} <= values.keys():
            return values["config"], {}
        return None, flat("the config", values)

    @property
    def is_ours(self) -> bool:
        """Whether the model is one that we train, and so a small one."""
        return self.model is None or is_own(self.model)

    @property
    def changes_scores(self) -> bool:
        """Whether something is changed inside attention, which then sees all queries at once."""
        return False

    def model_name(self) -> str:
        """The model in a form that a file name can hold.

        Returns:
            The last part of its name, or the position encoding of the model to train.
        """
        if self.model is None:
            return self.transformer.positions
        path = Path(self.model)
        # Each that a run makes is called model: the run's folder tells it from the others.
        whole = path.absolute()
        made = path.name in ("model.safetensors", "model")
        name = whole.parent.name if made else whole.name
        return file_slug(name) or "model"

    def run_name(self) -> str:
        """The readable half of the run folder's name.

        Returns:
            What a file name can hold.
        """
        return f"{self.model_name()}-{self.task}"

    @property
    def command_name(self) -> str:
        """The command of `nope-interp` that runs this."""
        return self.experiment

    def command(self) -> str:
        """The command line that runs this again, given in the run folder.

        Returns:
            One line for a shell.
        """
        options: list[str] = []
        for name in ("model", "text", "rules"):
            if getattr(self, name, None) is not None:
                options += [] if name == self.argument else [f"--{name}"]
                options.append(resolved(getattr(self, name)))
        return shlex.join(["nope-interp", self.command_name, *options, "--config", "config.json"])


def resolved(name: str) -> str:
    """The full path of what is a local file or folder; a hub name as it is."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def _over(default: TransformerConfig | TrainingConfig, what: str, values: Any) -> Any:
    """A nested config with what a file or an option leaves out as the experiment has it."""
    named = {**default.to_dict(), **values} if isinstance(values, dict) else values
    return from_mapping(type(default), named, what)


USES = ("no", "stream", "sites")
_LEAST = 8


def _thirds(sequences: Any) -> tuple[int, int]:
    """How many of all sequences are fitted on, and how many are held out."""
    if not is_whole(sequences, 3 * _LEAST):
        raise FieldError("sequences", f"is {sequences!r}: use at least {3 * _LEAST}.")
    sequences = int(sequences)
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
        uses: move position codes and take them away, to see which the model uses: no, stream
            (through the whole stream) or sites (also taken away site by site). None takes sites for
            models of ours, and stream for pretrained ones, whose every forward pass is long.
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
        return self.uses or ("sites" if self.is_ours else "stream")

    @property
    def changes_scores(self) -> bool:
        """Whether position codes are moved, one of them in the scores alone."""
        return self.code_ablation != "no"

    @property
    def n_shareable(self) -> int:
        """Sequences that shards can share."""
        return min(self.n_fit, self.n_held_out)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON, of which no key may come twice, as in TOML."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice!r} is given twice")
    return found
