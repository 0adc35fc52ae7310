"""Zuo et al. 2025: the same tasks without the causal mask, the control that fails.

All models fill in their answers at blanks, so that none sees what it is asked for: causal ones and
bidirectional ones from the same initial weights, on the same batches; and a bidirectional one with
learned positions, to see whether the format can be learned without the mask.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from experiments.papers.answering import LEARNED, trained_to_answer
from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.presets import Preset
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.models.config import Positions
from nope_interp.tasks.answers import AnswerTask
from nope_interp.tasks.dataset import dataset
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.exact_match import exact_matches

_GUESSED_FROM = 2000  # training examples of each length, whose commonest answer is guessed

_CAUSAL, _BIDIRECTIONAL, _WITH_POSITIONS = "causal", "bidirectional", "learned positions"
# Whether the model has the causal mask, its positions, and the name of its curve.
_KINDS: dict[str, tuple[bool, Positions, str]] = {
    _CAUSAL: (True, "none", "with the causal mask"),
    _BIDIRECTIONAL: (False, "none", "without it"),
    _WITH_POSITIONS: (False, "learned", "without it, with learned positions"),
}

# Arrays by kind of model; seeds along the first axis, and tasks along the second.
Found = Mapping[str, Mapping[str, Float[Array, "seed task"]]]


def control_findings(
    config: ReproduceConfig, preset: Preset, cells: Cells, device: str
) -> Findings:
    """What models with and without the causal mask learn of the tasks."""
    steps = config.scaled("training", preset.control_steps)
    of_run = preset.seeds(config.seeds)
    tasks = tuple(preset.lengths)
    found: dict[str, dict[str, Float[Array, "seed task"]]] = {}
    for kinds, seeds in (((_CAUSAL, _BIDIRECTIONAL), of_run), ((_WITH_POSITIONS,), of_run[:1])):
        filled_in = cells.side_by_side(
            {
                (task, kind): partial(_filled_in, preset, task, kind, steps, device)
                for task in tasks
                for kind in kinds
            },
            seeds,
            title=lambda run: "{} filled in, {}".format(*run),
        )
        for kind in kinds:
            every = [filled_in[task, kind] for task in tasks]
            found[kind] = {what: np.stack([c[what] for c in every], axis=1) for what in every[0]}
    accuracy = found[_CAUSAL]["accuracy"]
    # Without the mask, with it, and by guessing.
    numbers = np.stack(
        [found[_BIDIRECTIONAL]["accuracy"], accuracy, found[_CAUSAL]["guess"]], axis=2
    )
    shares = {
        task: over_seeds(of_task[learned], share_left)
        for task, of_task, learned in zip(
            tasks, numbers.swapaxes(0, 1), accuracy.T >= LEARNED, strict=True
        )
        if learned.sum() > 1  # for an interval
    }
    claims = {}
    if shares:
        claims["bidirectional-fails"] = max(shares.values(), key=lambda share: share.ci_high)
    [with_positions] = found[_WITH_POSITIONS]["accuracy"]
    told = (f"{a:.0%} right on {task}" for task, a in zip(tasks, with_positions, strict=True))
    return Findings(
        claims,
        (_control(tasks, found),),
        setting=f"{len(of_run)} models with and without the causal mask that fill in their "
        f"answers, for each task and {steps} steps",
        notes=(
            "Tasks that two models or more with the causal mask have learned to fill in, on which "
            f"those without it are judged: {', '.join(shares) or 'none'}. Without the mask, but "
            f"with learned positions, one model of each was trained: {', '.join(told)}.",
        ),
    )


def _filled_in(
    preset: Preset, name: str, kind: str, steps: int, device: str, seed: int
) -> dict[str, Array]:
    """Accuracy at the blanks of held-out prompts, and what can be had without order."""
    task = preset.task(name)
    masking = AnswerMasking.of(task)
    causal, positions, _ = _KINDS[kind]
    model = trained_to_answer(
        task,
        replace(preset.sizes, model={**preset.sizes.model, "causal": causal}),
        steps=steps,
        seed=seed,
        positions=positions,
        masking=masking,
        device=device,
    )
    held_out = dataset(task, preset.n_filled, split="validation", seed=seed).values()
    right = [
        float(exact_matches(model, some, masking=masking).double().mean()) for some in held_out
    ]
    return {"accuracy": np.array(np.mean(right)), **without_order(task, preset.n_filled, seed)}


def without_order(task: AnswerTask, n_scored: int, seed: int) -> dict[str, Array]:
    """Shares of held-out prompts, mean over training lengths.

    * guess: whose answer is the commonest one of that length in training: chance.
    * alike: whose answer is one token throughout: no model whose blanks are all alike is right more
      often.
    """
    drawn = dataset(task, _GUESSED_FROM, split="train", seed=seed)
    held_out = dataset(task, n_scored, split="validation", seed=seed)
    guessed, alike = [], []
    for length, examples in held_out.items():
        [(commonest, _)] = Counter(answer for _, answer in task.text(drawn[length])).most_common(1)
        answers = [answer for _, answer in task.text(examples)]
        guessed.append(np.mean([answer == commonest for answer in answers]))
        alike.append(np.mean([len(set(answer)) == 1 for answer in answers]))
    return {"guess": np.array(np.mean(guessed)), "alike": np.array(np.mean(alike))}


def share_left(means: Float[Array, "row 3"]) -> Float[Array, " row"]:
    """Accuracy above chance without the mask, as a share of that with it."""
    without, with_mask, chance = means.T
    return (without - chance) / (with_mask - chance)


@figure(
    "control", "task", "accuracy", claims=("bidirectional-fails",), ticks=lambda tasks, found: tasks
)
def _control(tasks: tuple[str, ...], found: Found) -> Iterator[Panel]:
    """The tasks without the causal mask.

    Share of held-out prompts of the training lengths whose answers are filled in exactly. Without
    mask and positions all blanks of a prompt are alike, and its order is not seen. No more can be
    right than have answers of one token throughout.
    """
    causal, bidirectional, with_positions = (found[kind]["accuracy"] for kind in _KINDS)
    curves = causal, bidirectional, with_positions[0]
    yield panel(
        "held-out prompts",
        np.arange(len(tasks)),
        chance={"commonest answer": found[_CAUSAL]["guess"]},
        reference={"answers of one token throughout": found[_CAUSAL]["alike"]},
        measured={name: curve for (*_, name), curve in zip(_KINDS.values(), curves, strict=True)},
    )
