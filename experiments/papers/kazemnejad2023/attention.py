"""Kazemnejad et al. 2023: whose attention does that of trained NoPE models resemble?"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.papers.answering import by_task, by_unit, enough
from experiments.papers.kazemnejad2023.presets import ENCODINGS, Learned, Preset, Runs
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.intervals import with_interval
from experiments.results.measured import Measured
from probes.heads.pattern_divergence import (
    from_mean,
    head_distances,
    jensen_shannon,
    nearest_heads,
    nearest_later_heads,
)

Distance = Callable[[Tensor, Tensor, Tensor], Tensor]

EXPLICIT = tuple(ENCODINGS)[1:]
FLOOR = "NoPE, another seed"


def _standard(p: Tensor, q: Tensor, queries: Tensor) -> Tensor:
    return nearest_heads(head_distances(p, q, queries, jensen_shannon))


def _published(p: Tensor, q: Tensor, queries: Tensor) -> Tensor:
    return nearest_later_heads(head_distances(p, q, queries, from_mean))


DISTANCES: dict[str, Distance] = {
    "Jensen-Shannon, all pairs of heads": _standard,
    "as in the paper's code": _published,
}


def similarity_findings(preset: Preset, runs: Runs, learned: Learned) -> Findings:
    """Distances between NoPE's attention and that of other models, on the same examples."""
    tasks = preset.tasks
    found = {
        form: {task: _distances(task, runs, distance) for task in tasks}
        for form, distance in DISTANCES.items()
    }
    figures = (_similarity(runs, found),)
    claims, notes = {}, []
    # NoPE's models are compared with the others' of the next seed.
    every = learned[..., 0] & np.roll(learned[..., 1:].all(axis=2), -1, axis=0)
    if enough(every):

        def nearer_to_t5(form: str) -> Measured:
            distances = by_unit(tasks, EXPLICIT, lambda *run: found[form][run[0]][run[1]].mean(1))
            return over_seeds(by_task(distances, every), _nearer_to_t5)

        claims["like-t5"], other = map(nearer_to_t5, DISTANCES)
        notes.append(
            "Nearness to T5 is measured by the Jensen-Shannon divergence over all pairs of heads. "
            "In the form of the paper's code it is "
            f"{with_interval(other.value, other.ci_low, other.ci_high)} nats. "
            "Mean over tasks, seeds and lengths, where NoPE learned under one seed and all others "
            f"under the next: {every.sum()}."
        )
    setting = f"attention compared on {preset.n_patterns} examples of each of four lengths"
    return Findings(claims, figures, setting, tuple(notes))


@figure("similarity", "length", "divergence, nats", claims=("like-t5",))
def _similarity(
    runs: Runs, found: Mapping[str, Mapping[str, Mapping[str, Array]]]
) -> Iterator[Panel]:
    """Distance from NoPE's attention.

    Mean divergence between the attention of two models on the same held-out examples, by the two
    nearest heads of each layer. It is the mean over queries, layers, examples and seeds. The
    paper's code turns the divergences round and compares a head with later ones only, as summarised
    by others. Every other model is one of the next seed, so that no two began with the same
    weights. NoPE's own next seed tells how far two models without an encoding are apart. Each two
    of them are counted once. Bars are 95% intervals over seeds. Query 0 is left out. Models that
    did not learn are among them.
    """
    for form, of_tasks in found.items():
        for task, distances in of_tasks.items():
            lengths = np.array(_pattern_lengths(runs[task, "NoPE"]))
            yield panel(f"{task}: {form}", lengths, measured=distances)


def _pattern_lengths(cell: Mapping[str, Array]) -> list[int]:
    return sorted(int(name.split("/")[1]) for name in cell if name.startswith("patterns/"))


def _distances(task: str, runs: Runs, distance: Distance) -> dict[str, Float[Array, "pair length"]]:
    """From NoPE's attention, mean over examples, for each encoding and for NoPE itself.

    Every other model is one of the next seed, and for the last seed one of the first. Models of one
    seed begin with the same weights where their encodings draw none: their attention would be alike
    for that. Pairs are as many as seeds, but for NoPE with itself where seeds are two.
    """
    nope = runs[task, "NoPE"]
    others = {
        label: {key: np.roll(values, -1, axis=0) for key, values in runs[task, name].items()}
        for label, name in [*((name, name) for name in EXPLICIT), (FLOOR, "NoPE")]
    }
    found = {
        name: np.stack(
            [_at_length(nope, other, length, distance) for length in _pattern_lengths(nope)], axis=1
        )
        for name, other in others.items()
    }
    if len(found[FLOOR]) == 2:  # each is the other's next: one pair of models, not two
        found[FLOOR] = found[FLOOR][:1]
    return found


def _at_length(
    nope: Mapping[str, Array], other: Mapping[str, Array], length: int, distance: Distance
) -> Float[Array, " seed"]:
    name = f"patterns/{length}"
    found = []
    for p, q, tokens in zip(nope[name], other[name], nope[f"tokens/{length}"], strict=True):
        at = torch.arange(p.shape[-1])
        queries = (at > 0) & (at < torch.from_numpy(tokens)[:, None])
        found.append(float(distance(torch.from_numpy(p), torch.from_numpy(q), queries).mean()))
    return np.array(found)


def _nearer_to_t5(means: Float[Array, "row explicit"]) -> Float[Array, " row"]:
    """T5's distance minus that of the nearest of the others."""
    return means[..., 0] - means[..., 1:].min(axis=-1)
