"""Positions given the code of others: does the model then answer as there?

By `experiments.codes.interchange` and the rules of `experiments.results.position_use`, as on tasks:
every position is told to be another one, each once, and in the other direction positions that no
code tells any more get one code back.
"""

import torch

from experiments.benchmark.task import context, task_of
from experiments.codes.alignment import told_others
from experiments.codes.counterfactual import Counterfactual
from experiments.codes.in_depth import statistics_at
from experiments.codes.interchange import interchange_rows
from experiments.codes.task import InterventionTask
from experiments.probing.sites import Site
from experiments.results.interchange import uses
from experiments.results.measurements import FIRST_POSITION, table
from nope_interp.constructions.planted import N_CTX, Planted

_EVERY = "positions"


def interchange(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """By `experiments.results.position_use`: noising and denoising have to agree.

    Args:
        planted: the model.
        place: a site; None for the whole stream.
        seed: of sequences and positions.

    Returns:
        A word for each code that can be moved.
    """
    task = task_of(planted, seed)
    statistics = {} if place is None else statistics_at(task, [place])
    told = [_counterfactual(planted, task, seed)]
    columns, whole = context(planted, seed), place is None
    rows = interchange_rows(task, statistics, told, context=columns, through_stream=whole)
    return {use.code: str(use.word) for use in uses(table(rows))}


def _counterfactual(planted: Planted, task: InterventionTask, seed: int) -> Counterfactual:
    """Every position from 1 on is told to be another one; tokens stay where they are."""
    tokens, among = task.split.held_out, torch.arange(FIRST_POSITION, N_CTX)
    every, generator = torch.ones(len(among), dtype=torch.bool), torch.Generator().manual_seed(seed)
    told = told_others(among, every, generator)
    own, other = torch.zeros_like(tokens), torch.zeros_like(tokens)
    own[:, FIRST_POSITION:] = planted.answered(tokens)
    other[:, FIRST_POSITION:] = planted.answered(tokens, told)
    asked = torch.zeros_like(tokens, dtype=torch.bool)
    asked[:, FIRST_POSITION:] = True
    return Counterfactual(
        moved=_EVERY,
        among=among,
        sources=told - FIRST_POSITION,
        origins=among - FIRST_POSITION,
        own=own,
        other=other,
        counted=asked & (own != other),
        asked=asked,
    )
