"""Counter or pool? The begin token is changed in trained models without positions, and the reading
of 1/m is held against what a counter predicts in numbers.

A counter gives each of the m tokens that it sees the weight 1/m and reads off the begin token's. A
begin token that weighs c times as much has the weight c / (m - 1 + c) then. Where the second token
is changed in the same way, the begin token has 1 / (m - 1 + c): the difference of the two is
(c - 1) / (m - 1 + c). A pool of all tokens treats both alike, and the difference is 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.on_text import given_variant
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Running, scale_attention
from nope_interp.models.checkpoints import load_model
from nope_interp.positions.layers import layer_positions
from nope_interp.shapes import Sequences
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from nope_interp.tasks.answers import ExampleSource, TaskSplit, dataset
from nope_interp.tasks.sources import Split, TokenSource
from probes.moments import LinearMoments

# How many sequences are read; of a task, of each length.
_SPLITS: tuple[tuple[Split, int], ...] = (("fit", 128), ("held_out", 64))
_LENGTH, _SHORTEST = 127, 16
_ALPHA = 1.0  # of the ridge regression, on standardised features
_FROM = 8  # the first token that is read: where few have been seen, 1/m is far from linear


# Of one length each.
Groups = Sequence[Int[Tensor, "_ _"]]
# Coefficients and intercepts, and what they read.
Fit = tuple[Array, Array]
Readings = Float[np.ndarray, "sequence _ site reading"]


@dataclass(frozen=True)
class Change:
    """What is done to one of the first two tokens.

    Attributes:
        factor: c, how many times as much the token weighs.
        tokens: the changed sequences, of intact ones and the token's position.
        later: how many positions further on all later tokens stand then.
        running: the context that the model runs in.
    """

    factor: float
    tokens: Callable[[Sequences, int], Sequences]
    later: int
    running: Callable[[HookedModel, int], AbstractContextManager[Running | None]]


def _duplicated(tokens: Sequences, at: int) -> Int[Tensor, "sequence _"]:
    return torch.cat((tokens[:, : at + 1], tokens[:, at:]), dim=1)


def _deleted(tokens: Sequences, at: int) -> Int[Tensor, "sequence _"]:
    return torch.cat((tokens[:, :at], tokens[:, at + 1 :]), dim=1)


_TWICE = 2.0
CHANGES = {
    "scaled": Change(
        _TWICE,
        lambda tokens, at: tokens,
        0,
        lambda model, at: scale_attention(model, at, _TWICE),
    ),
    "duplicated": Change(_TWICE, _duplicated, 1, lambda model, at: nullcontext()),
    "deleted": Change(0.0, _deleted, -1, lambda model, at: nullcontext()),
}


def predicted(factor: float, m: Array) -> Array:
    """What a counter reads where the begin token weighs c times as much, minus what it reads where
    the second token does.

    Args:
        factor: c.
        m: tokens seen in the intact sequence.
    """
    difference: Array = (factor - 1) / (m - 1 + factor)
    return difference


def counted(model: HookedModel, fit: Groups, read: Groups, seed: int) -> dict[str, Array]:
    """How the reading of 1/m shifts with the begin token, after every layer.

    Args:
        model: without positions, whose context holds one token more than the longest sequences.
        fit: sequences behind the begin token, to fit the readings on, of one length or several.
        read: others, to read.
        seed: of the permutation.

    Returns:
        By change `share/...`, of each sequence the shift as a share of the predicted one, [sequence
        site reading], the second reading being fitted to permuted positions; and `shift/...`, the
        shift itself of the longest sequences, at the site where 1/m is read best, [sequence pos].
        `alone` [token] is what scaling the first and the second token alone shifts there, as a
        share of what a counter of that token alone predicts. `r2` [site] says how well 1/m is read
        of the intact sequences; `m` are the tokens seen.
    """
    sites = [hook_name(layer, "resid_post") for layer in range(model.cfg.n_layers)]
    fits = _fitted(model, fit, sites, seed)
    long_enough = [tokens for tokens in read if tokens.shape[1] > _FROM + 1]
    r2 = _r2(model, long_enough, fits)
    found = {"m": _seen(long_enough[-1]), "r2": r2}
    for name, change in CHANGES.items():
        shifts = [_shift(model, tokens, change, fits) for tokens in long_enough]
        shares = [_share_of(shift, change.factor) for shift in shifts]
        found |= {
            f"share/{name}": np.concatenate(shares),
            f"shift/{name}": shifts[-1][:, :, r2.argmax(), 0],
        }
    return found | {"alone": _alone(model, long_enough[-1], fits)[:, r2.argmax()]}


def _alone(
    model: HookedModel, tokens: Sequences, fits: Mapping[str, Fit]
) -> Float[np.ndarray, "token site"]:
    m = _seen(tokens)
    intact = _read(model, tokens, fits)[:, _FROM:, :, 0]
    expected = _TWICE / (m + _TWICE - 1) - 1 / m
    shares = []
    for token in (0, 1):
        with CHANGES["scaled"].running(model, token):
            shift = _read(model, tokens, fits)[:, _FROM:, :, 0] - intact
        shares.append(expected @ shift.mean(axis=0) / (expected @ expected))
    return np.stack(shares)


def _seen(tokens: Sequences) -> Array:
    """How many tokens each one that is read has seen."""
    return np.arange(_FROM, tokens.shape[1]) + 1.0


def _shift(
    model: HookedModel, tokens: Sequences, change: Change, fits: Mapping[str, Fit]
) -> Readings:
    """The readings with the begin token changed, minus those with the second one changed alike."""
    readings = []
    for token in (0, 1):
        with change.running(model, token):
            read = _read(model, change.tokens(tokens, token), fits)
        readings.append(read[:, np.arange(_FROM, tokens.shape[1]) + change.later])
    return readings[0] - readings[1]


def _share_of(shift: Readings, factor: float) -> Float[np.ndarray, "sequence site reading"]:
    expected = predicted(factor, np.arange(_FROM, _FROM + shift.shape[1]) + 1.0)
    share: Array = np.einsum("npsr,p->nsr", shift, expected) / (expected @ expected)
    return share


def _r2(model: HookedModel, read: Groups, fits: Mapping[str, Fit]) -> Float[np.ndarray, " site"]:
    inverses = [np.tile(1 / _seen(tokens), len(tokens)) for tokens in read]
    found = [_read(model, tokens, fits)[:, _FROM:, :, 0].reshape(-1, len(fits)) for tokens in read]
    wanted = np.concatenate(inverses)
    errors = np.concatenate(found) - wanted[:, None]
    r2: Array = 1 - (errors**2).mean(axis=0) / wanted.var()
    return r2


def _fitted(model: HookedModel, fit: Groups, sites: list[str], seed: int) -> dict[str, Fit]:
    """By site, the ridge regressions of 1/m and of the same permuted, from position 1 on."""
    inverse = torch.cat(
        [
            (1 / torch.arange(2.0, tokens.shape[1] + 1, dtype=torch.float64)).repeat(len(tokens))
            for tokens in fit
        ]
    )
    order = torch.randperm(len(inverse), generator=torch.Generator().manual_seed(seed))
    labels = torch.stack((inverse, inverse[order]), dim=1)

    def flat(x: Tensor) -> Float[Tensor, "activation d_model"]:
        return x[:, 1:].flatten(0, 1).double().cpu()

    found = [read_at(model, tokens, dict.fromkeys(sites, flat)) for tokens in fit]
    return {
        site: LinearMoments()
        .update(torch.cat([part for of in found for part in of[site]]), labels)
        .ridge(_ALPHA)
        for site in sites
    }


def _read(model: HookedModel, tokens: Sequences, fits: Mapping[str, Fit]) -> Readings:
    def reading(x: Tensor, of: Fit) -> Array:
        values: Array = x.double().cpu().numpy() @ of[0] + of[1]
        return values

    reads = {site: partial(reading, of=of) for site, of in fits.items()}
    found = read_at(model, tokens, reads)
    return np.stack([np.concatenate(found[site]) for site in fits], axis=2)


def counter_findings(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Changes the begin token of the model that ships with the package, and of a given one.

    Raises UserError where the given model cannot be loaded or has a context too short.
    """
    shipped = replace(config, model=str(EMBEDDED_MODEL), positions="auto", text=None)
    found = {"the small model": cells.arrays("counter", lambda: _of(shipped, device))}
    claims = {f"counter-{name}": _share(found["the small model"], name) for name in CHANGES}
    if config.model is not None:
        given = cells.arrays("counter of the given model", lambda: _of(config, device))
        found[Path(config.model).name] = given
        if given["none"].all():
            shares = [_share(given, name) for name in CHANGES]
            claims["counter-given"] = min(shares, key=lambda share: share.ci_low)
    return Findings(
        claims,
        (_drawn(found),),
        setting="64 held-out sequences",
        notes=(
            "The begin token and the second one are changed in 64 held-out sequences, of a task in "
            "64 of each length.",
            *(_told(name, of) for name, of in found.items()),
        ),
    )


def _of(config: ReproduceConfig, device: str) -> dict[str, Array]:
    model, source = _loaded(config, device)
    none = np.array([layer.encoding == "none" for layer in layer_positions(model)])
    fit, read = (_sequences(source, model.cfg.n_ctx - 1, n, split, config) for split, n in _SPLITS)
    if not read or read[-1].shape[1] < _SHORTEST:
        raise UserError(
            f"{config.model!r} reads too short sequences to count in: give a model whose context "
            f"holds {_SHORTEST + 1} tokens."
        )
    return {"none": none, **counted(model, fit, read, config.seed)}


def _sequences(
    source: TokenSource, most: int, n: int, split: Split, config: ReproduceConfig
) -> list[Sequences]:
    """Behind the begin token, of no more tokens than `most`; examples of a task by their length."""
    if not isinstance(source, ExampleSource):
        length = min(config.scaled("length", _LENGTH, least=_SHORTEST), most)
        return [source.sequences(n, length, begin_token=True, split=split, seed=config.seed)]
    part: TaskSplit = "train" if split == "fit" else "validation"
    every = dataset(source.task, n, split=part, seed=config.seed).values()
    cut = [examples.tokens[:, : int(examples.length.min())] for examples in every]
    return [tokens for tokens in cut if tokens.shape[1] <= most]


def _loaded(config: ReproduceConfig, device: str) -> tuple[HookedModel, TokenSource]:
    """The model, and what it was trained on; text, for one that is not ours."""
    more: dict[str, Any] = {"seq_len": _SHORTEST}
    if str(config.model).endswith(".safetensors"):
        ours, trained_on = load_model(Path(str(config.model)))
        more = {**vars(trained_on), "seq_len": ours.config.n_ctx}
    variant = given_variant(config, device, needed={}, **more)
    return variant.model, variant.sources[0]


def _best(found: Mapping[str, Array]) -> int:
    """The site where 1/m is read best of the intact sequences."""
    return int(found["r2"].argmax())


def _share(found: Mapping[str, Array], change: str) -> Measured:
    return over_seeds(found[f"share/{change}"][:, _best(found), 0])


def _told(name: str, found: Mapping[str, Array]) -> str:
    best = _best(found)
    chance = max(abs(found[f"share/{change}"][:, best, 1].mean()) for change in CHANGES)
    return (
        f"In {name} 1/m is read best after layer {best + 1}, with an R² of "
        f"{found['r2'][best]:.2f}. Fitted to permuted positions the share is at most {chance:.2f}. "
        f"Scaled alone, the begin token shifts it by {found['alone'][0]:.2f} of what a counter of "
        f"that token predicts, and the second token by {found['alone'][1]:.2f}."
    )


@figure(
    "counter",
    "tokens seen, m",
    "shift of the reading of 1/m",
    claims=("counter-scaled", "counter-duplicated", "counter-deleted", "counter-given"),
    log="x",
)
def _drawn(every: Mapping[str, Mapping[str, Array]]) -> Iterator[Panel]:
    """Counter or pool.

    The begin token is changed, minus the second token changed alike, read where 1/m is read best.
    Of a task, examples of the longest training length. Bars are 95% intervals over sequences.
    """
    for model, found in every.items():
        for name, change in CHANGES.items():
            yield panel(
                f"{model}: {name}",
                found["m"],
                predicted={"a counter": predicted(change.factor, found["m"])},
                reference={"a pool": 0.0},
                measured={"measured": found[f"shift/{name}"]},
            )
