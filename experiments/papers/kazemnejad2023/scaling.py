"""Does sharper attention let NoPE go further (Wang et al. 2024, arXiv 2404.12224)?"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.answering import by_task, enough
from experiments.papers.kazemnejad2023.presets import Nope, Preset, by_length
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel

SCALINGS = {
    "none": "as trained",
    "uniform": "one factor",
    "heads": "a factor for each head",
    "control": "for each head, from training lengths",
}


def scaling_findings(preset: Preset, nope: Nope, learned: Bool[Array, "seed task"]) -> Findings:
    """What factors on NoPE's attention scores bring; `learned` says which models count."""
    figures = (_accuracy(preset, nope), _entropy(preset, nope))
    setting = f"factors on NoPE's scores chosen on {preset.n_read} examples of each length"
    if not enough(learned):
        return Findings({}, figures, setting)

    def over_tasks(read: Callable[[str], Float[Array, " seed"]]) -> Float[Array, " task"]:
        return by_task(np.stack([read(task) for task in preset.tasks], axis=1), learned)

    def gain(scaling: str, part: str) -> Float[Array, " task"]:
        """Of accuracy, over the lengths up to the longest tuned on ("tuned"), longer, or all."""

        def of(task: str) -> Float[Array, " seed"]:
            cell = nope[task]
            longer = np.array(preset.task(task).test_lengths) > cell["tuned_length"][0]
            chosen = {"tuned": ~longer, "longer": longer, "all": longer | ~longer}[part]
            more = cell[f"{scaling}/beyond"] - cell["none/beyond"]
            return more[:, chosen].mean(axis=1)

        return over_tasks(of)

    def dispersion(task: str) -> Float[Array, " seed"]:
        """How much less the entropy lacks of uniform attention's at the last test length than at
        the last training length, nats."""
        return dispersed(nope[task], len(preset.task(task).training_lengths) - 1)

    told = [
        f"{SCALINGS[scaling]} {gain(scaling, 'tuned').mean():+.3f} and "
        f"{gain(scaling, 'longer').mean():+.3f}"
        for scaling in ("uniform", "heads", "control")
    ]
    return Findings(
        {
            "dispersed": over_seeds(over_tasks(dispersion)),
            "uniform-scale": over_seeds(gain("uniform", "all")),
            "head-scale": over_seeds(gain("heads", "all")),
        },
        figures,
        setting,
        (
            "Factors on attention scores are chosen on examples of the shorter half of the test "
            "lengths, none of which is a test example. Mean change of accuracy at these lengths "
            f"and at longer ones: {'; '.join(told)}. {learned.sum()} NoPE models that learned, "
            "tasks weighted alike.",
        ),
    )


def dispersed(cell: Mapping[str, Array], before: int) -> Float[Array, " seed"]:
    """How much less the entropy of attention lacks of uniform attention's at the last length than
    at an earlier one.

    The difference, not the share: attention whose scores do not change with length lacks as many
    nats of the logarithm at any, and a share of it that falls.

    Args:
        cell: what was read of NoPE models on one task.
        before: which of its lengths is the earlier one.

    Returns:
        Nats, mean over layers and heads, for each seed.
    """
    lacks = _lacks(cell, "none")
    return lacks[:, before] - lacks[:, -1]


def _lacks(cell: Mapping[str, Array], scaling: str) -> Float[Array, "seed length"]:
    """The entropy of uniform attention less the mean over layers and heads, nats."""
    return np.asarray(cell["most"] - cell[f"{scaling}/entropy"].mean(axis=(2, 3)))


@figure(
    "scaling",
    "length",
    "accuracy",
    shares=True,
    claims=("uniform-scale", "head-scale"),
    shaded=lambda preset, nope: preset.lengths,
)
def _accuracy(preset: Preset, nope: Nope) -> Iterator[Panel]:
    """NoPE with its attention scores multiplied.

    Share of held-out examples answered exactly. One factor is chosen by exact answers, one for each
    head by gradient descent with frozen weights. Both are chosen on other examples of the shorter
    half of the lengths beyond. The control's are chosen on as many examples of the longest training
    lengths. Models that did not learn are among them.
    """
    for task, cell in nope.items():
        title = f"{task}, tuned up to {cell['tuned_length'][0]}"
        curves = {name: by_length(cell, f"{key}/") for key, name in SCALINGS.items()}
        yield panel(title, preset.all_lengths(task), measured=curves)


@figure(
    "entropy",
    "length",
    "entropy below the most possible, nats",
    claims=("dispersed",),
    shaded=lambda preset, nope: preset.lengths,
)
def _entropy(preset: Preset, nope: Nope) -> Iterator[Panel]:
    """How dispersed NoPE's attention is.

    How much less the mean entropy of attention over queries, layers and heads is than that of
    attention that is equal on all tokens seen. Where it falls, attention disperses. Query 0 is left
    out. Models that did not learn are among them.
    """
    for task, cell in nope.items():
        lacks = {name: _lacks(cell, key) for key, name in SCALINGS.items()}
        lengths = preset.all_lengths(task)
        yield panel(task, lengths, chance={"uniform attention": 0}, measured=lacks)
