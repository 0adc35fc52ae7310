"""Zuo et al. 2025, their four tasks: is the pattern still there in models that have learned?"""

from collections.abc import Mapping
from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from experiments.reproduce.answering import LEARNED, Sizes, accuracies, trained_to_answer
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.findings import (
    Array,
    Cells,
    Figure,
    Findings,
    Panel,
    curve,
    line,
    over_seeds,
)
from nope_interp.checkpoints import bidirectional_twin
from nope_interp.sites import hook_name
from nope_interp.streams import Listener, stream
from nope_interp.tasks.answers import dataset
from nope_interp.tasks.registry import make_answer_task
from nope_interp.transformer import HookedTransformer
from probes.similarity import adjacency_a, cosine_similarity

# The lengths that each task is trained on: three digits, or words of up to eight letters.
TASKS = {
    "zuo-addition": range(3, 4),
    "reversal": range(2, 9),
    "indexing": range(2, 9),
    "ordering": range(2, 9),
}
_SCORED = 200  # held-out examples of each length
_READ = 64  # held-out sequences whose rows are compared


PRESETS = {
    "tiny": Sizes(
        model={"n_layers": 4, "d_model": 64, "n_heads": 4},
        training={"batch_size": 64, "learning_rate": 2e-3, "weight_decay": 0.05},
        steps=2500,
    ),
}


def trained_findings(config: ReproduceConfig, sizes: Sizes, cells: Cells) -> Findings:
    """Adjacency and variance in trained models, beside what they were before training."""
    steps = config.scaled("training", sizes.steps)
    found = {
        task: cells.per_seed(task, config.seeds, partial(_trained, sizes, task, steps))
        for task in TASKS
    }
    learned = {task: cell["accuracy"] >= LEARNED for task, cell in found.items()}
    by_task = {
        task: over_seeds(cell["adjacency_trained"][learned[task]], lambda means: means.min(axis=-1))
        for task, cell in found.items()
        if learned[task].sum() > 1  # for an interval
    }
    claims = {}
    if len(by_task) > 1:
        claims["trained"] = min(by_task.values(), key=lambda measured: measured.ci_low)
    lacking = [
        f"{task}: {(~of_task).sum()} of {len(of_task)} models"
        for task, of_task in learned.items()
        if not of_task.all()
    ]
    return Findings(
        claims,
        (_adjacency(found), _variance(found), _accuracy(found)),
        setting=f"{len(config.seeds)} models of {sizes.model['n_layers']} layers and width "
        f"{sizes.model['d_model']} trained on each of {len(TASKS)} tasks for {steps} steps",
        notes=(
            f"Trained models that answer fewer than {LEARNED:g} of held-out prompts exactly are "
            f"left out of the claim: {'; '.join(lacking) or 'none'}. The claim is on the task "
            "where the number is lowest, of those that two models or more have learned: "
            f"{', '.join(by_task) or 'none'}.",
            "Task formats are our reading of the tasks' names, which are recalled.",
        ),
    )


def _trained(sizes: Sizes, name: str, steps: int, seed: int) -> dict[str, Array]:
    """Accuracy, and scores after every block, of a model before and after training."""
    task = make_answer_task(name, training_lengths=TASKS[name], test_lengths=())
    model = trained_to_answer(task, sizes, steps=steps, seed=seed)
    accuracy = accuracies(model, task, _SCORED, "validation", seed).mean()
    longest = max(TASKS[name])
    read_on = dataset(task, _READ, split="validation", seed=seed, lengths=[longest])[longest]
    tokens = read_on.tokens[:, : int(read_on.length.min())]  # no padding
    twins = {
        "random": HookedTransformer(model.config),
        "trained": model,
        "unmasked": bidirectional_twin(model),
    }
    read = {kind: _read(twin, tokens) for kind, twin in twins.items()}
    return {"accuracy": np.array(accuracy)} | {
        f"{what}_{kind}": values for kind, scores in read.items() for what, values in scores.items()
    }


def _read(model: HookedTransformer, tokens: Tensor) -> dict[str, Array]:
    """Adjacency A by block; mean variance of a row by block and position. Position 0, the begin
    token's, is left out."""
    adjacency: list[Array] = []
    variance: list[Array] = []

    def listen(activations: Tensor) -> None:
        rows = activations[:, 1:]
        adjacency.append(adjacency_a(cosine_similarity(rows)).mean().numpy())
        variance.append(rows.var(dim=-1).mean(dim=0).double().numpy())

    blocks = range(model.config.n_layers)
    listeners: dict[str, Listener] = {hook_name(b, "resid_post"): listen for b in blocks}
    stream(model, tokens, listeners, batch_size=len(tokens))
    return {"adjacency": np.stack(adjacency), "variance": np.stack(variance)}


def _adjacency(found: Mapping[str, Mapping[str, Array]]) -> Figure:
    panels = []
    for task, cell in found.items():
        layers = np.arange(cell["adjacency_trained"].shape[1])
        series = (
            line("no pattern", "chance", layers, 0.5),
            curve("trained", "measured", layers, cell["adjacency_trained"]),
            curve("before training", "measured", layers, cell["adjacency_random"]),
            curve("without the causal mask", "measured", layers, cell["adjacency_unmasked"]),
        )
        panels.append(Panel(task, series))
    return Figure(
        "trained",
        "Adjacency in trained models",
        "Adjacency A after each block, on held-out examples, position 0 left out. Prompts and "
        "answers have a structure of their own: the trained weights without the causal mask show "
        "what that gives.",
        "layer",
        "adjacency A",
        tuple(panels),
        claims=("trained",),
    )


def _variance(found: Mapping[str, Mapping[str, Array]]) -> Figure:
    panels = []
    for task, cell in found.items():
        variance = cell["variance_trained"]
        position = np.arange(1, variance.shape[2] + 1)
        series = [
            curve(f"layer {layer}", "measured", position, variance[:, layer])
            for layer in range(variance.shape[1])
        ]
        panels.append(Panel(task, tuple(series)))
    return Figure(
        "trained-variance",
        "Variance in trained models",
        "Variance of the components of a row, by position and layer: the other account.",
        "position",
        "variance of a row",
        tuple(panels),
        claims=("trained",),
        log="xy",
    )


def _accuracy(found: Mapping[str, Mapping[str, Array]]) -> Figure:
    at = np.arange(len(found))
    accuracy: Float[Array, "seed task"] = np.stack(
        [cell["accuracy"] for cell in found.values()], axis=1
    )
    return Figure(
        "trained-accuracy",
        "What the models have learned",
        "Share of held-out prompts of the training lengths that are answered exactly; dashed: from "
        "where on a model counts as trained.",
        "task",
        "accuracy",
        (
            Panel(
                "held-out prompts",
                (
                    line("learned", "reference", at, LEARNED),
                    curve("trained", "measured", at, accuracy),
                ),
            ),
        ),
        claims=("trained",),
        ticks=tuple(found),
    )
