"""Distributed alignment search of rank 1: is there one direction that holds the position?

After Geiger et al. 2023 (arXiv 2303.02536), written small: of one direction the rotation is its
only row that matters. The component along it is exchanged for that of another sequence at another
position, and the direction is learned by how surely the model then answers as there. It begins at
that of linear regression. It is learned on some positions and judged on others, beside a
random-init model of the same config, since whoever learns a direction may find one in any model.
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from experiments.benchmark.task import N_FIT, N_HELD_OUT
from experiments.probing.measure import ALL_BUT_FIRST, Site
from experiments.results.readability import WORTH_NAMING
from nope_interp.constructions.planted import N_CTX, Planted
from nope_interp.interventions.intervene import intervene
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Activations, Tokens
from nope_interp.streams import stream
from probes.bootstrap import SequenceBootstrap

_STEPS = 50
_BATCH = 16
_LEARNING_RATE = 2e-3
# Directions that vary by a smaller share of the largest hold the rounding of float32.
_ROUNDING = 1e-5
# Every third position is kept for judging.
_HELD_OUT = torch.arange(1, N_CTX) % 3 == 0

Direction = Float[Tensor, " d_model"]
# For each position from 1 on the one that it is told to be.
Told = Int[Tensor, " asked"]


def das(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """One direction that holds the position is a count; of other codes this says nothing.

    The share is that of answers at held-out positions that are as at the other one, less that of
    the random-init model, in shares of the intact model's right answers. Used where it is surely a
    tenth or more, not used where it is surely less.

    Args:
        planted: the model.
        place: a site; of the whole stream this says nothing.
        seed: of directions and sequences.

    Returns:
        A word for counting.
    """
    if place is None:
        return {}
    untrained = HookedTransformer(replace(planted.model.config, seed=seed, init_scale=None))
    tokens = planted.sequences(N_HELD_OUT, 2 * seed + 1)
    intact = planted.accuracy(planted.model, tokens)
    followed = [_followed(planted, model, place, seed) for model in (planted.model, untrained)]
    bootstrap = SequenceBootstrap(seed=seed)
    bootstrap.update(np.stack([of / intact for of in followed], axis=1))
    net = bootstrap.score("", lambda means: means[:, 0] - means[:, 1], chance=0.0)
    if net.ci_low >= WORTH_NAMING:
        return {"counting": "used"}
    return {"counting": "not used" if net.ci_high < WORTH_NAMING else "undecided"}


def _followed(
    planted: Planted, model: HookedTransformer, site: Site, seed: int
) -> Float[np.ndarray, " sequence"]:
    """The share of answers of each sequence that follow, at held-out positions."""
    generator = torch.Generator().manual_seed(seed)
    direction = _learned(planted, model, site, generator)
    tokens = planted.sequences(N_HELD_OUT, 2 * seed + 1)
    told = _told(_HELD_OUT, generator)
    with torch.no_grad():
        said = _exchanged(planted, model, site, tokens, told, direction).argmax(dim=-1)
    right = said == planted.answers(tokens, told)
    return right[:, _HELD_OUT].double().mean(dim=1).numpy()


def _learned(
    planted: Planted, model: HookedTransformer, site: Site, generator: Generator
) -> Direction:
    """The direction whose exchange makes answers follow best, by gradient descent."""
    tokens = planted.sequences(N_FIT, int(torch.randint(2**31, (), generator=generator)))
    direction = _regressed(model, site, tokens).requires_grad_()
    optimizer = torch.optim.Adam([direction], lr=_LEARNING_RATE)
    for _ in range(_STEPS):
        batch = tokens[torch.randint(N_FIT, (_BATCH,), generator=generator)]
        told = _told(~_HELD_OUT, generator)
        logits = _exchanged(planted, model, site, batch, told, direction)[:, ~_HELD_OUT]
        answers = planted.answers(batch, told)[:, ~_HELD_OUT]
        loss = F.cross_entropy(rearrange(logits, "batch pos answer -> batch answer pos"), answers)
        (direction.grad,) = torch.autograd.grad(loss, [direction])
        optimizer.step()
    return direction.detach()


def _regressed(model: HookedTransformer, site: Site, tokens: Tokens) -> Direction:
    """The direction of least squares on the position, in the positions that are learned on.

    From a random one, gradient descent is lost in content: far from the right direction, and so
    from the right answer, the loss hardly changes.
    """
    seen: list[Tensor] = []
    stream(model, tokens, {site.name: lambda x: seen.append(x[:, ALL_BUT_FIRST])}, until=site.name)
    x = torch.cat(seen)[:, ~_HELD_OUT].double()
    position = torch.arange(1.0, N_CTX).double()[~_HELD_OUT].expand(len(x), -1).flatten()
    x = x.flatten(0, 1)
    centred, wanted = x - x.mean(dim=0), position - position.mean()
    found = torch.linalg.lstsq(centred, wanted[:, None], rcond=_ROUNDING, driver="gelsd").solution
    return F.normalize(found[:, 0], dim=0).float()


def _exchanged(
    planted: Planted,
    model: HookedTransformer,
    site: Site,
    tokens: Tokens,
    told: Told,
    direction: Direction,
) -> Float[Tensor, "batch asked answer"]:
    """The logits where positions have the component of the next sequence at another position."""
    along = F.normalize(direction, dim=0)

    def exchange(x: Activations) -> Activations:
        wanted = x.roll(1, dims=0)[:, told - 1] @ along
        own = torch.arange(1, N_CTX) == told
        moved = torch.where(own, 0.0, wanted - x @ along)
        return x + moved[..., None] * along

    with intervene(model, {site.name: exchange}, ALL_BUT_FIRST):
        return planted.logits(model, tokens)


def _told(among: Bool[Tensor, " asked"], generator: Generator) -> Told:
    """For each of these positions another one of them, each once; others keep their own."""
    told = torch.arange(1, N_CTX)
    chosen = told[among]
    order = torch.randperm(len(chosen), generator=generator)
    told[among.nonzero()[:, 0][order]] = chosen[order].roll(1)
    return told
