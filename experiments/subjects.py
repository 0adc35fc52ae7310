"""The models that a comparison reads: the one in question, its twins, and their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.compare_config import CompareConfig
from experiments.run_folder import RunFolder
from experiments.train import trained_model
from nope_interp.checkpoints import bidirectional_twin, load_model
from nope_interp.errors import UserError
from nope_interp.pretrained import load_pretrained, random_twin
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import Split, TokenSource
from nope_interp.tasks.text import python_documentation, read_text
from nope_interp.transformer import HookedTransformer

_BIDIRECTIONAL_NOTE = (
    "The bidirectional twin has the trained weights without the causal mask. With no encoding it "
    "is permutation-equivariant, so on random tokens no probe can find position in it. On text, "
    "whose neighbouring tokens are alike, adjacency and seriation sit slightly above chance in it."
)


@dataclass(frozen=True)
class Subject:
    """One variant of a model, ready to be streamed, and the tokens that it is read on.

    The first source is the one that the model was made for; examples are drawn from it. `positions`
    names the encoding, or says "its own" for a pretrained model's.
    """

    name: str
    variant: str
    model: Any
    tokenizer: Any
    sources: tuple[TokenSource, ...]
    positions: str
    notes: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        return self.model.cfg.n_layers


def subjects(
    config: CompareConfig, run: RunFolder, device: str, show_progress: bool
) -> Iterator[Subject]:
    """One after the other, so that a large model and its twin need not fit in memory together."""
    if config.model is None or config.model.endswith(".safetensors"):
        yield from _own_subjects(config, run, device, show_progress)
    else:
        yield from _pretrained_subjects(config, config.model, device)


def _own_subjects(
    config: CompareConfig, run: RunFolder, device: str, show_progress: bool
) -> Iterator[Subject]:
    task = make_task(config.task, config.text)
    _check_source(task.source(), config)
    if config.model is None:
        trained = trained_model(config, run, device, show_progress)
        name = _own_name(config)
    else:
        trained, trained_on = load_model(Path(config.model))
        if trained_on != config.task:
            raise UserError(
                f"{config.model!r} was trained on {trained_on!r}: add --task {trained_on}."
            )
        name = Path(config.model).stem
    subject = Subject(
        name=name,
        variant="trained",
        model=trained.to(device),
        tokenizer=task.tokenizer,
        sources=(task.source(), task.uniform_source()),
        positions=trained.config.positions,
    )
    yield subject
    if not config.twins:
        return
    yield replace(
        subject, variant="random-init", model=HookedTransformer(trained.config).to(device)
    )
    if trained.config.causal:
        notes = (_BIDIRECTIONAL_NOTE,) if subject.positions == "none" else ()
        twin = bidirectional_twin(trained)
        yield replace(subject, variant="bidirectional", model=twin, notes=notes)


def _pretrained_subjects(config: CompareConfig, name: str, device: str) -> Iterator[Subject]:
    if config.task != "text":
        raise UserError(f"a pretrained model reads text, not {config.task!r}: leave the task out.")
    text = python_documentation() if config.text is None else read_text(Path(config.text))
    loaded = load_pretrained(name, device=device)
    text_source = loaded.text_source(text)
    _check_source(text_source, config)
    subject = Subject(
        name=Path(name).name if Path(name).exists() else name,
        variant="pretrained",
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        sources=(text_source, loaded.uniform_source()),
        positions="its own",
        notes=_notes_on_pretrained(loaded.model, config),
    )
    yield subject
    if config.twins:
        yield replace(subject, variant="random-init", model=random_twin(loaded, config.seed).model)


def _check_source(source: TokenSource, config: CompareConfig) -> None:
    """Raise UserError for too short a text before anything is trained or measured on it."""
    splits: tuple[tuple[Split, int], ...] = (("fit", config.n_fit), ("held_out", config.n_held_out))
    for split, n in splits:
        source.sequences(n, config.seq_len, begin_token=False, split=split, seed=config.seed)


def _own_name(config: CompareConfig) -> str:
    encoding = config.transformer.positions
    positions = "no positional encoding" if encoding == "none" else f"{encoding} positions"
    return f"a {config.transformer.n_layers}-layer transformer with {positions}"


def _notes_on_pretrained(model: Any, config: CompareConfig) -> tuple[str, ...]:
    notes = [
        "A pretrained model has no bidirectional twin: its attention mask is not ours to lift. Of "
        "the controls only the shuffled positions should show nothing; the random-init twin shows "
        "what the architecture gives without training.",
        "This model's own positional encoding is at work: what is read here is the encoding and "
        "the causal mask together.",
    ]
    window = getattr(model.original_model.config, "sliding_window", None)
    if window is not None and config.seq_len > window:
        notes.append(
            f"Sequences of {config.seq_len} tokens are longer than the model's attention window of "
            f"{window}: the window's edge shows position too."
        )
    limit = getattr(model.original_model.config, "max_position_embeddings", None)
    if limit is not None and config.seq_len > limit:
        raise UserError(
            f"sequences of {config.seq_len} tokens are longer than the model's context of {limit}: "
            "shorten them."
        )
    return tuple(notes)
