"""Which heads look at positions, which at content, and what is left of them without positions?

The model is read with its positions intact and with them taken away, its random-init twin with
them intact. Each of these cells of the run streams four kinds of tokens through the model, and is
written to disk when it is done.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from experiments import head_rows as rows
from experiments.example import example_strings
from experiments.finished_run import FinishedRun
from experiments.head_cells import HeadCell, load_cell, read_cell, write_cell
from experiments.head_summary import headline, markdown_table
from experiments.head_tokens import HeadTokens, head_tokens
from experiments.heads_config import HeadsConfig
from experiments.measurements import table, write_arrays, write_table
from experiments.run_folder import RunFolder, fingerprints
from experiments.subjects import Subject, random_init, subject_of
from nope_interp.ablation import ablate_positions
from nope_interp.composition import k_composition
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.layer_positions import (
    LayerPositions,
    describe_positions,
    layer_positions,
    rotary_frequencies,
)
from nope_interp.tasks.sources import Split, with_begin_token
from probes.head_labels import RULES, Dependence, HeadLabel, classify, dependence
from probes.heads import offset_chance

INTACT = "intact"
TWIN = "random-init twin"

# Prompts that the report takes from the text by itself, and how many of their tokens it shows.
N_PROMPTS = 4
SHOWN_TOKENS = 64
MOST_TOKENS = 128


@dataclass(frozen=True)
class HeadClassification(FinishedRun):
    """A finished classification: every head's label and numbers, and the page that shows them."""

    experiment: ClassVar[str] = "heads"
    needs_info: ClassVar[Set[str]] = frozenset(
        {"model", "positions", "ablation", "notes", "prompts", "config", "command"}
    )

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each head: label, confidence, p-values, every score, and what the ablation
        leaves of it."""
        return rows.heads_table(self.measurements, self.info["ablation"])

    @property
    def headline(self) -> str:
        """How many heads of each kind there are, what the ablation leaves, and what it costs."""
        return headline(self.heads, rows.losses(self.measurements), self.info)

    def markdown(self) -> str:
        """The table of heads as a Markdown table: labels, confidence, and what is left of them."""
        shown = ["layer", "head", "label", "confidence", "q_value", "runner_up"]
        if self.info["ablation"]:
            shown += ["dependence", "retention", "ablated_label"]
        return markdown_table(self.heads[shown])

    def html(self) -> str:
        """The report: one page that needs no network."""
        from experiments.report.heads_data import HeadsReportData
        from experiments.report.heads_page import render_heads

        conditions = ["intact", *([self.info["ablation"]] if self.info["ablation"] else [])]
        prompts = self.info["prompts"]
        measurements = self.measurements
        return render_heads(
            HeadsReportData(
                title=f"The attention heads of {self.info['model']}",
                headline=self.headline,
                measurements=measurements,
                heads=self.heads,
                metrics=rows.head_metrics(measurements),
                conditions=conditions,
                losses=[r for r in rows.losses(measurements) if r["variant"] != TWIN],
                offset_profiles={
                    c: self.arrays[f"offset_profile/{c}"]
                    for c in (*conditions, "chance")
                    if f"offset_profile/{c}" in self.arrays
                },
                frequencies=self._frequencies(),
                prompts=prompts,
                patterns={
                    c: [self.arrays[f"pattern/{c}/{i}"] for i in range(len(prompts))]
                    for c in conditions
                },
                edges=rows.edges(measurements),
                rules=[
                    {
                        "label": rule.label,
                        "rule": f"{rule.condition}: {rule.says}",
                        "nulls": ", ".join(rule.nulls) or "its own threshold",
                    }
                    for rule in RULES
                ],
                info=self.info,
            )
        )

    def _frequencies(self) -> dict[str, np.ndarray] | None:
        names = ("radians_per_token", "query_norm", "key_norm")
        found = {name: self.arrays.get(f"frequency/{name}") for name in names}
        return None if found["query_norm"] is None else found  # type: ignore[return-value]


def classify_heads(
    config: HeadsConfig | None = None,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
) -> HeadClassification:
    """Run the classification, or go on with one that was interrupted, or read one that is finished.

    Args:
        config: which model, what to ablate, how much to read; the default trains the embedded
            small model.
        out: the folder that run folders are made in.
        device: a torch device, or "auto" to spread a pretrained model over several.
        show_progress: draw progress bars on standard error.

    Raises UserError for anything in `config` that cannot be done, an unwritable `out`, and
    activations that are not finite.
    """
    config = HeadsConfig() if config is None else config
    if not isinstance(config, HeadsConfig):
        raise UserError(f"the config is {type(config).__name__}: give a HeadsConfig.")
    if device != "auto":
        check_device(device)
    values = config.to_dict()
    identity = values | {"fingerprints": fingerprints(config.model, config.text)}
    run = RunFolder.create(Path(out), config.run_name(), values, identity)
    with run.locked():
        if not run.finished:
            _run(config, run, device, show_progress)
    found = HeadClassification.load(run.path)
    # Drawn every time: a page that was cut short, or that an older version drew, heals itself.
    found.write_report()
    return found


def _run(config: HeadsConfig, run: RunFolder, device: str, show_progress: bool) -> None:
    began = time.monotonic()
    subject = _subject(config, run, device, show_progress)
    with _ablated(subject.model, config) as ablation:
        # Entered before anything long is run, so that what cannot be ablated is known at once.
        name = None if ablation is None else ablation.name
        caveats = () if ablation is None else ablation.caveats(config.seq_len)
    positions = layer_positions(subject.model)
    tokens = head_tokens(subject, config)
    prompts = _prompts(subject, config, tokens)
    read = partial(
        read_cell,
        tokens=tokens,
        seed=config.seed,
        batch_size=config.batch_size,
    )

    def cell(title: str, model: Any, shown: Sequence[Tensor], lifted: bool = False) -> HeadCell:
        path = run.cells / f"{re.sub('[^a-z0-9.]+', '-', title)}.safetensors"
        found = load_cell(path)
        if found is None:
            found = read(
                model,
                positions=_seen(positions, config) if lifted else positions,
                prompts=shown,
                description=title if show_progress else None,
            )
            write_cell(found, path)
        return found

    cells = {INTACT: cell(INTACT, subject.model, prompts)}
    if name is not None:
        with _ablated(subject.model, config) as ablation:
            cells[name] = cell(name, subject.model, prompts, lifted=config.lift_window)
            ablation.verify()
    # Where the subject is untrained itself, the next draw of such weights.
    twin = random_init(subject, config.seed, draw=int(config.random_init))
    null = cell(TWIN, twin.model, [])
    labels = {title: classify(found.scores, null.scores) for title, found in cells.items()}
    write_arrays(_arrays(subject.model, cells), run.arrays)
    write_table(table(_rows(config, subject, tokens, cells, null, labels)), run.measurements)
    facts = {
        "model": subject.name,
        "positions": describe_positions(subject.model),
        "ablation": name,
        "prompts": [example_strings(subject, prompt) for prompt in prompts],
        "notes": [*_notes(tokens, cells), *caveats],
    }
    run.finish(facts, config, time.monotonic() - began)


def _subject(config: HeadsConfig, run: RunFolder, device: str, show_progress: bool) -> Subject:
    needed: dict[Split, int] = {"held_out": config.n_sequences}
    subject = subject_of(config, run, device, show_progress, needed=needed)
    return random_init(subject, config.seed) if config.random_init else subject


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


def _seen(positions: Sequence[LayerPositions], config: HeadsConfig) -> list[LayerPositions]:
    """What the layers see once windows are lifted where the ablation acts."""
    acts = config.ablate_layers
    return [
        replace(layer, window=None) if acts is None or layer.layer in acts else layer
        for layer in positions
    ]


def _prompts(
    subject: Subject, config: HeadsConfig, tokens: HeadTokens
) -> list[Int[Tensor, " pos"]]:
    """The user's texts, or the beginnings of the text that was read."""
    if config.prompts is None:
        return list(tokens.text[:N_PROMPTS, :SHOWN_TOKENS])
    begin_id = subject.sources[0].begin_id if tokens.start else None
    most = min(MOST_TOKENS, subject.model.cfg.n_ctx)
    encoded = []
    for prompt in config.prompts:
        ids = torch.tensor(subject.encode(prompt))
        if tokens.start:
            ids = with_begin_token(ids[None], begin_id)[0]
        if not 2 <= len(ids) <= most:
            raise UserError(f"the prompt {prompt[:40]!r} has {len(ids)} tokens: give 2 to {most}.")
        encoded.append(ids)
    return encoded


def _arrays(model: Any, cells: Mapping[str, HeadCell]) -> dict[str, np.ndarray]:
    """What the figures draw."""
    n_tokens = cells[INTACT].scores[0].offset_profile.shape[1]
    # Windows beyond the sequences are no windows; layers that differ have no chance in common.
    windows = {min(layer.window or n_tokens, n_tokens) for layer in layer_positions(model)}
    arrays = {}
    if len(windows) == 1:
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
    subject: Subject,
    tokens: HeadTokens,
    cells: Mapping[str, HeadCell],
    null: HeadCell,
    labels: Mapping[str, Sequence[HeadLabel]],
) -> Iterator[dict[str, Any]]:
    context = {
        "experiment": config.experiment,
        "model": subject.name,
        "variant": subject.variant,
        "positions": INTACT,
        "tokens": "",
        "begin_token": bool(tokens.start),
        "seed": config.seed,
    }
    for title, cell in cells.items():
        here = context | {"positions": title}
        yield from rows.head_rows(cell, here)
        yield from rows.label_rows(labels[title], here)
    yield from rows.head_rows(null, context | {"variant": TWIN})
    for title, cell in cells.items():
        if title != INTACT:
            left = {
                (found.layer, found.head): _dependence(found, cells[INTACT], cell)
                for found in labels[INTACT]
            }
            yield from rows.dependence_rows(left, context | {"positions": title})
    yield from rows.edge_rows(_edges(subject.model, labels[INTACT]), context)


def _dependence(found: HeadLabel, intact: HeadCell, ablated: HeadCell) -> Dependence:
    before, after = intact.scores[found.layer], ablated.scores[found.layer]
    return dependence(found.label, before, after, found.head)


def _edges(model: Any, labels: Sequence[HeadLabel]) -> list[dict[str, Any]]:
    """K-composition from every previous-token head to every later induction head.

    Chance is the mean over all pairs of heads of the same two layers: trained weights lean in few
    directions, which lowers the score of every pair below that of random weights.
    """
    writers, readers = (
        [(found.layer, found.head) for found in labels if found.label == label]
        for label in ("previous-token", "induction")
    )
    found = []
    for layer, later in sorted({(a, b) for a, _ in writers for b, _ in readers if a < b}):
        scores = k_composition(model, layer, later)
        chance = float(scores.mean())
        found += [
            {
                "from_layer": layer,
                "from_head": head,
                "to_layer": later,
                "to_head": to,
                "score": float(scores[head, to]),
                "chance": chance,
            }
            for at, head in writers
            for to_at, to in readers
            if (at, to_at) == (layer, later)
        ]
    return found


def _notes(tokens: HeadTokens, cells: Mapping[str, HeadCell]) -> list[str]:
    begun = (
        "Every sequence begins with the begin token, which is left out as a key where scores are "
        "split into offset and key token."
        if tokens.start
        else "No sequence begins with a begin token."
    )
    return [
        begun,
        f"Means are over sequences of {tokens.text.shape[1]} tokens: {len(tokens.text)} of text, "
        f"{len(tokens.repeated)} of repeated random tokens, {len(tokens.copies)} of copies of one "
        f"token, {len(tokens.alphabet_held_out)} of a small alphabet beside as many to fit on.",
        "K-composition is computed from the weights alone: a rotation between the two heads, and "
        "norms of queries and keys, are left out.",
    ]
