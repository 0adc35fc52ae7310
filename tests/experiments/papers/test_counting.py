"""Theorem 1's head and MLP, found in a model whose weights have them, and counted over tasks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.papers.kazemnejad2023.counting import counting, counting_findings
from experiments.papers.kazemnejad2023.presets import PRESETS
from nope_interp.constructions.kazemnejad import absolute_position, counting_config
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.registry import make_answer_task

PRESET = replace(PRESETS["tiny"], tasks=("copy-cmc", "reverse-mc"))
TASK = PRESET.task("copy-cmc")


def theorem(inverts: bool = True) -> HookedTransformer:
    """Theorem 1's model behind the task's begin token; with or without its MLP."""
    begin = int(next(iter(dataset(TASK, 1, split="train", seed=0).values())).tokens[0, 0])
    model = absolute_position(counting_config(40, TASK.d_vocab), begin).model
    if not inverts:
        with torch.no_grad():
            for parameter in model.blocks[0].mlp.parameters():
                parameter.zero_()
    return model


def test_the_head_and_the_mlp_of_theorem_1_are_found_where_they_are() -> None:
    built = counting(theorem(), TASK, 32, 0)
    assert built["r2"] > 0.99
    assert built["all"] == pytest.approx(1, abs=0.05)
    assert built["head"] == pytest.approx(1, abs=0.05)
    assert built["inverted"] > 0.9 > 0 > built["before"]
    assert built["position/r2"] > 0.99
    assert built["in order"] == 1
    assert built["no shift"] < 0
    without = counting(theorem(inverts=False), TASK, 32, 0)
    assert without["head"] == pytest.approx(1, abs=0.05)
    assert without["inverted"] < 0


def test_examples_too_short_or_too_few_to_read_give_no_number() -> None:
    task = make_answer_task("copy-cmc", training_lengths=range(2, 4), test_lengths=range(4, 6))
    assert all(np.isnan(value) for value in counting(theorem(), task, 8, 0).values())
    assert all(np.isnan(value) for value in counting(theorem(), TASK, 3, 0).values())


def nope(head: list[float], r2: list[float]) -> dict[str, np.ndarray]:
    """What `counting` gives of some models, trained and untrained."""
    trained = {
        "r2": r2,
        "all": 1.0,
        "head": head,
        "position/r2": 0.9,
        "inverted": 0.8,
        "before": -3.0,
        "no shift": -7.0,
        "in order": [1.0] * (len(head) - 1) + [0.0],
    }
    found = {f"counting/{name}": np.broadcast_to(of, len(head)) for name, of in trained.items()}
    return found | {f"untrained/{name}": np.full(len(head), 0.25) for name in found}


def test_claims_are_of_models_that_learned_and_that_can_be_read() -> None:
    found = {
        "copy-cmc": nope([-9, 0.9, 0.9, 0.9], [0.9] * 4),
        "reverse-mc": nope([0.3, -9, np.nan, 0.3], [0.9, -0.1, np.nan, 0.9]),
    }
    learned = np.ones((4, 2), dtype=bool)
    learned[0, 0] = False
    findings = counting_findings(PRESET, found, learned)
    assert findings.claims["counter-head-tasks"].value == pytest.approx((0.9 + 0.3) / 2)
    assert findings.claims["counter-head-tasks"].n == 2
    which, heads, both, inverted = findings.notes
    assert "in 5 of 7 NoPE models" in which
    assert "of 1 are too short or too few, and in 1 the best reading" in which
    assert heads.startswith("In 3 of 5 models one head")
    assert "The mean is 0.66. " in heads
    # The last model of each task has its MLP before its head.
    assert both.startswith("In 7 of 7 models")
    assert "is also in 2 of them. " in both
    assert "count is 0.80. Before the MLP it is -3.00, and where" in inverted
    assert inverted.endswith("where nothing shifts -7.00.")


def test_tasks_count_in_which_half_of_the_models_invert() -> None:
    """One wild model of a task cannot decide; nor can tasks be certain because all are alike."""
    found = {task: nope([0.9] * 4, [0.9] * 4) for task in PRESET.tasks}
    found["reverse-mc"] |= {"counting/inverted": np.array([-99.0, 0.8, -99.0, 0.3])}
    findings = counting_findings(PRESET, found, np.ones((4, 2), dtype=bool))
    claim = findings.claims["counter-inverted-tasks"]
    assert (claim.value, claim.n) == (0.5, 2)
    none = {task: nope([0.9] * 4, [0.9] * 4) for task in PRESET.tasks}
    for of_task in none.values():
        of_task["counting/inverted"] = np.zeros(4)
    claim = counting_findings(PRESET, none, np.ones((4, 2), dtype=bool)).claims[
        "counter-inverted-tasks"
    ]
    # Wilson 1927, of none of two: z² / (n + z²).
    assert (claim.value, claim.ci_low) == (0, 0)
    assert claim.ci_high == pytest.approx(1.959964**2 / (2 + 1.959964**2), abs=1e-5)


def test_too_few_models_make_no_claim() -> None:
    learned = np.zeros((3, 2), dtype=bool)
    learned[:, 0] = True
    findings = counting_findings(
        PRESET, dict.fromkeys(PRESET.tasks, nope([0.9] * 3, [0.9] * 3)), learned
    )
    assert not findings.claims
    assert not findings.figures
