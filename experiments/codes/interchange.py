"""Do answers follow a position that is moved inside the model?

In a task whose answer is read off symbol by symbol (reversal, copying) each position that asks for
a symbol is given the code of the next one. A model that finds its place by this code answers with
the symbol that comes next; one that does not stays with its answer; one that breaks says something
else. That a model knows order at all is seen first (`order`): no verdict is given of one that does
not.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.codes.order import answers_of, said_at, share_rows
from experiments.codes.task import InterventionTask
from experiments.probing.measure import Site
from experiments.results.code_ablation import SIZE_MATCHED
from experiments.results.interchange import NEITHER, NET, PROBE, STAYS, TOWARDS, of_next
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import intervene
from nope_interp.sites import hook_name
from probes.bootstrap import SequenceBootstrap
from probes.codes.controls import OtherContent, sizes_of
from probes.codes.interchange import MOVABLE, interchange
from probes.codes.statistics import CodeStatistics, Intervention
from probes.shapes import Positions

Asked = Int[Tensor, " asked"]

# Weights of what is counted: three shares of the move, then three of its control.
_METRICS = {
    (TOWARDS, ""): (1, 0, 0, 0, 0, 0),
    (STAYS, ""): (0, 1, 0, 0, 0, 0),
    (NEITHER, ""): (0, 0, 1, 0, 0, 0),
    (TOWARDS, SIZE_MATCHED): (0, 0, 0, 1, 0, 0),
    (STAYS, SIZE_MATCHED): (0, 0, 0, 0, 1, 0),
    (NEITHER, SIZE_MATCHED): (0, 0, 0, 0, 0, 1),
    (NET, ""): (1, 0, 0, -1, 0, 0),
}


def interchange_rows(
    task: InterventionTask, statistics: Mapping[Site, CodeStatistics], *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what becomes of answers where the position that asks is moved.

    At each site and for each of `MOVABLE`, every position that asks for a symbol and is followed by
    one that asks, too, gets the code of that next position. Neither may stand in the task's frame,
    whose mean residual tells the frame's token: both hold different symbols in different examples.
    Questions whose next symbol is the same do not count. Metrics `TOWARDS`, `STAYS` and `NEITHER`
    share all answers out; the control `SIZE_MATCHED` mixes in as much of another sequence's
    content: that, and not 0, is how often a disturbed model hits the next symbol. `NET` is towards
    less the control's, by chance 0.

    Args:
        task: one with answers, of a model of ours.
        statistics: of its fit sequences at each site, as from `statistics_at`.
        context: the columns that tell this model variant from others.

    Returns:
        The rows.

    Raises:
        UserError: for a task without answers, or without two neighbouring positions that ask.
    """
    tokens, asked = task.split.held_out, asking_positions(task)
    differ = tokens[:, asked + 2] != tokens[:, asked + 1]
    if not differ.any():
        raise UserError(
            "the next symbol of every answer is the same as the one before: give a task whose "
            "answers tell one position from the next."
        )
    found = []
    for site, codes in statistics.items():
        for code in MOVABLE:
            change = interchange(codes, code, _sources(task, asked))
            control = OtherContent(sizes_of(change, codes), codes)
            shares = [_shares(task, site, how, asked, differ) for how in (change, control)]
            bootstrap = SequenceBootstrap(seed=task.seed)
            counted = differ.double().sum(dim=1, keepdim=True).numpy()
            bootstrap.update(np.concatenate([*shares, counted], axis=1))
            where = {"layer": site.layer, "site": site.hook, "positions": of_next(code)}
            found += share_rows(bootstrap, _METRICS, {**context, **where, "probe": PROBE})
    return found


def asking_positions(task: InterventionTask) -> Asked:
    """The positions that ask for a symbol and whose next one asks for another.

    Args:
        task: one with answers.

    Returns:
        `[asked]`, counted from 0; those at which examples differ, like their next ones.

    Raises:
        UserError: for a task without answers, or without such a position.
    """
    always = answers_of(task).all(dim=0)
    varied = torch.zeros_like(always)
    varied[task.positions] = True
    # Position t asks for the token at t + 1.
    asks = varied[:-2] & always[1:-1] & varied[1:-1] & always[2:]
    if not asks.any():
        raise UserError(
            "no two neighbouring positions ask for symbols that examples do not share: give a task "
            "whose answers are read off symbol by symbol, such as reversal, and longer examples."
        )
    return asks.nonzero()[:, 0]


def _sources(task: InterventionTask, asked: Asked) -> Positions:
    """For each position fitted on, as an index into these, the one whose code it gets."""
    numbers = task.numbers()
    moved = torch.isin(numbers, asked)
    # The next position is fitted on, too, and so comes next among them.
    return torch.arange(len(numbers)) + moved


def _shares(
    task: InterventionTask,
    site: Site,
    change: Intervention,
    asked: Asked,
    differ: Bool[Tensor, "sequence asked"],
) -> Float[np.ndarray, "sequence 3"]:
    """How many answers of each sequence go towards the next position's, stay, and do neither."""
    tokens = task.split.held_out
    wanted = torch.zeros_like(tokens, dtype=torch.bool)
    wanted[:, asked] = True
    with intervene(task.model, {hook_name(site.layer, site.hook): change}, task.positions) as done:
        said = said_at(task, tokens, wanted).reshape(len(tokens), len(asked))
        done.verify()
    towards = (said == tokens[:, asked + 2]) & differ
    stays = (said == tokens[:, asked + 1]) & differ
    neither = differ & ~towards & ~stays
    return torch.stack([towards, stays, neither], dim=-1).sum(dim=1).double().numpy()
