"""The first tokens changed in models without positions, and what is read of position then.

A counter gives each of the m tokens that it sees the weight 1/m, and reads off the weight of the
first k, which all sequences share: the begin token, and the frame of a task. Where these k weigh c
times as much, what reads 1/m reads c / (m - k + kc). Where k others are changed in the same way, it
reads 1 / (m - k + kc). The difference is (c - 1) / (m - k + kc); a pool of all tokens treats both
alike, and has 0. An MLP that inverts the reading writes (m - k + kc) / c and m - k + kc.

A reading that content disturbs rises by less than one where 1/m rises by one: least squares
shrinks it. So shifts are divided by its slope on what it reads in intact sequences.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.results.findings import Array
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.attention_weights import scale_attention
from nope_interp.interventions.intervene import Running
from nope_interp.shapes import Sequences
from nope_interp.sites import hook_name
from nope_interp.streams import firing_hooks, read_at
from probes.moments import LinearMoments

_ALPHA = 1.0  # of the ridge regressions, on standardised features
_UNREAD = 8  # at least so many first tokens are not read: there 1/m is far from linear in m
# Among the sites, in order of depth: where Theorem 1 reads 1/m. Later it is read through MLPs, too,
# whose units need not follow a weight that is doubled.
FIRST_SITE = 0
# What is read, in the order of the fits' columns: 1/m, the same permuted, and m.
_INVERSE, _PERMUTED, _POSITION = range(3)

# Of one length each.
Groups = Sequence[Int[Tensor, "_ _"]]
# Coefficients and intercepts, and what they read.
Fit = tuple[Array, Array]
Readings = Float[np.ndarray, "sequence _ site reading"]


@dataclass(frozen=True)
class Change:
    """What is done to tokens that follow one another.

    Attributes:
        factor: c, how many times as much the tokens weigh.
        tokens: the changed sequences, of intact ones and the tokens' positions.
        later: how many times their number all later tokens stand further on then.
        running: the context that the model runs in.
    """

    factor: float
    tokens: Callable[[Sequences, range], Sequences]
    later: int
    running: Callable[[HookedModel, range], AbstractContextManager[Running | None]]


def _duplicated(tokens: Sequences, at: range) -> Int[Tensor, "sequence _"]:
    return torch.cat((tokens[:, : at.stop], tokens[:, at.start :]), dim=1)


def _deleted(tokens: Sequences, at: range) -> Int[Tensor, "sequence _"]:
    return torch.cat((tokens[:, : at.start], tokens[:, at.stop :]), dim=1)


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


def predicted(factor: float, m: Array, k: int = 1) -> Array:
    """What a counter reads where the first k tokens weigh c times as much, minus what it reads
    where k others do.

    Args:
        factor: c.
        m: tokens seen in the intact sequence.
        k: how many tokens.
    """
    difference: Array = (factor - 1) / (m - k + k * factor)
    return difference


def predicted_inverse(factor: float, m: Array, k: int = 1) -> Array:
    """What an inverted reading shifts by, in positions, where `predicted` is the shift of 1/m."""
    difference: Array = (m - k + k * factor) * (1 / factor - 1)
    return difference


def n_shared(groups: Groups) -> int:
    """How many first tokens all sequences have in common."""
    shortest = min(tokens.shape[1] for tokens in groups)
    every = torch.cat([tokens[:, :shortest] for tokens in groups])
    same = (every == every[0]).all(dim=0)
    return max(1, int(same.cumprod(dim=0).sum()))


def n_unread(k: int) -> int:
    """How many first tokens are left unread where k are changed, and in the control k others."""
    return max(_UNREAD, 2 * k)


class Intact(NamedTuple):
    """How a reading does in intact sequences, by site.

    Attributes:
        r2: 1 where it is exact, 0 where a constant does as well.
        slope: by how much it rises where what it reads rises by one.
    """

    r2: Float[np.ndarray, " site"]
    slope: Float[np.ndarray, " site"]


class Reader:
    """Linear readings of 1/m, of the same permuted, and of m, after every attention and every MLP.

    All are fitted on the tokens that are read. On the first few an inverted count and a linear
    reading of 1/m differ most, and what tells a task's frame would pass for either.

    Args:
        model: without positions, whose context holds the longest sequences and as many tokens more
            as all of them share at first.
        fit: sequences to fit the readings on, of one length or several.
        seed: of the permutation.

    Attributes:
        k: first tokens that are changed: all that the sequences share.
        sites: layer and hook of each site, in order of depth.
        without_inversion: by how much a linear reading of 1/m as m, which nothing inverts, shifts
            where 1/m rises by one, over that reading's slope on m.
    """

    def __init__(self, model: HookedModel, fit: Groups, seed: int) -> None:
        self._model = model
        self.k = n_shared(fit)
        self._unread = n_unread(self.k)
        every = {
            hook_name(layer, hook): (layer, hook)
            for layer in range(model.cfg.n_layers)
            for hook in ("resid_mid", "resid_post")
        }
        firing = firing_hooks(model, list(every), fit[0][:1])
        self.sites = [site for name, site in every.items() if name in firing]
        fit = self.long_enough(fit)
        m = self._each(fit)
        self._fits = self._fitted(fit, m, seed)
        self.without_inversion = float(1 / np.polyfit(m, 1 / m, 1)[0])

    def long_enough(self, groups: Groups) -> list[Int[Tensor, "_ _"]]:
        """Those in which two tokens or more are read."""
        return [tokens for tokens in groups if tokens.shape[1] > self._unread + 1]

    def seen(self, tokens: Sequences) -> Array:
        """How many tokens each one that is read has seen."""
        return np.arange(self._unread, tokens.shape[1]) + 1.0

    def _each(self, groups: Groups) -> Array:
        """The same for all tokens that are read of all sequences."""
        return np.concatenate([np.tile(self.seen(tokens), len(tokens)) for tokens in groups])

    def _fitted(self, fit: Groups, m: Array, seed: int) -> dict[str, Fit]:
        """By site, ridge regressions in the order of what is read."""
        order = np.random.default_rng(seed).permutation(len(m))
        labels = torch.from_numpy(np.stack((1 / m, 1 / m[order], m), axis=1))

        def flat(x: Tensor) -> Float[Tensor, "activation d_model"]:
            return x[:, self._unread :].flatten(0, 1).double().cpu()

        names = [hook_name(*site) for site in self.sites]
        found = [read_at(self._model, tokens, dict.fromkeys(names, flat)) for tokens in fit]
        fits = {}
        for name in names:
            x = torch.cat([part for of in found for part in of[name]])
            fits[name] = LinearMoments().update(x, labels).ridge(_ALPHA)
        return fits

    def read(self, tokens: Sequences, site: int | None = None) -> Readings:
        """What is read of every token, at all sites or at one; the model runs no further."""

        def reading(x: Tensor, of: Fit) -> Array:
            values: Array = x.double().cpu().numpy() @ of[0] + of[1]
            return values

        reads = {name: partial(reading, of=of) for name, of in self._fits.items()}
        if site is not None:
            wanted = hook_name(*self.sites[site])
            reads = {wanted: reads[wanted]}
        found = read_at(self._model, tokens, reads)
        return np.stack([np.concatenate(found[name]) for name in reads], axis=2)

    def intact(self, read: Groups, reading: int) -> "Intact":
        """How well intact sequences are read, from the first token that is read on."""
        m = self._each(read)
        wanted = m if reading == _POSITION else 1 / m
        values = [self.read(tokens)[:, self._unread :, :, reading] for tokens in read]
        found = np.concatenate([each.reshape(-1, len(self.sites)) for each in values])
        r2 = 1 - ((found - wanted[:, None]) ** 2).mean(axis=0) / wanted.var()
        slope = (wanted - wanted.mean()) @ found / (len(wanted) * wanted.var())
        return Intact(r2, slope)

    def shift(self, tokens: Sequences, change: Change, site: int | None = None) -> Readings:
        """The readings with the first tokens changed, minus those with as many others."""
        parts = range(self.k), range(self.k, 2 * self.k)
        first, others = (self._changed(tokens, change, part, site) for part in parts)
        return first - others

    def _changed(self, tokens: Sequences, change: Change, at: range, site: int | None) -> Readings:
        with change.running(self._model, at):
            read = self.read(change.tokens(tokens, at), site)
        return read[:, np.arange(self._unread, tokens.shape[1]) + change.later * len(at)]

    def alone(self, tokens: Sequences, site: int) -> Float[np.ndarray, " token"]:
        """What scaling the first and the second token alone shifts at a site, as a share of what a
        counter of that token alone predicts of an exact reading."""
        m = self.seen(tokens)
        intact = self.read(tokens, site)[:, self._unread :, :, _INVERSE]
        expected = _TWICE / (m + _TWICE - 1) - 1 / m
        shares = []
        for token in (range(1), range(1, 2)):
            changed = self._changed(tokens, CHANGES["scaled"], token, site)[..., _INVERSE]
            shares.append(_share(changed - intact, expected).mean())
        return np.array(shares)

    def by_head(self, tokens: Sequences, site: int) -> Float[np.ndarray, "sequence layer head"]:
        """The share of the shift predicted of an exact reading at a site where one head alone is
        scaled."""
        cfg = self._model.cfg
        shares = np.zeros((len(tokens), cfg.n_layers, cfg.n_heads))
        for layer, head in np.ndindex(self.sites[site][0] + 1, cfg.n_heads):
            one = partial(scale_attention, factor=_TWICE, head=(layer, head))
            change = replace(CHANGES["scaled"], running=one)
            shift = self.shift(tokens, change, site)[..., _INVERSE]
            expected = predicted(_TWICE, self.seen(tokens), self.k)
            shares[:, layer, head] = _share(shift, expected)[:, 0]
        return shares


def counted(model: HookedModel, fit: Groups, read: Groups, seed: int) -> dict[str, Array]:
    """How readings shift with the first tokens, after every attention and every MLP.

    Args:
        model: without positions, as `Reader` takes it.
        fit: sequences behind the begin token, to fit the readings on, of one length or several.
        read: others, to read.
        seed: of the permutation.

    Returns:
        `k`, how many first tokens are changed; `m`, the tokens seen; `layer` and `after_mlp`, which
        site is which. `r2` [site] says how well 1/m is read of the intact sequences, and `slope`
        how steeply, by which shifts of the reading are divided. By change `share/...`, of each
        sequence the shift as a share of the predicted one, [sequence site reading], the second
        reading being fitted to permuted positions, over the first one's slope; and `shift/...`, the
        shift itself of the longest sequences, at `FIRST_SITE`, [sequence pos]. `alone` [token] is
        what scaling the first and the second token alone shifts there, as a share of what a counter
        of that token alone predicts. `heads` [sequence layer head] is the share where one head
        alone is scaled. `position/...` is what `_inverted` finds.
    """
    reader = Reader(model, fit, seed)
    read = reader.long_enough(read)
    longest, (r2, slope) = read[-1], reader.intact(read, _INVERSE)
    after_mlp = np.array([hook == "resid_post" for _, hook in reader.sites])
    found = {
        "k": np.array(reader.k),
        "m": reader.seen(longest),
        "layer": np.array([layer for layer, _ in reader.sites]),
        "after_mlp": after_mlp,
        "r2": r2,
        "slope": slope,
        "alone": reader.alone(longest, FIRST_SITE) / slope[FIRST_SITE],
        "heads": np.concatenate([reader.by_head(tokens, FIRST_SITE) for tokens in read])
        / slope[FIRST_SITE],
    }
    shifts = {name: [reader.shift(n, change) for n in read] for name, change in CHANGES.items()}
    for name, change in CHANGES.items():
        expected = [predicted(change.factor, reader.seen(tokens), reader.k) for tokens in read]
        of_inverse = (shift[..., : _PERMUTED + 1] / slope[:, None] for shift in shifts[name])
        found |= {
            f"share/{name}": np.concatenate(list(map(_share, of_inverse, expected))),
            f"shift/{name}": shifts[name][-1][:, :, FIRST_SITE, _INVERSE] / slope[FIRST_SITE],
        }
    inverted = _inverted(reader, read, shifts["scaled"][-1][..., _POSITION], after_mlp)
    return found | {f"position/{name}": array for name, array in inverted.items()}


def _inverted(
    reader: Reader,
    read: Groups,
    shift: Float[np.ndarray, "sequence _ site"],
    after_mlp: Bool[np.ndarray, " site"],
) -> dict[str, Array]:
    """How the reading of m shifts where tokens are scaled.

    `r2` [site] says how well m is read of the intact sequences; `site` is the MLP after which it
    is read best. There `shift` [sequence pos] is the shift of the longest over the reading's slope,
    and `before` the same before that MLP, where the model has such a site. `without` [pos] is the
    shift of a linear reading of 1/m that nothing has inverted.
    """
    r2, slope = reader.intact(read, _POSITION)
    best = int(np.where(after_mlp, r2, -np.inf).argmax())
    found = {
        "r2": r2,
        "site": np.array(best),
        "shift": shift[:, :, best] / slope[best],
        "without": reader.without_inversion * predicted(_TWICE, reader.seen(read[-1]), reader.k),
    }
    if best > 0 and not after_mlp[best - 1]:
        found["before"] = shift[:, :, best - 1] / slope[best - 1]
    return found


def _share(
    shift: Float[np.ndarray, "sequence _ *of"], expected: Float[np.ndarray, " _"]
) -> Float[np.ndarray, "sequence *of"]:
    """By least squares over positions."""
    share: Array = np.einsum("np...,p->n...", shift, expected) / (expected @ expected)
    return share
