"""Barbero et al. 2024 (arXiv 2410.06205): what rotary heads can do and heads without positions
cannot, as weights, as a limit, and as something to learn; and what p-RoPE does to a language model.
"""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.papers.barbero2024.given import read_given
from experiments.papers.barbero2024.previous_token import ENCODINGS, TOKENS, previous_token_learning
from experiments.papers.config import ReproduceConfig
from experiments.results.findings import (
    Figure,
    Findings,
    Panel,
    Series,
    curve,
    exactly,
    line,
    over_seeds,
)
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
from nope_interp.streams import stream
from nope_interp.tasks.registry import make_task
from nope_interp.training.config import TrainingConfig
from nope_interp.training.train import train

Array = np.ndarray

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
        name: cells.arrays(name, lambda offset=offset: _built(head, offset))  # type: ignore[misc]
        for name, offset in _OFFSETS.items()
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
    learned = _learned(config, cells)
    losses = _p_rope_losses(config, cells)
    strength = strength_needed(_EPS, _LENGTH, 0, frequencies)
    # The same norm of query and key, all of it on one block.
    alone = target_weight(strength * len(frequencies), _LENGTH, 0, frequencies[:1])
    nope = learned["NoPE", "repeated"]
    claims = {
        name: exactly([float(weights["weight"].min())]) for name, weights in built.items()
    } | {
        "top-frequency": exactly([alone]),
        "no-decay": exactly([_share_hit(frequencies)]),
        "long-context": exactly([float(_lowest_alone(np.arange(float(_LONG))).min())]),
        "impossible": exactly(
            float(gaps[kind][name][:, 0].max())
            for kind in ("random", "trained")
            for name in ("alone", "after")
        ),
        "deeper": over_seeds(gaps["trained"]["after"][:, -1].max(axis=-1)),
        "learned-nope": over_seeds(nope["accuracy"] - nope["order_blind"]),
        "learned-rope": over_seeds(learned["RoPE", "repeated"]["accuracy"]),
        "p-rope": over_seeds(losses[0.75] - losses[1.0]),
    }
    figures = (
        _weights(frequencies, built),
        _distances(frequencies),
        _copies(gaps),
        _learning(learned),
        _p_rope(losses),
    )
    own = Findings(
        claims,
        figures,
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
    found: list[Tensor] = []
    stream(model, tokens, {"blocks.0.attn.hook_pattern": found.append})
    weight = found[0][0, 0].diagonal(offset=-offset).double().numpy()
    return {"weight": weight, "strength": np.array(strength)}


def _scores(
    frequencies: Float[np.ndarray, " frequency"],
    aim: Float[np.ndarray, " aim"],
    distance: Float[np.ndarray, " distance"],
) -> Float[np.ndarray, "aim distance"]:
    """Score, over its largest, of a key that is the query turned back by `aim` positions."""
    turned = np.multiply.outer(np.subtract.outer(aim, distance), frequencies)
    return np.cos(turned).mean(axis=-1)


def _share_hit(frequencies: Float[np.ndarray, " frequency"]) -> float:
    """Of all distances, the share at which the key aimed there scores highest."""
    every = np.arange(float(_LENGTH))
    return float((_scores(frequencies, every, every).argmax(axis=1) == every).mean())


def _lowest_alone(distance: Float[np.ndarray, " distance"]) -> Float[np.ndarray, " distance"]:
    """Score of a query's own copy on the lowest frequency of a wide head, over that beside it."""
    wide = TransformerConfig(1, _WIDE_HEAD, 1, d_vocab=2, n_ctx=2, positions="rotary")
    return _scores(rotary_frequencies(wide)[-1:], np.zeros(1), distance)[0]


def _distances(frequencies: Float[np.ndarray, " frequency"]) -> Figure:
    away = np.arange(float(_LENGTH))
    aimed = _scores(frequencies, np.array(_AIMS, dtype=float), away)
    far = np.linspace(0, _LONG - 1, 200)
    return Figure(
        "distances",
        "Scores over distance",
        "No head has to decay: turn the key, and the score is largest at any distance. But a "
        "frequency that turns at all turns a match against itself when the context is long enough.",
        "distance",
        "score / largest score",
        (
            Panel(
                "all frequencies, keys aimed at a distance",
                tuple(
                    line(f"aimed at {aim}", "measured", away, scores)
                    for aim, scores in zip(_AIMS, aimed, strict=True)
                ),
            ),
            Panel(
                f"lowest frequency alone, head width {_WIDE_HEAD}",
                (
                    line("no match", "chance", far, 0.0),
                    line("a match", "measured", far, _lowest_alone(far)),
                ),
            ),
        ),
        claims=("no-decay", "long-context"),
    )


def _gaps(positions: Positions, steps: int, seed: int) -> dict[str, Float[Array, "layer head"]]:
    """How unequally copies are weighted, alone and after other tokens; no step is random."""
    task = make_task("text")
    config = TransformerConfig(
        4, 64, 4, d_vocab=task.d_vocab, n_ctx=64, positions=positions, seed=seed
    )
    model = HookedTransformer(config)
    if steps:
        training = TrainingConfig(steps=steps, seq_len=64, warmup=min(100, steps), seed=seed)
        model = train(config, training, task, show_progress=False)
    token = ord("e")
    return {
        "alone": repeated_token_gap(model, token, _COPIES),
        "after": repeated_token_gap(model, token, _COPIES, _BEFORE),
    }


def _learned(
    config: ReproduceConfig, cells: Cells
) -> dict[tuple[str, str], dict[str, Float[Array, " seed"]]]:
    steps = config.scaled("training", 400)

    def run(encoding: str, kind: str, seed: int) -> dict[str, Array]:
        rows = previous_token_learning([encoding], [kind], [seed], steps=steps, show_progress=False)
        return {name: np.asarray(rows[name].iloc[0]) for name in ("accuracy", "order_blind")}

    every = {
        f"{encoding} on {kind} tokens": (encoding, kind)
        for encoding in ENCODINGS
        for kind in TOKENS
    }
    found = cells.side_by_side(
        {title: partial(run, *what) for title, what in every.items()}, config.seeds
    )
    return {what: found[title] for title, what in every.items()}


def _p_rope_losses(config: ReproduceConfig, cells: Cells) -> dict[float, Float[Array, " seed"]]:
    """Held-out loss by the fraction of frequencies kept; a seed means the same weights and text."""
    steps = config.scaled("training", 500)
    task = make_task("text")

    def run(kept: float, seed: int) -> dict[str, Array]:
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
        training = TrainingConfig(steps=steps, seq_len=_P_LENGTH, warmup=min(100, steps), seed=seed)
        trained = train(model, training, task, show_progress=False)
        held_out = task.source().sequences(
            _HELD_OUT, _P_LENGTH, begin_token=False, split="held_out", seed=0
        )
        return {"loss": sequence_losses(trained, held_out).double().mean().numpy()}

    titles = {kept: f"p-RoPE {kept:g} on text" for kept in _KEPT}
    found = cells.side_by_side(
        {title: partial(run, kept) for kept, title in titles.items()}, config.seeds
    )
    return {kept: found[title]["loss"] for kept, title in titles.items()}


def _p_rope(losses: dict[float, Float[Array, " seed"]]) -> Figure:
    kept = np.array(_KEPT)
    each = np.stack([losses[p] for p in _KEPT], axis=1)
    return Figure(
        "p-rope",
        "Leaving out low frequencies",
        "Held-out loss on text by the fraction p of rotary frequencies, highest first, that turn; "
        "0 is no positions, 1 is RoPE. Beside it, the loss less RoPE's of the same seed; bars are "
        "95% intervals over seeds.",
        "fraction kept, p",
        "nats per token",
        (
            Panel("loss", (curve("p-RoPE", "measured", kept, each),)),
            Panel(
                "less that of RoPE",
                (
                    line("no difference", "chance", kept, 0.0),
                    curve("p-RoPE", "measured", kept, each - each[:, -1:]),
                ),
            ),
        ),
        claims=("p-rope",),
    )


def _weights(frequencies: Float[Array, " frequency"], built: dict[str, dict[str, Array]]) -> Figure:
    panels = []
    for name, offset in _OFFSETS.items():
        several = (("all frequencies", frequencies), ("highest frequency alone", frequencies[:1]))
        series = []
        for title, used in several:
            # One norm of query and key, spread evenly over the blocks in use.
            each = _STRENGTHS * len(frequencies) / len(used)
            weights = [target_weight(s, _LENGTH, offset, used) for s in each]
            kind = "predicted" if used is frequencies else "reference"
            series.append(line(title, kind, _STRENGTHS, np.array(weights)))  # type: ignore[arg-type]
        found = built[name]
        worst = np.array([found["weight"].min()])
        series.append(Series("built head, worst query", "measured", found["strength"][None], worst))
        panels.append(Panel(f"{name} head", tuple(series)))
    return Figure(
        "weights",
        "Rotary weights for positional heads",
        "Weight of the last of 512 queries on its target. The dotted curve puts the whole norm of "
        "query and key on the highest frequency.",
        "norm of query times key, per block",
        "weight on the target",
        tuple(panels),
        claims=("diagonal", "previous-token", "top-frequency"),
        log="x",
    )


def _copies(gaps: dict[str, dict[str, Float[Array, "seed layer head"]]]) -> Figure:
    panels = []
    for name, title in (("alone", "copies alone"), ("after", "copies after other tokens")):
        series = []
        for kind, found in gaps.items():
            most = found[name].max(axis=-1)
            layers = np.arange(most.shape[1])
            series.append(curve(kind, "measured", layers, most))
        panels.append(Panel(title, tuple(series)))
    return Figure(
        "copies",
        "Copies of one token",
        "Largest difference of a query's weights on the copies it sees, in the head where it is "
        "largest; mean over models. 0 means that no head can tell them apart; rotary models can.",
        "layer",
        "difference of weights",
        tuple(panels),
        claims=("impossible", "deeper"),
    )


def _learning(learned: dict[tuple[str, str], dict[str, Float[Array, " seed"]]]) -> Figure:
    at = np.arange(len(ENCODINGS))
    panels = []
    for kind in TOKENS:
        rows = [learned[encoding, kind] for encoding in ENCODINGS]
        accuracy = np.stack([row["accuracy"] for row in rows], axis=1)
        blind = np.stack([row["order_blind"] for row in rows], axis=1).mean()
        panels.append(
            Panel(
                f"{kind} tokens",
                (
                    line("guessing without order", "chance", at, blind),
                    curve("one layer, trained", "measured", at, accuracy),
                ),
            )
        )
    return Figure(
        "learning",
        "Learning a previous-token head",
        "Held-out accuracy of naming the token before, one attention layer; bars are 95% intervals "
        "over seeds.",
        "encoding",
        "accuracy",
        tuple(panels),
        claims=("learned-nope", "learned-rope"),
        ticks=tuple(ENCODINGS),
    )
