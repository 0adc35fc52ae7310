"""Which heads look at positions, which at content, and what is left of them without positions?

The model is read with its positions intact and with them taken away, its random-init twin with
them intact. Each of these cells of the run streams four kinds of tokens through the model, and is
written to disk when it is done.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from experiments.heads import rows
from experiments.heads.config import HeadsConfig
from experiments.heads.reading import HeadCell, load_cell, read_cell, read_layer, write_cell
from experiments.heads.result import INTACT, TWIN, HeadClassification
from experiments.heads.shards import read_cell_in_shards, read_layer_in_shards
from experiments.heads.tokens import HeadTokens, head_tokens
from experiments.probing.shards import Shards, check_shards, note_on, opened
from experiments.results.measurements import table, write_arrays, write_table
from experiments.runs.folder import RunFolder
from experiments.variants.variants import ModelVariant, random_init, variant_of
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.models.composition import k_composition
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.conditions import parse_condition
from nope_interp.positions.layers import (
    LayerPositions,
    describe_positions,
    layer_positions,
    rotary_frequencies,
)
from nope_interp.tasks.sources import Split, with_begin_token
from probes.heads.detectors import HeadScores, offset_chance
from probes.heads.labels import HeadLabel, dependence, label_heads

# Prompts that the report takes from the text by itself, and how many of their tokens it shows.
N_PROMPTS = 4
SHOWN_TOKENS = 64
MOST_TOKENS = 128


def classify_heads(
    config: HeadsConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    shards: int = 1,
    ray: str | None = None,
    show_progress: bool = True,
) -> HeadClassification:
    """Run the classification, or go on with one that was interrupted, or read one that is finished.

    Args:
        config: which model, what to ablate, how much to read; the default trains the embedded
            small model.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread a pretrained model over several.
        shards: into how many shares the sequences are cut, each read by a worker with a model of
            its own; see `experiments.probing.shards` for what that leaves as it is.
        ray: HOST:PORT of a running Ray cluster for the workers, of which this machine is part and
            whose machines share `out`; None has them here.
        show_progress: draw progress bars on standard error.

    Raises UserError for anything in `config` that cannot be done, an unwritable `out`, shards that
    the sequences or the device do not allow, a cluster that cannot be used, and activations that
    are not finite.
    """
    config = HeadsConfig() if config is None else config
    if not isinstance(config, HeadsConfig):
        raise UserError(f"the config is {type(config).__name__}: give a HeadsConfig.")
    if device != "auto":
        check_device(device)
    check_shards(shards, ray, n_sequences=config.n_sequences, device=device)
    _check_ablation(config)
    run = RunFolder.of(Path(out), config).begin(config)

    def make() -> None:
        with opened(shards, ray, device) as workers:
            _run(config, run, device, show_progress, workers)

    return HeadClassification.made_in(run, make)


def _run(
    config: HeadsConfig,
    run: RunFolder,
    device: str,
    show_progress: bool,
    workers: Shards | None,
) -> None:
    began = time.monotonic()
    variant = _variant(config, run, device, show_progress)
    with _ablated(variant.model, config) as ablation:
        # Entered before anything long is read, so that what cannot be ablated is known at once.
        name = None if ablation is None else ablation.name
        caveats = () if ablation is None else ablation.caveats(config.seq_len)
    positions = layer_positions(variant.model)
    tokens = head_tokens(variant, config)
    prompts = _prompts(variant, config, tokens)
    # Cells are compared resample by resample: those of other shards are of other resamples.
    folder = run.cells if workers is None else run.cells / f"{workers.n}-shards"

    def cell(
        title: str, read: ModelVariant, shown: Sequence[Tensor], ablated: bool = False
    ) -> HeadCell:
        path = folder / f"{re.sub('[^a-z0-9.]+', '-', title)}.safetensors"
        found = load_cell(path)
        if found is None:
            reader: Callable[..., HeadCell] = read_cell
            if workers is not None:
                condition = partial(_ablated, config=config) if ablated else nullcontext
                reader = partial(read_cell_in_shards, workers, read.spec, condition)
            found = reader(
                read.model,
                tokens=tokens,
                positions=_seen(positions, config) if ablated and config.lift_window else positions,
                prompts=shown,
                seed=config.seed,
                batch_size=config.batch_size,
                description=title if show_progress else None,
            )
            write_cell(found, path)
        return found

    cells = {INTACT: cell(INTACT, variant, prompts)}
    # Where the subject is untrained itself, the next draw of such weights.
    twin = random_init(variant, config.seed, draw=int(config.random_init))
    nulls = {INTACT: cell(TWIN, twin, [])}
    alone: Sequence[HeadScores] = ()
    if name is not None:
        with _ablated(variant.model, config) as ablation:
            cells[name] = cell(name, variant, prompts, ablated=True)
            ablation.verify()
        with _ablated(twin.model, config):
            nulls[name] = cell(f"{TWIN}, {name}", twin, [], ablated=True)
        alone = _one_layer_at_a_time(config, folder, variant, tokens, cells, show_progress, workers)
    labels = {
        title: label_heads(found.scores, nulls[title].scores) for title, found in cells.items()
    }
    write_arrays(_arrays(config, variant.model, cells), run.arrays)
    rows_of_run = _rows(config, variant, tokens, cells, nulls, alone, labels)
    write_table(table(rows_of_run), run.measurements)
    facts = {
        "model": variant.name,
        "positions": describe_positions(variant.model),
        "ablation": name,
        "prompts": [variant.token_strings(prompt) for prompt in prompts],
        "notes": [*note_on(workers), *_notes(tokens, cells), *caveats],
    }
    run.finish(facts, config, time.monotonic() - began)


def _check_ablation(config: HeadsConfig) -> None:
    """Refuse what cannot be ablated before anything is trained, loaded or written."""
    if config.ablate is not None:
        parse_condition(config.ablate)
    if config.model is None:
        with _ablated(HookedTransformer(config.transformer), config):
            pass


def _variant(config: HeadsConfig, run: RunFolder, device: str, show_progress: bool) -> ModelVariant:
    needed: dict[Split, int] = {"fit": config.n_sequences, "held_out": config.n_sequences}
    variant = variant_of(config, run, device, show_progress, needed=needed)
    return random_init(variant, config.seed) if config.random_init else variant


def _ablated(model: Any, config: HeadsConfig) -> AbstractContextManager[Any]:
    if config.ablate is None:
        return nullcontext()
    return ablate_positions(
        model,
        config.ablate,
        layers=config.ablate_layers,
        heads=config.ablate_heads,
        lift_window=config.lift_window,
        seed=config.seed,
    )


def _one_layer_at_a_time(
    config: HeadsConfig,
    folder: Path,
    variant: ModelVariant,
    tokens: HeadTokens,
    cells: Mapping[str, HeadCell],
    show_progress: bool,
    workers: Shards | None,
) -> list[HeadScores]:
    """Each layer's scores where it alone is ablated: what its heads themselves owe to positions.

    With the whole model ablated a head also loses what earlier heads no longer bring it. Encodings
    that are added to the embedding cannot be taken from one layer: there it is the whole model.
    """
    intact, ablated = cells.values()
    positions = layer_positions(variant.model)
    if any(layer.encoding in ("learned", "sinusoidal") for layer in positions):
        return ablated.scores
    path = folder / "alone.safetensors"
    kept = load_cell(path)
    if kept is not None:
        return kept.scores
    acts = range(len(positions)) if config.ablate_layers is None else config.ablate_layers
    scores = list(intact.scores)
    layers = [layer for layer in positions if layer.layer in acts and layer.encoding != "none"]
    bar = tqdm(layers, desc="one layer ablated", disable=not show_progress, leave=False)
    for layer in bar:
        lifted = config.lift_window and layer.window is not None
        only = replace(config, ablate_layers=(layer.layer,), lift_window=lifted)
        reader: Callable[..., HeadScores] = partial(read_layer, variant.model)
        if workers is not None:
            condition = partial(_ablated, config=only)
            reader = partial(read_layer_in_shards, workers, variant.spec, condition)
        with _ablated(variant.model, only):
            scores[layer.layer] = reader(
                replace(layer, window=None) if lifted else layer,
                tokens,
                seed=config.seed,
                batch_size=config.batch_size,
            )
    write_cell(replace(intact, scores=scores, frequencies={}, patterns=[]), path)
    return scores


def _seen(positions: Sequence[LayerPositions], config: HeadsConfig) -> list[LayerPositions]:
    """What the layers see once windows are lifted where the ablation acts."""
    acts = config.ablate_layers
    return [
        replace(layer, window=None) if acts is None or layer.layer in acts else layer
        for layer in positions
    ]


def _prompts(
    variant: ModelVariant, config: HeadsConfig, tokens: HeadTokens
) -> list[Int[Tensor, " pos"]]:
    """The user's texts, or the beginnings of the text that was read."""
    if config.prompts is None:
        return list(tokens.text[:N_PROMPTS, :SHOWN_TOKENS])
    begin_id = variant.sources[0].begin_id if tokens.start else None
    most = min(MOST_TOKENS, variant.model.cfg.n_ctx)
    encoded = []
    for prompt in config.prompts:
        ids = torch.tensor(variant.encode(prompt))
        if tokens.start:
            ids = with_begin_token(ids[None], begin_id)[0]
        if not 2 <= len(ids) <= most:
            raise UserError(f"the prompt {prompt[:40]!r} has {len(ids)} tokens: give 2 to {most}.")
        encoded.append(ids)
    return encoded


def _arrays(
    config: HeadsConfig, model: Any, cells: Mapping[str, HeadCell]
) -> dict[str, np.ndarray]:
    """What the figures draw."""
    n_tokens = cells[INTACT].scores[0].offset_profile.shape[1]
    # Windows beyond the sequences are no windows; layers that differ have no chance in common.
    windows = {min(layer.window or n_tokens, n_tokens) for layer in layer_positions(model)}
    arrays = {}
    if len(windows) == 1 and not config.lift_window:
        arrays["offset_profile/chance"] = offset_chance(n_tokens, windows.pop())
    for title, cell in cells.items():
        profiles = [layer.offset_profile for layer in cell.scores]
        arrays[f"offset_profile/{title}"] = np.stack(profiles)
        arrays |= {f"pattern/{title}/{i}": pattern for i, pattern in enumerate(cell.patterns)}
    for name, array in cells[INTACT].frequencies.items():
        arrays[f"frequency/{name}"] = array
    if cells[INTACT].frequencies:
        widest = cells[INTACT].frequencies["query_norm"].shape[-1]
        radians = np.full((len(cells[INTACT].scores), widest), np.nan)
        for layer in range(len(radians)):
            found = rotary_frequencies(model, layer)
            if found is not None:
                radians[layer, : len(found)] = found.cpu().numpy()
        arrays["frequency/radians_per_token"] = radians
    return arrays


def _rows(
    config: HeadsConfig,
    variant: ModelVariant,
    tokens: HeadTokens,
    cells: Mapping[str, HeadCell],
    nulls: Mapping[str, HeadCell],
    alone: Sequence[HeadScores],
    labels: Mapping[str, Sequence[HeadLabel]],
) -> Iterator[dict[str, Any]]:
    context = {
        "experiment": config.experiment,
        "model": variant.name,
        "variant": variant.kind,
        "positions": INTACT,
        "tokens": "",
        "begin_token": bool(tokens.start),
        "seed": config.seed,
    }
    for title, cell in cells.items():
        here = context | {"positions": title}
        yield from rows.head_rows(cell, here)
        yield from rows.label_rows(labels[title], here)
    for title, cell in nulls.items():
        yield from rows.head_rows(cell, context | {"variant": TWIN, "positions": title})
    # What is left with the head's own layer ablated, and with the whole model.
    ablated = [cell.scores for title, cell in cells.items() if title != INTACT]
    ablations = {"dependence": alone, "retention, whole model": ablated[0] if ablated else ()}
    for probe, scores in ablations.items():
        left = {
            (found.layer, found.head): dependence(
                found.label, cells[INTACT].scores[found.layer], scores[found.layer], found.head
            )
            for found in labels[INTACT]
            if scores
        }
        here = context | {"positions": list(cells)[-1]}
        yield from rows.dependence_rows(left, here, probe)
    yield from rows.edge_rows(_edges(variant.model, labels[INTACT]), context)


def _edges(model: Any, labels: Sequence[HeadLabel]) -> list[dict[str, Any]]:
    """K-composition from every previous-token head to every later induction head.

    Chance is what a tenth of the other pairs of heads of the same two layers exceed: trained
    weights lean in few directions, so that random ones are no measure of them.
    """
    if isinstance(model, HookedTransformer) and model.config.norm_placement == "post":
        return []
    writers, readers = (
        [(found.layer, found.head) for found in labels if found.label == label]
        for label in ("previous-token", "induction")
    )
    found = []
    for layer, head in writers:
        for later, to in readers:
            if layer < later:
                scores = k_composition(model, layer, later)
                others = np.delete(scores.numpy().ravel(), head * scores.shape[1] + to)
                found.append(
                    {
                        "from_layer": layer,
                        "from_head": head,
                        "to_layer": later,
                        "to_head": to,
                        "score": float(scores[head, to]),
                        "chance": float(np.quantile(others, 0.9)),
                    }
                )
    return found


def _notes(tokens: HeadTokens, cells: Mapping[str, HeadCell]) -> list[str]:
    begun = (
        "Every sequence begins with the begin token."
        if tokens.start
        else "No sequence begins with a begin token."
    )
    return [
        f"{begun} The first token is left out as a key where scores are split into offset and key "
        "token, since an attention sink is neither.",
        f"Means are over sequences of {tokens.text.shape[1]} tokens: {len(tokens.text)} of text, "
        f"{len(tokens.repeated)} of repeated random tokens, {len(tokens.copies)} of copies of one "
        f"token, {len(tokens.alphabet_held_out)} of a small alphabet beside as many to fit on.",
        "Whether a head depends on positions is judged with its own layer ablated and the rest "
        "intact; the labels and scores beside it are those of the whole model ablated.",
        "K-composition is computed from the weights alone: a rotation between the two heads, and "
        "norms of queries and keys, are left out.",
    ]
