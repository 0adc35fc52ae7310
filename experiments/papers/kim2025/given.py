"""Kim et al. 2025 on a model of the user's choice: near keys, or what rotation leaves relative."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.kim2025.reading import ORDERS, UNITS, mean_scores, shuffled
from experiments.papers.kim2025.scores import (
    nearer_share,
    share_beyond,
    share_beyond_distance,
    variation,
)
from experiments.papers.on_text import given_variant, held_out, sentences, told_of
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.errors import UserError
from nope_interp.positions.layers import layer_positions

_SEQUENCES, _LENGTH, _LEAST_LENGTH = 64, 128, 16


def given_findings(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Reads the model that `config.model` names, as the positions of its layers allow.

    Raises UserError where it cannot be loaded, keeps its positions in an unknown place or shows no
    scores, and where its text is too short.
    """
    found = cells.arrays("given model", lambda: _read(config, device))
    name = Path(config.model or "").name
    n, length = found["text_shape"].tolist()
    orders = _orders(found["without"])
    each = "in a random order" if orders == 1 else f"each in {orders} random orders"
    setting = f"{name} on {n} sequences of {length} tokens of text, {each}"
    notes = list(sentences(found["told"]))
    rotary, without = found["rotary"], found["without"]
    claims: dict[str, Measured] = {}
    if without.all() and len(without) > 1:
        claims["trained-given"] = over_seeds(found["nearer"][:, 1:].mean(axis=1))
    elif rotary[0] and rotary.sum() > 1:
        claims["rope-given"] = over_seeds(found["variation"][:, rotary], _less_the_first)
    else:
        notes.append(
            f"No claim is tested on {name}: that takes rotary positions from its first layer on, "
            "or none in any layer."
        )
    return Findings(claims, (_drawn(found, name),), setting, tuple(notes))


def _read(config: ReproduceConfig, device: str) -> dict[str, Array]:
    variant = given_variant(config, device, seq_len=_LEAST_LENGTH, of_heads=True)
    model, source = variant.model, variant.sources[0]
    layers = layer_positions(model)
    limits = [layer.reach for layer in layers if layer.reach is not None]
    length = min(_LENGTH, model.cfg.n_ctx, *limits)
    text = held_out(source, _SEQUENCES, length, config.seed)
    without = np.array([layer.encoding == "none" for layer in layers])
    first = int(source.begin_id is not None)
    scores = mean_scores(model, shuffled(text, first, config.seed, _orders(without)))
    if not np.isneginf(scores[0, 0, 0, -1]):
        raise UserError(
            f"{variant.name} shows attention weights in place of scores: choose another model."
        )
    return {
        "text_shape": np.array(text.shape),
        "told": told_of(variant),
        "rotary": np.array([layer.encoding == "rotary" for layer in layers]),
        "without": without,
        "nearer": _nearer(scores),
        "variation": variation(scores),
        "beyond": share_beyond_distance(scores),
    }


def _orders(without: Bool[Array, " layer"]) -> int:
    """How many orders a model is read in: what is asked of rotary ones needs one, since products of
    two eighths have no noise in them on average."""
    return ORDERS if without.all() else 1


def _nearer(scores: Float[Array, "unit layer pos pos"]) -> Float[Array, "unit layer"]:
    """The share over all units, as one number for each: the jackknife's pseudo-values (Tukey 1958).

    Signs of noisy means are near chance: each unit's own would hide what all show together.
    """
    every = scores.sum(axis=0)
    # Later keys, which a query does not see, have scores of minus infinity.
    with np.errstate(invalid="ignore"):
        without = nearer_share((every - scores) / (UNITS - 1))
    return np.asarray(UNITS * nearer_share(every / UNITS) - (UNITS - 1) * without)


def _less_the_first(means: Float[Array, "row columns"]) -> Float[Array, " row"]:
    shares = share_beyond(means)
    return shares[:, 1:].mean(axis=1) - shares[:, 0]


@figure("given-scores", "layer", "share", claims=("trained-given", "rope-given"))
def _drawn(found: Mapping[str, Array], name: str) -> Iterator[Panel]:
    """Scores of {name}.

    Mean scores over heads and sequences. Left, pairs of keys of which the nearer scores higher;
    right, the share of their variation that distance does not explain.
    """
    layers = np.arange(1, len(found["rotary"]) + 1)
    nearer = {"all pairs": found["nearer"]}
    yield panel("nearer scores higher", layers, chance={"no pattern": 0.5}, measured=nearer)
    beyond = {"mean over sequences": found["beyond"]}
    yield panel(
        "not explained by distance", layers, chance={"purely relative": 0.0}, measured=beyond
    )
