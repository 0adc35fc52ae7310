"""Drop a model's positions, recalibrate it, and read both beside the intact model.

Gelberg et al. 2025 (arXiv 2512.12167): what the drop costs, what a short training on the user's
text brings back, and how far the model then reads. The intact model is trained as long on the same
text, so that what the text's domain gives is told from what positions do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.drop.config import DropConfig
from experiments.drop.material import Material
from experiments.drop.result import FOLDERS, Drop
from experiments.drop.work import passing, read_title, step_title, work_of
from experiments.results.drop import (
    CONTROL,
    DROPPED,
    RECALIBRATED,
    Dropped,
    read_key,
    step_key,
)
from experiments.results.findings import Array
from experiments.results.measurements import INTACT
from experiments.runs.cells import Cells
from experiments.runs.finished import Made
from experiments.runs.folder import RunFolder, identity
from experiments.runs.steps import Steps
from experiments.runs.timing import seconds_a_sequence
from experiments.variants.lengths import check_has_positions, most_tokens
from experiments.variants.words import asked
from nope_interp.devices import check_device
from nope_interp.errors import FieldError, UserError
from nope_interp.memory import check_room, last_bytes, training_bytes
from nope_interp.positions.order import position_table
from nope_interp.pretrained.dropped import check_droppable, drop_positions, save_folder
from nope_interp.pretrained.load import load_plain, load_pretrained
from nope_interp.pretrained.scaled import SCALINGS, can_be_scaled, scaled_rotary
from nope_interp.pretrained.switched_off import rotary_modules
from nope_interp.training.loop import watched_steps
from nope_interp.training.recalibrate import check_parts, chosen, only_tokens, recalibrate

Load = Callable[[str], tuple[Any, Any, tuple[str, ...]]]


def drop(
    config: DropConfig | str | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
    **words: Any,
) -> Drop:
    """Drop a model's positions and recalibrate it; a killed run goes on to the same bits.

    Args:
        config: which model, how it is trained and read, or just the model.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread the model over several.
        show_progress: draw bars on standard error.
        words: values laid over `config`, by the words of the command line: `steps=100`,
            `trained=("self_attn",)`, `vocabulary="text"`.

    Returns:
        The finished run, whose `model` is the folder of the recalibrated model.

    Raises:
        UserError: for a model without rotary positions, too short a text, and an unwritable `out`.
    """
    config = asked(DropConfig, config, words)
    config.check_model()
    if device != "auto":
        check_device(device)
    return Drop.once(config, out, lambda run: _made(config, run, device, show_progress), device)


def _made(config: DropConfig, folder: RunFolder, device: str, show_progress: bool) -> Made:
    assert config.model is not None
    load = partial(_load, config, device)
    # Of a bridge, which names the parts of each layer and is gone before the model is loaded.
    layers = position_table(load_pretrained(config.model, **_where(config, device)).model)
    model, tokenizer, notes = load(config.model)
    check_droppable(model, config.model, qk_norm=config.qk_norm)
    if all(row["positions"] != "rotary" for row in layers):
        raise UserError(
            f"no layer of {config.model!r} rotates queries and keys: there is nothing to drop."
        )
    check_parts(model, config.trained)
    notes = (*notes, *_scaled_as_well(model))
    most = most_tokens(model.config)
    context = config.context or model.config.max_position_embeddings
    if most is not None and context > most:
        raise FieldError(
            "context",
            f"is {context}: {config.model!r} has positions for {most}, so give at most that.",
        )
    lengths = config.lengths_of(context, most)
    check_has_positions(model.config, max(*lengths, config.training.seq_len))
    notes = (*notes, *_not_scaled(model, context, lengths))
    material = Material.of(config, tokenizer, lengths)
    n_kinds = model.get_input_embeddings().weight.shape[0]
    material.check_known(n_kinds, config.model)
    _check_memory(config, model, max(lengths), material, n_kinds)
    with Steps("drop", show_progress) as steps:
        cells = Cells(folder.cells, steps.done)
        run = _Run(config, folder, show_progress, cells, material, lengths)
        if show_progress:
            scalings = SCALINGS if can_be_scaled(model) else ()
            tokens = material.sequences(config.training.seq_len)
            width = model.get_input_embeddings().weight.shape[1]
            seconds = seconds_a_sequence(model, tokens) / passing(tokens.shape[1], width)
            steps.plan(work_of(config, lengths, context, scalings, width), seconds)
        run.read(INTACT, model)
        run.read_scaled(model, context)
        if config.control:
            run.read(CONTROL, run.trained(CONTROL, model, tokenizer, load))
        del model  # two of them would stand in memory
        model, _, _ = load(config.model)
        drop_positions(model, qk_norm=config.qk_norm)
        run.read(DROPPED, model)
        run.read(RECALIBRATED, run.trained(RECALIBRATED, model, tokenizer, load))
    arrays = cells.gathered().arrays
    facts = {
        "model": config.model_name(),
        "layer_positions": layers,
        "lengths": list(lengths),
        "context": context,
        "begin_token": material.begin_id is not None,
        "chance": material.chance(n_kinds),
        "depths": list(material.depths),
        "setting": _setting(config, material),
        "notes": [*notes, *_notes(config, context, lengths), *_left_out(material)],
    }
    return Made(Dropped(arrays, facts).table(config.experiment, config.seed), arrays, facts)


def _scaled_as_well(model: Any) -> list[str]:
    """A sentence where the rotation also scales queries and keys, as YaRN's and LongRoPE's do."""
    found = {
        value
        for module in rotary_modules(model)
        for name, value in vars(module.rotary_emb).items()
        if name.endswith("attention_scaling")  # types of layers may have one each
    }
    return [
        f"Its rotation makes what it turns of queries and keys {factor:.3g} times as long. That is "
        "dropped with it."
        for factor in sorted(found - {1.0})
    ]


def _not_scaled(model: Any, context: int, lengths: Sequence[int]) -> list[str]:
    """A sentence where peers are missing beyond the context, whose rotation is another one."""
    if max(lengths) <= context or can_be_scaled(model):
        return []
    return [
        "Its rotary positions are of another kind than the plain one, such as scaled already. "
        "Beyond the context they are not scaled further."
    ]


def _check_memory(
    config: DropConfig, model: Any, longest: int, material: Material, n_kinds: int
) -> None:
    """Raise UserError, before anything is read, for sequences that memory cannot hold."""
    training = config.training
    asked_for = n_kinds if material.vocabulary is None else len(material.vocabulary)
    weights = sum(weight.numel() for weight in chosen(model, config.trained))
    step = partial(training_bytes, model, training.batch_size, n_kinds=asked_for, n_weights=weights)
    check_room("training.seq_len", training.seq_len, step, model)
    read = partial(
        last_bytes, model, config.batch_size, n_last=material.n_scored, n_kinds=asked_for
    )
    check_room("read_lengths", longest, read, model)


def _setting(config: DropConfig, material: Material) -> str:
    training, parts = config.training, config.trained
    which = "all parameters" if parts is None else f"parameters with {' or '.join(parts)}"
    return (
        f"{config.model_name()}, {which} trained for {training.steps} steps of "
        f"{training.batch_size} sequences of {training.seq_len} tokens. Losses are of the last "
        f"{material.n_scored} tokens of {config.n_held_out} held-out windows, the same at every "
        "length"
    )


def _notes(config: DropConfig, context: int, lengths: Sequence[int]) -> list[str]:
    notes = []
    if config.vocabulary == "text":
        notes.append("Losses are over the tokens that the text has, in training and in reading.")
    if max(lengths) <= context:
        notes.append(
            f"No length is beyond the context of {context} tokens: nothing is said of extension, "
            "and rotary positions are not scaled."
        )
    if config.n_passkeys:
        notes.append(
            "A passkey has five digits. A guesser says the whole key once in 90,000 prompts, and a "
            "single digit once in ten."
        )
    return notes


def _left_out(material: Material) -> list[str]:
    if not material.n_copied:
        return []
    return [
        f"The text repeats itself: {material.n_copied} of its held-out windows were left out. "
        "Their scored tokens share 32 or more in a row with the trained part."
    ]


@dataclass(frozen=True)
class _Run:
    """One run: its material, and where its parts are kept."""

    config: DropConfig
    folder: RunFolder
    show_progress: bool
    cells: Cells
    material: Material
    lengths: tuple[int, ...]

    def read(self, variant: str, model: Any) -> None:
        """Losses and passkeys of a variant at every length."""
        with only_tokens(model, self.material.vocabulary):
            for length in self.lengths:
                self._read(variant, model, length)

    def read_scaled(self, model: Any, context: int) -> None:
        """The same, beyond the context, for each way to scale rotary positions."""
        with only_tokens(model, self.material.vocabulary):
            for scaling in SCALINGS if can_be_scaled(model) else ():
                for length in self.lengths:
                    if length > context:
                        with scaled_rotary(model, scaling, context, length):
                            self._read(scaling, model, length)

    def trained(self, variant: str, model: Any, tokenizer: Any, load: Load) -> Any:
        """The model after its training, or as its folder keeps it."""
        folder = self.folder.path / FOLDERS[variant]
        if folder.is_dir():
            model = load(str(folder))[0]
        else:
            self._train(variant, model, folder)
            save_folder(model, tokenizer, folder)
        self._state(folder).unlink(missing_ok=True)
        for step in watched_steps(self.config.training.steps):
            # Those before the step that a training went on from have not been asked for yet.
            self.cells.arrays(step_title(variant, step), _lost)
        return model

    def _train(self, variant: str, model: Any, folder: Path) -> None:
        with only_tokens(model, self.material.vocabulary):
            recalibrate(
                model,
                self.config.training,
                self.material.trained,
                self.material.begin_id,
                parts=self.config.trained,
                header={"drop": identity(self.config), "variant": variant},
                title=f"training: {variant}",
                state_path=self._state(folder),
                watch=partial(self._watch, variant, model),
                show_progress=self.show_progress,
            )

    def _state(self, folder: Path) -> Path:
        return folder.with_name(f"{folder.name}_state.safetensors")

    def _read(self, variant: str, model: Any, length: int) -> None:
        def read() -> dict[str, Array]:
            found = self.material.read(model, length)
            return {read_key(variant, length, what): array for what, array in found.items()}

        self.cells.arrays(read_title(variant, length), read)

    def _watch(self, variant: str, model: Any, step: int) -> None:
        def losses() -> dict[str, Array]:
            found = self.material.losses(model, self.config.training.seq_len)
            return {step_key(variant, step): found}

        self.cells.arrays(step_title(variant, step), losses)


def _load(config: DropConfig, device: str, name: str) -> tuple[Any, Any, tuple[str, ...]]:
    """The model that is dropped, or a folder that this run has made."""
    where = _where(config, device)
    if name != config.model:
        where["revision"] = None
        # The config of the model without positions says so; the control's says what it said before.
        if Path(name).name == FOLDERS[RECALIBRATED]:
            where["positions"] = "auto"
    return load_plain(name, **where)


def _where(config: DropConfig, device: str) -> dict[str, Any]:
    """How the model that is dropped is loaded."""
    spread = device == "auto"
    return {
        "revision": config.revision,
        "positions": config.positions,
        "device": "cpu" if spread else device,
        "device_map": "auto" if spread else None,
    }


def _lost() -> dict[str, Array]:
    raise UserError(
        "parts of this run are missing, though their results are there: delete the run folder and "
        "run the command again."
    )
