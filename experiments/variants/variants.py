"""The models that an experiment reads, the one in question and its variants, and their tokens."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.results.measurements import INTACT, RANDOM_INIT
from experiments.variants.checks import check_spread
from experiments.variants.config import ExperimentConfig, ProbingConfig
from experiments.variants.embedded import embedded_note, is_embedded
from experiments.variants.lengths import beyond_context
from experiments.variants.notes import notes_on_pretrained
from experiments.variants.train import task_of, trained_model, training_folder
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.files import read_text
from nope_interp.hooked_model import HookedModel
from nope_interp.memory import check_room, forward_bytes
from nope_interp.models.checkpoints import TrainedOn, as_bidirectional, load_model
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.layers import LayerPositions, layer_positions, positions_in_words
from nope_interp.positions.order import position_table
from nope_interp.pretrained.load import Pretrained, load_pretrained, reinitialized
from nope_interp.pretrained.source import is_own, name_of
from nope_interp.pretrained.spec import ModelSpec, untrained
from nope_interp.query_blocks import all_queries_at_once
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.names import TASK_NAMES
from nope_interp.tasks.registry import Task, make_task
from nope_interp.tasks.sources import Split, TokenSource
from nope_interp.tasks.text import TextTask, python_documentation

_BIDIRECTIONAL_NOTE = (
    "The bidirectional variant has the trained weights without the causal mask. Without an "
    "encoding it is permutation-equivariant, so on random tokens no probe can find position in it. "
    "On text, neighbouring tokens are alike, so adjacency and seriation lie slightly above chance."
)
_OTHER_TEXT_NOTE = (
    "This model was trained on another text than it is read on: name its own with --text."
)


@dataclass(frozen=True)
class ModelVariant:
    """One variant of a model, ready to be streamed, and the tokens that it is read on.

    The first source is the one that the model was made for; examples are drawn from it. `positions`
    names the encoding, as `positions_in_words` does; `how_read` are sentences about how its files
    were read, `notes` about what its numbers mean. `spec` makes the same model in another process.
    """

    name: str
    kind: str
    model: HookedModel = field(repr=False)
    tokenizer: Any = field(repr=False)
    sources: tuple[TokenSource, ...] = field(repr=False)
    positions: str
    spec: ModelSpec
    notes: tuple[str, ...] = ()
    how_read: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """How many layers the model has."""
        return self.model.cfg.n_layers

    def context(
        self,
        experiment: str,
        seed: int,
        begin_token: bool,
        *,
        positions: str = INTACT,
        tokens: str | None = None,
    ) -> dict[str, Any]:
        """The columns of the tidy table that are the same for all that is read of this variant.

        Args:
            experiment: its name.
            seed: of the run.
            begin_token: whether sequences start with one.
            positions: the condition that the model is read under; as it is by default.
            tokens: the name of what it is read on; by default what it was made for.

        Returns:
            Values by column.
        """
        return {
            "experiment": experiment,
            "model": self.name,
            "variant": self.kind,
            "positions": positions,
            "tokens": self.sources[0].name if tokens is None else tokens,
            "begin_token": begin_token,
            "seed": seed,
        }

    def layer_positions(self) -> tuple[LayerPositions, ...]:
        """Each layer's, of attention alone where the family is not known."""
        if self.positions == "unknown":
            return tuple(LayerPositions(layer, "unknown") for layer in range(self.n_layers))
        return layer_positions(self.model)

    def position_table(self) -> list[dict[str, Any]]:
        """Which layers have which positions, as `order.position_table` finds them; empty where that
        is not known."""
        return [] if self.positions == "unknown" else position_table(self.model)

    def encode(self, text: str) -> list[int]:
        """The model's own tokens of a text, without special ones."""
        if isinstance(self.model, HookedTransformer):
            return self.tokenizer.encode(text)
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def token_strings(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """Each token as text."""
        return [self.token_string(token) for token in tokens.tolist()]

    def token_string(self, token: int) -> str:
        """A token as text, with the space that it begins with: a decoder like Llama's strips that
        of the first token of a text, so another one stands before it, and is cut off."""
        before = self._first_token
        text: str = self.tokenizer.decode([*before, token])
        return text.removeprefix(self.tokenizer.decode(before))

    @cached_property
    def _first_token(self) -> list[int]:
        """A letter; none before our own tokenizers' tokens, which stand for themselves."""
        return [] if isinstance(self.model, HookedTransformer) else self.encode("a")[-1:]


def variant_of(
    config: ExperimentConfig,
    out: Path,
    device: str,
    show_progress: bool,
    *,
    needed: Mapping[Split, int],
    keep_history: bool = False,
) -> ModelVariant:
    """The model that `config` names, loaded, or trained first; the embedded one is trained already.

    Args:
        config: which model.
        out: the folder in which trained models have folders of their own.
        device: a torch device, or "auto" to spread a pretrained model over several.
        show_progress: draw a bar while it is trained.
        needed: how many sequences of its tokens will be read.
        keep_history: whether it is kept as it was early in its training, too.

    Returns:
        The variant, its model in evaluation mode.

    Raises:
        UserError: before anything is trained, where its text has fewer than the `needed` sequences,
            and as `trained_model` and `loaded_variant` do.
    """
    if config.model is not None:
        return loaded_variant(config, device, needed=needed)
    task = _own_task(config, device, needed)
    trained = trained_model(config, out, device, show_progress, keep_history=keep_history)
    file = training_folder(out, config).model
    variant = _own_variant(task, trained, _own_name(config), ModelSpec(str(file), device))
    return replace(variant, notes=(embedded_note(),)) if is_embedded(file) else variant


def config_of(model: str | Path, **how: str | Path | None) -> ProbingConfig:
    """The settings that a model is loaded with, where it decides the others.

    Sequences are as long as is asked later. Here they are of a length that any pretrained model
    takes, and of ours one that examples of its task fit.

    Args:
        model: as in `ProbingConfig`.
        how: more of its fields.

    Returns:
        The settings.

    Raises:
        UserError: for a damaged model of ours, and settings that fit none.
    """
    name = os.path.expanduser(name_of(model))
    asked: dict[str, Any] = {"model": name, "seq_len": ProbingConfig.least["seq_len"], **how}
    if is_own(name):
        ours, trained_on = load_model(Path(name))
        asked |= {
            "seq_len": ours.config.n_ctx,
            "task": trained_on.task,
            "lengths": trained_on.lengths,
            "scratchpad": trained_on.scratchpad,
        }
    return ProbingConfig(**asked)


def loaded_variant(
    config: ExperimentConfig, device: str, *, needed: Mapping[Split, int]
) -> ModelVariant:
    """The model that `config.model` names, loaded.

    Args:
        config: which model.
        device: a torch device, or "auto" to spread a pretrained model over several.
        needed: how many sequences of its tokens will be read.

    Returns:
        The variant, its model in evaluation mode.

    Raises:
        UserError: where it cannot be loaded, where it does not fit the task, and where the text has
            fewer than the `needed` sequences.
    """
    assert config.model is not None
    if is_own(config.model):
        return _checkpoint_variant(config, config.model, device, needed)
    return _pretrained_variant(config, config.model, device, needed)


def random_init(variant: ModelVariant, seed: int, *, draw: int = 0) -> ModelVariant:
    """The same architecture with untrained weights; each `draw` gives others, and another variant.

    Draw 0 of a model of ours has the very weights that its training began with; a pretrained
    model's are drawn by its own initialisation from `seed`.

    Args:
        variant: a model of ours or a pretrained one.
        seed: of a pretrained model's untrained weights.
        draw: which weights, from 0.

    Returns:
        The variant, on the same device.
    """
    if isinstance(variant.model, HookedTransformer):
        model: HookedModel = untrained(variant.model, draw)
    else:
        loaded = Pretrained(variant.model, variant.tokenizer, variant.name)
        model = reinitialized(loaded, seed + draw).model
    spec = replace(variant.spec, variant=RANDOM_INIT, seed=seed, draw=draw)
    kind = f"{RANDOM_INIT}, draw {draw}" if draw else RANDOM_INIT
    return replace(variant, kind=kind, model=model, notes=(), how_read=(), spec=spec)


def bidirectional(variant: ModelVariant) -> ModelVariant:
    """A model of ours with the weights it has and no causal mask."""
    notes = (_BIDIRECTIONAL_NOTE,) if variant.positions == "none" else ()
    assert isinstance(variant.model, HookedTransformer)
    model = as_bidirectional(variant.model)
    spec = replace(variant.spec, variant="bidirectional")
    return replace(variant, kind="bidirectional", model=model, notes=notes, spec=spec)


def _checkpoint_variant(
    config: ExperimentConfig, path: str, device: str, needed: Mapping[Split, int]
) -> ModelVariant:
    task = _own_task(config, device, needed)
    check_device(device)
    model, trained_on = load_model(Path(path))
    _check_options(config, path, trained_on, model.config.n_ctx)
    _check_lengths(config, task)
    _check_memory(model.to(device), config, needed)
    variant = _own_variant(task, model, config.model_name(), ModelSpec(path, device))
    other = isinstance(task, TextTask) and trained_on.text not in (None, task.digest)
    return replace(variant, notes=(_OTHER_TEXT_NOTE,)) if other else variant


def _check_options(config: ExperimentConfig, path: str, trained_on: TrainedOn, n_ctx: int) -> None:
    """Raise UserError, with all that is to be added, where a config asks for other tokens than the
    model knows, or more of them, and where lengths that it was not trained on would be read
    unasked."""
    if trained_on.task not in TASK_NAMES:
        raise UserError(
            f"the header of {path!r} names the task {trained_on.task!r}, which is none of ours: "
            "read it from Python, or give another model."
        )
    if trained_on.scratchpad is None and config.scratchpad is not None:
        raise UserError(f"{path!r} was trained without a scratchpad: leave it out.")
    known = trained_on.task
    missing = [] if known == config.task else [f"--task {known}"]
    if trained_on.scratchpad is not None and trained_on.scratchpad != config.scratchpad:
        missing.append(f"--scratchpad {','.join(trained_on.scratchpad)}")
    if trained_on.lengths is not None:
        shortest, longest = trained_on.lengths
        known += f" of lengths {shortest} to {longest}"
        missing += [f"--lengths {shortest}-{longest}"] if config.lengths is None else []
    if config.seq_len > n_ctx:
        missing.append(f"--seq-len {_known_length(config, trained_on, n_ctx)}")
    if missing:
        raise UserError(
            f"{path!r} was trained on {known}, with a context of {n_ctx} tokens: add "
            f"{' '.join(missing)}."
        )


def _known_length(config: ExperimentConfig, trained_on: TrainedOn, n_ctx: int) -> int:
    """Tokens of the longest example that a model was trained on, or the fewest that the experiment
    reads: its context may be longer, and what it does there nobody taught it."""
    trained = make_task(
        trained_on.task, lengths=trained_on.lengths, scratchpad=trained_on.scratchpad
    )
    if not isinstance(trained, AnswerTask):
        return n_ctx
    longest = trained.n_tokens(max(trained.training_lengths))
    return min(n_ctx, max(longest, config.least["seq_len"]))


def _check_lengths(config: ExperimentConfig, task: Task) -> None:
    """Raise UserError where no example of a task with answers fits the sequences."""
    if isinstance(task, AnswerTask) and not task.fitting_lengths(config.seq_len):
        shortest = min(task.training_lengths)
        needed = task.n_tokens(shortest)
        raise UserError(
            f"examples of {task.name} of length {shortest} may have up to {needed} tokens, more "
            f"than {config.seq_len}: give shorter --lengths, or --seq-len {needed}, which the "
            "model's context has to hold."
        )


def _own_task(config: ExperimentConfig, device: str, needed: Mapping[Split, int]) -> Task:
    check_spread(config, device)
    task = task_of(config)
    _check_source(task.source(), config, needed)
    return task


def _own_variant(task: Task, model: HookedTransformer, name: str, spec: ModelSpec) -> ModelVariant:
    model.tokenizer = task.tokenizer
    return ModelVariant(
        name=name,
        kind="trained",
        model=model.to(spec.device),
        tokenizer=task.tokenizer,
        sources=(task.source(), task.uniform_source()),
        positions=model.config.positions,
        spec=spec,
    )


def _pretrained_variant(
    config: ExperimentConfig, name: str, device: str, needed: Mapping[Split, int]
) -> ModelVariant:
    if config.task != "text":
        raise UserError(f"a pretrained model reads text, not {config.task!r}: leave the task out.")
    text = python_documentation() if config.text is None else read_text(config.text)
    spread = device == "auto"
    loaded = load_pretrained(
        name,
        revision=config.revision,
        dtype=config.dtype,
        positions=config.positions,
        device="cpu" if spread else device,
        device_map="auto" if spread else None,
    )
    text_source = loaded.text_source(text)
    beyond = beyond_context(loaded.model, config.seq_len)
    _check_memory(loaded.model, config, needed)
    _check_source(text_source, config, needed)
    return ModelVariant(
        name=Path(name).absolute().name if Path(name).exists() else name,
        kind="pretrained",
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        sources=(text_source, loaded.uniform_source()),
        positions=positions_in_words(loaded.model),
        spec=ModelSpec(name, device, config.revision, config.dtype, config.positions),
        notes=notes_on_pretrained(loaded.model, config.seq_len),
        how_read=(*loaded.notes, *beyond),
    )


def _check_memory(
    model: HookedModel, config: ExperimentConfig, needed: Mapping[Split, int]
) -> None:
    """Raise UserError, before anything is read, for sequences that memory cannot hold."""
    n_at_once = min(config.batch_size, max(needed.values(), default=1))
    with all_queries_at_once(model) if config.changes_scores else nullcontext():
        check_room("seq_len", config.seq_len, partial(forward_bytes, model, n_at_once), model)


def _check_source(
    source: TokenSource, config: ExperimentConfig, needed: Mapping[Split, int]
) -> None:
    """Raise UserError for too short a text before anything is trained or measured on it."""
    for split, n in needed.items():
        source.sequences(n, config.seq_len, begin_token=False, split=split, seed=config.seed)


def _own_name(config: ExperimentConfig) -> str:
    encoding = config.transformer.positions
    positions = "no positional encoding" if encoding == "none" else f"{encoding} positions"
    return f"a {config.transformer.n_layers}-layer transformer with {positions}"
