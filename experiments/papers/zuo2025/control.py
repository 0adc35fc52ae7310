"""Zuo et al. 2025: the same tasks without the causal mask, the control that fails.

All models fill in their answers at blanks, so that none sees what it is asked for: causal ones and
bidirectional ones from the same initial weights, on the same batches; and a bidirectional one with
learned positions, to see whether the format can be learned without the mask.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from experiments.papers.answering import LEARNED, trained_to_answer
from experiments.papers.config import ReproduceConfig
from experiments.papers.zuo2025.presets import Preset
from experiments.results.findings import (
    Array,
    Figure,
    Findings,
    Panel,
    Series,
    curve,
    line,
    over_seeds,
)
from experiments.runs.cells import Cells
from nope_interp.models.config import Positions
from nope_interp.tasks.answers import AnswerTask, dataset
from nope_interp.training.answer_masking import AnswerMasking
from nope_interp.training.exact_match import exact_matches

_GUESSED_FROM = 2000  # training examples of each length, whose commonest answer is guessed


class _Kind(NamedTuple):
    title: str
    causal: bool
    positions: Positions


_CAUSAL = "causal"
_BIDIRECTIONAL = "bidirectional"
_WITH_POSITIONS = "learned positions"
_KINDS = {
    _CAUSAL: _Kind("with the causal mask", True, "none"),
    _BIDIRECTIONAL: _Kind("without it", False, "none"),
    _WITH_POSITIONS: _Kind("without it, with learned positions", False, "learned"),
}

# Arrays of each task, by kind of model; seeds along the first axis.
Found = Mapping[str, Mapping[str, Mapping[str, Array]]]


def control_findings(
    config: ReproduceConfig, preset: Preset, cells: Cells, device: str
) -> Findings:
    """What models with and without the causal mask learn of the tasks."""
    steps = config.scaled("training", preset.control_steps)
    of_run = preset.seeds(config.seeds)
    found: dict[str, dict[str, Mapping[str, Array]]] = {task: {} for task in preset.lengths}
    for kinds, seeds in (
        ((_CAUSAL, _BIDIRECTIONAL), of_run),
        ((_WITH_POSITIONS,), of_run[:1]),
    ):
        places = [(task, kind) for task in preset.lengths for kind in kinds]
        cells_of = cells.side_by_side(
            {
                _title(*place): partial(_filled_in, preset, *place, steps, device)
                for place in places
            },
            seeds,
        )
        for task, kind in places:
            found[task][kind] = cells_of[_title(task, kind)]
    learned = {task: of_task[_CAUSAL]["accuracy"] >= LEARNED for task, of_task in found.items()}
    shares = {
        task: over_seeds(_accuracies(of_task)[learned[task]], share_left)
        for task, of_task in found.items()
        if learned[task].sum() > 1  # for an interval
    }
    claims = {}
    if shares:
        claims["bidirectional-fails"] = max(shares.values(), key=lambda share: share.value)
    return Findings(
        claims,
        (_figure(found),),
        setting=f"{len(of_run)} models with and without the causal mask that fill in their "
        f"answers, for each task and {steps} steps",
        notes=(
            "Tasks that two models or more with the causal mask have learned to fill in, on which "
            f"those without it are judged: {', '.join(shares) or 'none'}. Without the mask, but "
            f"with learned positions, one model of each was trained: {_with_positions(found)}.",
        ),
    )


def _with_positions(found: Found) -> str:
    """What they answer, by task."""
    return ", ".join(
        f"{of_task[_WITH_POSITIONS]['accuracy'][0]:.0%} right on {task}"
        for task, of_task in found.items()
    )


def _title(task: str, kind: str) -> str:
    return f"{task} filled in, {kind}"


def _filled_in(
    preset: Preset, name: str, kind: str, steps: int, device: str, seed: int
) -> dict[str, Array]:
    """Accuracy at the blanks of held-out prompts, and what can be had without order."""
    task = preset.task(name)
    masking = AnswerMasking.of(task)
    sizes = replace(preset.sizes, model={**preset.sizes.model, "causal": _KINDS[kind].causal})
    model = trained_to_answer(
        task,
        sizes,
        steps=steps,
        seed=seed,
        positions=_KINDS[kind].positions,
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


def _accuracies(of_task: Mapping[str, Mapping[str, Array]]) -> Float[Array, "seed 3"]:
    """Without the mask, with it, and by guessing."""
    return np.stack(
        [
            of_task[_BIDIRECTIONAL]["accuracy"],
            of_task[_CAUSAL]["accuracy"],
            of_task[_CAUSAL]["guess"],
        ],
        axis=1,
    )


def share_left(means: Float[Array, "row 3"]) -> Float[Array, " row"]:
    """Accuracy above chance without the mask, as a share of that with it."""
    without, with_mask, chance = means.T
    return (without - chance) / (with_mask - chance)


def _figure(found: Found) -> Figure:
    at = np.arange(len(found))

    def over_tasks(kind: str, what: str) -> Float[Array, "seed task"]:
        return np.stack([of_task[kind][what] for of_task in found.values()], axis=1)

    series: list[Series] = [
        curve("commonest answer", "chance", at, over_tasks(_CAUSAL, "guess")),
        curve("answers of one token throughout", "reference", at, over_tasks(_CAUSAL, "alike")),
    ]
    series += [
        curve(_KINDS[name].title, "measured", at, over_tasks(name, "accuracy"))
        for name in (_CAUSAL, _BIDIRECTIONAL)
    ]
    [one_model] = over_tasks(_WITH_POSITIONS, "accuracy")
    series.append(line(_KINDS[_WITH_POSITIONS].title, "measured", at, one_model))
    return Figure(
        "control",
        "The tasks without the causal mask",
        "Share of held-out prompts of the training lengths whose answers are filled in exactly. "
        "Without mask and positions all blanks of a prompt are alike, so that no more can be right "
        "than have answers of one token throughout, and the order of the prompt is not seen.",
        "task",
        "accuracy",
        (Panel("held-out prompts", tuple(series)),),
        claims=("bidirectional-fails",),
        ticks=tuple(found),
    )
