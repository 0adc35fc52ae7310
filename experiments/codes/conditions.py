"""The conditions of code ablation: which position codes are kept, and what each is held against."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from experiments.results.code_ablation import (
    NONE_KEPT,
    RANDOM_RESCALING,
    RANDOM_SUBSPACE,
    only,
    without,
)
from probes.code_names import CODES
from probes.codes import directions
from probes.codes.controls import PermutedRescaling, random_subspace
from probes.codes.filter import CodeFilter
from probes.codes.statistics import CodeStatistics, Intervention
from probes.regression import LinearProbe
from probes.scores import SHUFFLED

# Of what the positional vectors vary by, the share that the projected subspace holds.
_SUBSPACE_SHARE = 0.95


@dataclass(frozen=True)
class Fit:
    """What an intervention at one site is made from; both were given the same sequences.

    Attributes:
        codes: what removals of codes need.
        linear: what LEACE needs; nothing where no one asks.
    """

    codes: CodeStatistics
    linear: LinearProbe = field(default_factory=LinearProbe)


Maker = Callable[[Fit], Intervention]


@dataclass(frozen=True)
class Condition:
    """One way to run the model.

    Attributes:
        name: what is taken away, or alone kept.
        control: "" for the intervention itself, else what it is held against.
        make: the intervention at a site.
        takes_code: whether it takes one code away, and has a size-matched control, too.
        linear: whether `make` needs a fit's linear probe.
    """

    name: str
    control: str
    make: Maker
    takes_code: bool = False
    linear: bool = False


def of_codes(seed: int) -> Iterator[Condition]:
    """Each code taken away, as much random rescaling, each code alone, and none at all."""
    for code in CODES:
        kept = tuple(other for other in CODES if other != code)
        make = partial(_kept, codes=kept)
        yield Condition(without(code), "", make, takes_code=True)
        yield Condition(without(code), RANDOM_RESCALING, partial(_rescaled, codes=kept, seed=seed))
        yield Condition(only(code), "", partial(_kept, codes=(code,)))
    yield Condition(NONE_KEPT, "", partial(_kept, codes=()))


def every_condition(seed: int) -> Iterator[Condition]:
    """Those of the codes, each alone at shuffled positions too, and the literature's own ways with
    controls of their own."""
    yield from of_codes(seed)
    for code in CODES:
        generator = torch.Generator().manual_seed(seed)
        elsewhere = partial(_kept_elsewhere, codes=(code,), generator=generator)
        yield Condition(only(code), SHUFFLED, elsewhere)
    for name, project, linear in (
        ("t and 1/m, by LEACE", _leace, True),
        ("the positional subspace", _subspace, False),
        ("half of the positional channel", _channel, False),
    ):
        yield Condition(without(name), "", project, linear=linear)
        control = partial(_random_subspace, project=project, seed=seed)
        yield Condition(without(name), RANDOM_SUBSPACE, control, linear=linear)


def _kept(fit: Fit, codes: tuple[str, ...]) -> CodeFilter:
    return fit.codes.kept(codes)


def _kept_elsewhere(fit: Fit, codes: tuple[str, ...], generator: torch.Generator) -> CodeFilter:
    """Kept with positions shuffled, anew at each site: the stream carries what was handed
    out below, and one order over and over brings some positions back to their own."""
    n = len(fit.codes.positional_vectors())
    return fit.codes.kept(codes, permuted=torch.randperm(n, generator=generator))


def _rescaled(fit: Fit, codes: tuple[str, ...], seed: int) -> PermutedRescaling:
    return PermutedRescaling(fit.codes.kept(codes), seed)


def _leace(fit: Fit) -> directions.Leace:
    return directions.leace(fit.linear)


def _subspace(fit: Fit) -> directions.ScaledDirections:
    return directions.project_out(fit.codes, directions.positional_rank(fit.codes, _SUBSPACE_SHARE))


def _channel(fit: Fit) -> directions.ScaledDirections:
    return directions.scale_channel(fit.codes, factor=0.5)


def _random_subspace(
    fit: Fit, project: Callable[[Fit], directions.Leace | directions.ScaledDirections], seed: int
) -> directions.ScaledDirections:
    return random_subspace(project(fit), fit.codes, seed)
