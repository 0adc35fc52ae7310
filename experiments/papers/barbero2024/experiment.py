"""Barbero et al. 2024 (arXiv 2410.06205): what rotary heads can do and heads without positions
cannot, as weights, as a limit, and as something to learn; and what p-RoPE does to a language model.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.papers.barbero2024.given import copies_panels, read_given
from experiments.papers.barbero2024.previous_token import ENCODINGS, TOKENS, trained_run
from experiments.papers.config import ReproduceConfig
from experiments.papers.on_text import trained_on_text
from experiments.results.claims import Outcome
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, exactly, over_seeds, panel
from experiments.runs.cells import Cells
from nope_interp.constructions.barbero import (
    positional_head,
    repeated_token_gap,
    rotary_frequencies,
    strength_needed,
    target_weight,
)
from nope_interp.models.config import Positions, TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import read_at
from nope_interp.tasks.registry import make_task

_EPS = 1e-3
_OFFSETS = {"diagonal": 0, "previous-token": 1}
_LENGTH = 512
_AIMS = (0, 50, 200, 400)
_LONG, _WIDE_HEAD = 32_768, 256  # Gemma 7B's head width, as recalled, at four times its context
_COPIES, _BEFORE = 32, (5, 17, 40, 2)
_STRENGTHS = np.geomspace(0.05, 50, 25)
# Over 64 positions base 100 turns the lowest of 16 frequencies by 0.85 radians, as base 10,000 does
# Gemma's over 8,192: with that base, what is left out here would hardly have turned at all.
_KEPT, _P_LENGTH, _P_BASE = (0.0, 0.25, 0.5, 0.75, 1.0), 64, 100.0
_HELD_OUT = 512


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Builds the heads, weighs copies in random and trained models, and lets encodings learn.

    Beside these, a model of the user's is read where the config names one: first, so that one which
    cannot be read is refused before anything is trained.
    """
    given = None if config.model is None else read_given(config, cells, device)
    head = TransformerConfig(
        1, 64, 1, d_vocab=50, n_ctx=_LENGTH, positions="rotary", attn_only=True
    )
    frequencies = rotary_frequencies(head)
    built = {
        name: cells.arrays(name, partial(_built, head, offset)) for name, offset in _OFFSETS.items()
    }
    steps = config.scaled("training", 300)
    kinds: dict[str, tuple[Positions, int]] = {
        "random": ("none", 0),
        "trained": ("none", steps),
        "random, RoPE": ("rotary", 0),
    }
    gaps = {
        kind: cells.per_seed(f"copies, {kind}", config.seeds, partial(_gaps, positions, n))
        for kind, (positions, n) in kinds.items()
    }
    learning_steps = config.scaled("training", 400)
    learned = cells.side_by_side(
        {
            (encoding, kind): partial(trained_run, encoding, kind, learning_steps)
            for encoding in ENCODINGS
            for kind in TOKENS
        },
        config.seeds,
        title=lambda run: "{} on {} tokens".format(*run),
    )
    losses = _p_rope_losses(config, cells)
    strength = strength_needed(_EPS, _LENGTH, 0, frequencies)
    # The same norm of query and key, all of it on one block.
    alone = target_weight(strength * len(frequencies), _LENGTH, 0, frequencies[:1])
    nope = learned["NoPE", "repeated"]
    claims = {name: exactly([weights["weight"].min()]) for name, weights in built.items()} | {
        "top-frequency": exactly([alone]),
        "no-decay": exactly([_share_hit(frequencies)]),
        "long-context": exactly([_lowest_alone(np.arange(float(_LONG))).min()]),
        "impossible": exactly(
            gaps[kind][name][:, 0].max()
            for kind in ("random", "trained")
            for name in ("alone", "after")
        ),
        "deeper": over_seeds(gaps["trained"]["after"][:, -1].max(axis=-1)),
        "learned-rope": over_seeds(learned["RoPE", "repeated"]["accuracy"]),
        "p-rope": over_seeds(losses[0.75] - losses[1.0]),
    }
    # Else training finds no such head at all.
    finds = Outcome(config.paper.claim("learned-rope"), claims["learned-rope"])
    if finds.by_bounds == "reproduced":
        claims["learned-nope"] = over_seeds(nope["accuracy"] - nope["order_blind"])
    own = Findings(
        claims,
        (
            _weights(frequencies, built),
            _distances(frequencies),
            _copies(gaps),
            _learning(learned),
            _p_rope(losses),
        ),
        setting=f"heads of width 64 on {_LENGTH} positions; {len(config.seeds)} random models of 4 "
        f"layers, as many trained on text for {steps} steps, as many single layers for each "
        "encoding, and as many models of 2 layers for each fraction of p-RoPE",
        notes=(
            "Built heads are exact: their numbers have no interval.",
            "Copies: 32 of one token, alone or after four other tokens.",
        ),
    )
    return own if given is None else own.and_of(given)


def _built(head: TransformerConfig, offset: int) -> dict[str, Array]:
    """Weights on the target, of every query that has one, on random tokens."""
    strength = strength_needed(_EPS, _LENGTH, offset, rotary_frequencies(head))
    model = positional_head(head, offset, strength)
    tokens = torch.randint(
        head.d_vocab, (1, _LENGTH), generator=torch.Generator().manual_seed(offset)
    )

    def on_target(pattern: Tensor) -> Float[Array, " query"]:
        return pattern[0, 0].diagonal(offset=-offset).double().numpy()

    [[weight]] = read_at(model, tokens, {"blocks.0.attn.hook_pattern": on_target}).values()
    return {"weight": weight, "strength": np.array(strength)}


def _scores(
    frequencies: Float[Array, " frequency"],
    aim: Float[Array, " aim"],
    distance: Float[Array, " distance"],
) -> Float[Array, "aim distance"]:
    """Score, over its largest, of a key that is the query turned back by `aim` positions."""
    turned = np.multiply.outer(np.subtract.outer(aim, distance), frequencies)
    return np.cos(turned).mean(axis=-1)


def _share_hit(frequencies: Float[Array, " frequency"]) -> float:
    """Of all distances, the share at which the key aimed there scores highest."""
    every = np.arange(float(_LENGTH))
    return float((_scores(frequencies, every, every).argmax(axis=1) == every).mean())


def _lowest_alone(distance: Float[Array, " distance"]) -> Float[Array, " distance"]:
    """Score of a query's own copy on the lowest frequency of a wide head, over that beside it."""
    wide = TransformerConfig(1, _WIDE_HEAD, 1, d_vocab=2, n_ctx=2, positions="rotary")
    return _scores(rotary_frequencies(wide)[-1:], np.zeros(1), distance)[0]


@figure("distances", "distance", "score / largest score", claims=("no-decay", "long-context"))
def _distances(frequencies: Float[Array, " frequency"]) -> Iterator[Panel]:
    """Scores over distance.

    No head has to decay: turn the key, and the score is largest at any distance. But a frequency
    that turns at all turns a match against itself when the context is long enough.
    """
    away = np.arange(float(_LENGTH))
    aimed = zip(_AIMS, _scores(frequencies, np.array(_AIMS, dtype=float), away), strict=True)
    scores = {f"aimed at {aim}": of_aim for aim, of_aim in aimed}
    yield panel("all frequencies, keys aimed at a distance", away, measured=scores)
    far = np.linspace(0, _LONG - 1, 200)
    title = f"lowest frequency alone, head width {_WIDE_HEAD}"
    match = {"a match": _lowest_alone(far)}
    yield panel(title, far, chance={"no match": 0}, measured=match)


def _gaps(positions: Positions, steps: int, seed: int) -> dict[str, Float[Array, "layer head"]]:
    """How unequally copies are weighted, alone and after other tokens; no step is random."""
    config = TransformerConfig(
        4, 64, 4, d_vocab=make_task("text").d_vocab, n_ctx=64, positions=positions, seed=seed
    )
    model = trained_on_text(config, steps) if steps else HookedTransformer(config)
    token = ord("e")
    return {
        "alone": repeated_token_gap(model, token, _COPIES),
        "after": repeated_token_gap(model, token, _COPIES, _BEFORE),
    }


def _p_rope_losses(config: ReproduceConfig, cells: Cells) -> dict[float, Float[Array, " seed"]]:
    """Held-out loss by the fraction of frequencies kept; a seed means the same weights and text."""
    steps = config.scaled("training", 500)
    found = cells.side_by_side(
        {kept: partial(_p_rope_loss, kept, steps) for kept in _KEPT},
        config.seeds,
        title="p-RoPE {:g} on text".format,
    )
    return {kept: of_kept["loss"] for kept, of_kept in found.items()}


def _p_rope_loss(kept: float, steps: int, seed: int) -> dict[str, Array]:
    task = make_task("text")
    model = TransformerConfig(
        n_layers=2,
        d_model=64,
        n_heads=2,
        d_vocab=task.d_vocab,
        n_ctx=_P_LENGTH,
        positions="rotary",
        rotary_base=_P_BASE,
        rotary_kept=kept,
        seed=seed,
    )
    held_out = task.source().sequences(
        _HELD_OUT, _P_LENGTH, begin_token=False, split="held_out", seed=0
    )
    trained = trained_on_text(model, steps)
    return {"loss": sequence_losses(trained, held_out).double().mean().numpy()}


@figure("p-rope", "fraction kept, p", "nats per token", claims=("p-rope",))
def _p_rope(losses: Mapping[float, Float[Array, " seed"]]) -> Iterator[Panel]:
    """Leaving out low frequencies.

    Held-out loss on text by the fraction p of rotary frequencies, highest first, that turn; 0 is no
    positions, 1 is RoPE. Beside it, the loss less RoPE's of the same seed; bars are 95% intervals
    over seeds.
    """
    kept, each = np.array(_KEPT), np.stack([losses[p] for p in _KEPT], axis=1)
    less = {"p-RoPE": each - each[:, -1:]}
    yield panel("loss", kept, measured={"p-RoPE": each})
    yield panel("minus that of RoPE", kept, chance={"no difference": 0}, measured=less)


@figure(
    "weights",
    "norm of query times key, per block",
    "weight on the target",
    claims=("diagonal", "previous-token", "top-frequency"),
    log="x",
)
def _weights(
    frequencies: Float[Array, " frequency"], built: Mapping[str, Mapping[str, Array]]
) -> Iterator[Panel]:
    """Rotary weights for positional heads.

    Weight of the last of 512 queries on its target. The dotted curve puts the whole norm of query
    and key on the highest frequency.
    """
    for name, offset in _OFFSETS.items():

        def weights(used: Float[Array, " used"], offset: int = offset) -> Array:
            # One norm of query and key, spread evenly over the blocks in use.
            each = _STRENGTHS * len(frequencies) / len(used)
            return np.array([target_weight(strength, _LENGTH, offset, used) for strength in each])

        several = panel(
            f"{name} head",
            _STRENGTHS,
            predicted={"all frequencies": weights(frequencies)},
            reference={"highest frequency alone": weights(frequencies[:1])},
        )
        worst = {"built head, worst query": built[name]["weight"].min(keepdims=True)}
        head = panel(several.title, built[name]["strength"][None], measured=worst)
        yield Panel(several.title, several.series + head.series)


@figure("copies", "layer", "difference of weights", claims=("impossible", "deeper"))
def _copies(gaps: Mapping[str, Mapping[str, Float[Array, "seed layer head"]]]) -> Iterator[Panel]:
    """Copies of one token.

    Largest difference of a query's weights on the copies it sees, in the head where it is largest.
    It is the mean over models. 0 means that no head can tell them apart; rotary models can.
    """
    yield from copies_panels(gaps)


@figure(
    "learning",
    "encoding",
    "accuracy",
    claims=("learned-nope", "learned-rope"),
    ticks=tuple(ENCODINGS),
)
def _learning(
    learned: Mapping[tuple[str, str], Mapping[str, Float[Array, " seed"]]],
) -> Iterator[Panel]:
    """Learning a previous-token head.

    Held-out accuracy of naming the token before, one attention layer; bars are 95% intervals over
    seeds.
    """
    for kind in TOKENS:
        accuracy, blind = (
            np.stack([learned[encoding, kind][what] for encoding in ENCODINGS], axis=1)
            for what in ("accuracy", "order_blind")
        )
        yield panel(
            f"{kind} tokens",
            np.arange(len(ENCODINGS)),
            chance={"guessing without order": blind.mean()},
            measured={"one layer, trained": accuracy},
        )
