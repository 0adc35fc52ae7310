"""Counter or pool? The begin token is changed in trained models without positions, and the reading
of 1/m is held against what a counter predicts in numbers.

A counter gives each of the m tokens that it sees the weight 1/m and reads off the begin token's. A
begin token that weighs c times as much has the weight c / (m - 1 + c) then. Where the second token
is changed in the same way, the begin token has 1 / (m - 1 + c): the difference of the two is
(c - 1) / (m - 1 + c). A pool of all tokens treats both alike, and the difference is 0.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.on_text import given_variant, held_out
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Intervention, scale_attention
from nope_interp.models.checkpoints import load_model
from nope_interp.positions.layers import layer_positions
from nope_interp.shapes import Sequences
from nope_interp.sites import hook_name
from nope_interp.streams import read_at
from nope_interp.tasks.sources import TokenSource
from probes.moments import LinearMoments

_FIT, _HELD_OUT, _LENGTH, _SHORTEST = 128, 64, 127, 16
_ALPHA = 1.0  # of the ridge regression, on standardised features
_FROM = 8  # the first token that is read: where few have been seen, 1/m is far from linear


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
    running: Callable[[HookedModel, int], AbstractContextManager[Intervention | None]]


def _duplicated(tokens: Sequences, at: int) -> Sequences:
    return torch.cat((tokens[:, : at + 1], tokens[:, at:]), dim=1)


def _deleted(tokens: Sequences, at: int) -> Sequences:
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
    """What a counter reads where the begin token weighs c times as much, less what it reads where
    the second token does.

    Args:
        factor: c.
        m: tokens seen in the intact sequence.
    """
    difference: Array = (factor - 1) / (m - 1 + factor)
    return difference


def counted(model: HookedModel, fit: Sequences, text: Sequences, seed: int) -> dict[str, Array]:
    """How the reading of 1/m shifts with the begin token, after every layer.

    Args:
        model: without positions, whose context holds one token more than the sequences.
        fit: sequences behind the begin token, to fit the readings on.
        text: others of the same length, to read.
        seed: of the permutation.

    Returns:
        By change `share/...`, of each sequence the shift as a share of the predicted one, [sequence
        site reading], the second reading being fitted to permuted positions; and `shift/...`, the
        shift itself [sequence pos site]. `r2` [site] says how well 1/m is read of the intact
        sequences; `m` are the tokens seen.
    """
    sites = [hook_name(layer, "resid_post") for layer in range(model.cfg.n_layers)]
    fits = _fitted(model, fit, sites, seed)
    at = np.arange(_FROM, text.shape[1])
    m = at + 1.0
    intact = _read(model, text, fits)[:, at]
    residual = ((intact[..., 0] - (1 / m)[:, None]) ** 2).sum(axis=(0, 1))
    spread = len(text) * ((1 / m - (1 / m).mean()) ** 2).sum()
    found = {"m": m, "r2": 1 - residual / spread}
    for name, change in CHANGES.items():
        readings = []
        for token in (0, 1):
            with change.running(model, token):
                read = _read(model, change.tokens(text, token), fits)
            readings.append(read[:, at + change.later])
        shift = readings[0] - readings[1]
        expected = predicted(change.factor, m)
        share = np.einsum("npsr,p->nsr", shift, expected) / (expected @ expected)
        found |= {f"share/{name}": share, f"shift/{name}": shift[..., 0]}
    return found


def _fitted(
    model: HookedModel, tokens: Sequences, sites: list[str], seed: int
) -> dict[str, tuple[Array, Array]]:
    """By site, the ridge regressions of 1/m and of the same permuted, from position 1 on."""
    n, length = tokens.shape
    order = torch.randperm(n * (length - 1), generator=torch.Generator().manual_seed(seed))
    inverse = (1 / torch.arange(2.0, length + 1, dtype=torch.float64)).repeat(n)
    labels = torch.stack((inverse, inverse[order]), dim=1)

    def flat(x: Tensor) -> Float[Tensor, "activation d_model"]:
        return x[:, 1:].flatten(0, 1).double().cpu()

    found = read_at(model, tokens, dict.fromkeys(sites, flat))
    return {
        site: LinearMoments().update(torch.cat(parts), labels).ridge(_ALPHA)
        for site, parts in found.items()
    }


def _read(
    model: HookedModel, tokens: Sequences, fits: Mapping[str, tuple[Array, Array]]
) -> Float[np.ndarray, "sequence pos site reading"]:
    def reading(x: Tensor, of: tuple[Array, Array]) -> Array:
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
        setting=f"{_HELD_OUT} held-out sequences behind the begin token for each model's counter",
        notes=tuple(_told(name, of) for name, of in found.items()),
    )


def _of(config: ReproduceConfig, device: str) -> dict[str, Array]:
    model, source = _loaded(config, device)
    none = np.array([layer.encoding == "none" for layer in layer_positions(model)])
    length = min(_LENGTH, model.cfg.n_ctx - 1)
    if length < _SHORTEST:
        raise UserError(
            f"the context of {config.model!r} is {model.cfg.n_ctx} tokens: to count from the begin "
            f"token it needs {_SHORTEST + 1}."
        )
    fit = source.sequences(_FIT, length, begin_token=True, split="fit", seed=config.seed)
    text = held_out(source, _HELD_OUT, length, config.seed)
    return {"none": none, **counted(model, fit, text, config.seed)}


def _loaded(config: ReproduceConfig, device: str) -> tuple[HookedModel, TokenSource]:
    """The model, and what it was trained on; text, for one that is not ours."""
    more = {}
    if str(config.model).endswith(".safetensors"):
        model, trained_on = load_model(Path(str(config.model)))
        more = {**vars(trained_on), "seq_len": model.config.n_ctx}
    variant = given_variant(config, device, **{"seq_len": _SHORTEST, "needed": {}, **more})
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
        f"{found['r2'][best]:.2f}. Fitted to permuted positions the share is at most {chance:.2f}."
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

    The begin token is changed, less the second token changed alike, read where 1/m is read best.
    Bars are 95% intervals over sequences.
    """
    for model, found in every.items():
        for name, change in CHANGES.items():
            yield panel(
                f"{model}: {name}",
                found["m"],
                predicted={"a counter": predicted(change.factor, found["m"])},
                reference={"a pool": 0.0},
                measured={"measured": found[f"shift/{name}"][:, :, _best(found)]},
            )
