"""Haviv et al. 2022 (arXiv 2203.16634): language models with and without positional encodings,
trained alike; what they lose, where a probe finds position in them, and whether they use order."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from experiments.papers.config import ReproduceConfig
from experiments.papers.haviv2022.masked import masked_model
from experiments.papers.on_text import trained_on_text
from experiments.probing.measure import feed
from experiments.probing.sites import sites
from experiments.results.figures import figure
from experiments.results.findings import (
    Array,
    Findings,
    Panel,
    chance_levels,
    chances,
    over_seeds,
    panel,
)
from experiments.results.measured import Measured
from experiments.runs.cells import Cells
from nope_interp.models.checkpoints import as_bidirectional
from nope_interp.models.config import Positions, TransformerConfig
from nope_interp.models.losses import sequence_losses, unigram_losses
from nope_interp.models.marked import logits_at
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import PerSequence, Sequences
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import Split
from probes.nonlinear import TwoLayerProbe
from probes.scores import SHUFFLED

ENCODINGS: dict[str, Positions] = {
    "NoPE": "none",
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "ALiBi": "alibi",
}
RANDOM_INIT, UNMASKED = "NoPE, random-init", "NoPE without the causal mask"
# Of the paper's encodings those that a masked model is trained with.
_MASKED = ("NoPE", "learned")
# Bytes of the text that training never sees: to fit probes on, at most, and held out.
_FIT, _HELD_OUT = 60_000, 32_000
_BATCH = 32  # sequences in a forward pass
_TRAINED_ON = 8  # in a batch of the training

# Arrays by encoding, with a first axis over seeds.
Trained = Mapping[str, Mapping[str, Array]]


def reproduce(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Trains every encoding on the same batches, then reads loss, position and use of order."""
    length = config.scaled("length", 64, least=8)
    base = TransformerConfig(
        n_layers=config.scaled("depth", 4, least=2),
        d_model=config.scaled("width", 32, multiple_of=8, least=16),
        n_heads=4,
        d_vocab=make_task("text").d_vocab,
        n_ctx=length,
        init="xavier_normal",
    )
    steps = config.scaled("training", 1500)
    n_fit = max(2, min(_FIT, config.scaled("training", _FIT)) // length)
    trained = cells.side_by_side(
        {
            name: partial(_trained, replace(base, positions=positions), steps, n_fit, device)
            for name, positions in ENCODINGS.items()
        },
        config.seeds,
    )
    compute = partial(_untrained, base, n_fit, device)
    untrained = cells.side_by_side({RANDOM_INIT: compute}, config.seeds)[RANDOM_INIT]
    unseen = partial(unseen_text, length, n_fit)
    masked = cells.side_by_side(
        {
            name: partial(
                masked_model, replace(base, positions=ENCODINGS[name]), steps, unseen, device
            )
            for name in _MASKED
        },
        config.seeds,
        title="masked, {}".format,
    )
    claims = _claims(trained, untrained, masked)
    return Findings(
        claims,
        (
            _losses(trained),
            _fails(trained, masked),
            _order(trained),
            _layers(trained, untrained),
            _positions(trained),
        ),
        setting=f"{len(ENCODINGS)} encodings, each trained from {len(config.seeds)} seeds for "
        f"{steps} steps of {_TRAINED_ON} sequences; {base.n_layers} layers, width "
        f"{base.d_model}, {base.n_heads} heads, {length} bytes of Python's manual; probes "
        f"are fitted on {n_fit} sequences",
        notes=(
            "With one seed all encodings see the same batches in the same order. Losses, probes "
            "and shuffled prefixes are taken on text that training never saw, without a begin "
            "token; half of the training sequences have one.",
            "The manual repeats itself: under Python 3.11, 8% of the held-out sequences also stand "
            "in the training text, for all encodings alike.",
            f"Intervals are over {len(config.seeds)} seeds, which draw weights, batches and the "
            "choice of held-out sequences. So small models differ much from seed to seed: --seeds "
            "gives more of them.",
            "Masked models fill in blanks: 15% of the bytes. They have four times the steps, and "
            "four times the sequences in a step. Of the loss of who knows the frequencies of bytes "
            f"they have {_of_frequencies(masked['NoPE'])} without positions, "
            f"{_of_frequencies(masked['learned'])} with learned ones.",
            "An explicit encoding writes position into the embedding (learned, sinusoidal) or into "
            "the attention scores (ALiBi): at the embedding ALiBi, like NoPE, holds none.",
            *_left_out(claims),
        ),
    )


def _trained(
    base: TransformerConfig, steps: int, n_fit: int, device: str, seed: int
) -> dict[str, Array]:
    """All that is read of one trained model, and for NoPE of its weights without the mask."""
    # Adam's best rate falls with the width (Yang et al. 2022, arXiv 2203.03466).
    rate = 0.32 / base.d_model
    model = trained_on_text(
        replace(base, seed=seed), steps, device, batch_size=_TRAINED_ON, learning_rate=rate
    )
    fit, held_out = unseen_text(base.n_ctx, n_fit, seed)
    kept = kept_in_order(base.n_ctx)
    losses = [
        last_token_loss(model, shuffled_before(held_out, count, seed)).mean() for count in kept
    ]
    found = {
        "loss": sequence_losses(model, held_out, batch_size=_BATCH).double().mean().numpy(),
        "chance": unigram_losses(fit, held_out, base.d_vocab).double().mean().numpy(),
        "kept": np.array(kept),
        "last_loss": torch.stack(losses).numpy(),
        **probe_errors(model, fit, held_out, seed),
    }
    if base.positions == "none":
        unmasked = as_bidirectional(model).to(device)
        found["unmasked"] = probe_errors(unmasked, fit, held_out, seed)["error"]
    return found


def _untrained(base: TransformerConfig, n_fit: int, device: str, seed: int) -> dict[str, Array]:
    model = HookedTransformer(replace(base, seed=seed)).to(device).eval()
    return probe_errors(model, *unseen_text(base.n_ctx, n_fit, seed), seed)


def unseen_text(length: int, n_fit: int, seed: int) -> tuple[Sequences, Int[Tensor, "other pos"]]:
    """`n_fit` sequences to fit probes on and held-out ones, which share no text with each other or
    with training. Raises UserError where the text is too short for them."""
    counts: dict[Split, int] = {"fit": n_fit, "held_out": max(2, _HELD_OUT // length)}
    source = make_task("text").source()
    fit, held_out = (
        source.sequences(n, length, begin_token=False, split=split, seed=seed)
        for split, n in counts.items()
    )
    return fit, held_out


def probe_errors(
    model: HookedTransformer,
    fit: Sequences,
    held_out: Int[Tensor, "other pos"],
    seed: int,
) -> dict[str, Array]:
    """What a two-layer probe leaves of position at the embedding and after every layer.

    Returns the mean absolute error in positions, `error` [layer], that of the same probe fitted to
    shuffled positions, `shuffled` [layer], and the error at each position, `by_position`
    [layer pos], from position 1 on. Layer 0 is the embedding with whatever encoding is added to it.
    """
    where = sites(model.config.n_layers, ["resid_post"])
    probes = {site: [TwoLayerProbe(seed=seed)] for site in where}
    feed(model, fit, probes, "update", batch_size=_BATCH)
    feed(model, held_out, probes, "evaluate", batch_size=_BATCH)
    results = [probe.result()["two_layer"] for (probe,) in probes.values()]
    return {
        "error": np.array([result.score("mae").value for result in results]),
        "shuffled": np.array([result.score("mae", SHUFFLED).value for result in results]),
        "by_position": np.stack([result.arrays["error"] for result in results]),
    }


def kept_in_order(length: int) -> list[int]:
    """How many tokens before the last one are not shuffled: 1, 2, 4, ..., and all of them."""
    every = length - 1
    return [2**i for i in range(every.bit_length()) if 2**i < every] + [every]


def shuffled_before(tokens: Sequences, kept: int, seed: int) -> Sequences:
    """Each sequence with all but its last token and the `kept` before it in an order of its own."""
    cut = tokens.shape[1] - 1 - kept
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(len(tokens), cut, generator=generator).argsort(dim=1)
    return torch.cat((tokens[:, :cut].gather(1, order), tokens[:, cut:]), dim=1)


@torch.no_grad()
def last_token_loss(model: HookedTransformer, tokens: Sequences) -> PerSequence:
    """Cross-entropy of the last token of each sequence given all before it, in nats."""
    losses = []
    for batch in tokens.split(_BATCH):
        last = torch.zeros_like(batch[:, :-1], dtype=torch.bool)
        last[:, -1] = True
        logits = logits_at(model, batch[:, :-1], last).double().cpu()
        losses.append(F.cross_entropy(logits, batch[:, -1], reduction="none"))
    return torch.cat(losses)


def _of_all(trained: Trained, what: str) -> Float[Array, "seed encoding *k"]:
    return np.stack([found[what] for found in trained.values()], axis=1)


def _claims(
    trained: Trained, untrained: Mapping[str, Array], masked: Trained
) -> dict[str, Measured]:
    """A number for each claim."""
    nope = trained["NoPE"]
    middle, _ = chances(nope["by_position"].shape[-1])
    n_layers = nope["error"].shape[1] - 1
    early, half = max(2, n_layers // 4), n_layers // 2
    losses, errors = _of_all(trained, "loss"), _of_all(trained, "error")
    explicit = errors[:, 1:, half].mean(axis=1)

    def fall(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return means[:, 0] - means.min(axis=1)

    def early_share(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return (means[:, 0] - means[:, early]) / fall(means)

    def trained_over_untrained(means: Float[Array, "row two_layers"]) -> Float[Array, " row"]:
        after, before = np.split(means, 2, axis=1)
        return after.min(axis=1) / before.min(axis=1)

    def more_without(means: Float[Array, "row two_layers"]) -> Float[Array, " row"]:
        unmasked, causal = np.split(means, 2, axis=1)
        return (unmasked.min(axis=1) - causal.min(axis=1)) / middle

    def best_share(means: Float[Array, "row layer"]) -> Float[Array, " row"]:
        return means.min(axis=1) / middle

    claims = {
        "competitive": over_seeds(losses, lambda means: means[:, 0] / means[:, 1:].mean(axis=1)),
        "trails": over_seeds(losses, lambda means: means[:, 0] / means[:, 1:].max(axis=1)),
        "order": over_seeds(nope["last_loss"][:, 0] - nope["last_loss"][:, -1]),
        "decodable": over_seeds(nope["error"], best_share),
        "input": over_seeds(nope["error"][:, 0] / middle),
        "near-explicit": over_seeds((nope["error"][:, half] - explicit) / middle),
        "rises": over_seeds(errors[:, :, -1] - errors[:, :, half], lambda means: means.min(axis=1)),
        "training": over_seeds(
            np.concatenate((nope["error"], untrained["error"]), axis=1), trained_over_untrained
        ),
        # The embedding is the same with and without the mask.
        "mask": over_seeds(
            np.concatenate((nope["unmasked"][:, 1:], nope["error"][:, 1:]), axis=1), more_without
        ),
        "masked": over_seeds(_of_all(masked, "loss"), lambda means: means[:, 0] / means[:, 1]),
    }
    if all(
        (found["learned"]["loss"] < found["learned"]["chance"]).all() for found in (trained, masked)
    ):
        claims["masked-more"] = over_seeds(_lost(masked) - _lost(trained))
    # The least of several noisy errors is always below the first: where it is that of the early
    # layer, the share is 1 without spread.
    if over_seeds(nope["error"], fall).ci_low > 0:
        claims["falls"] = over_seeds(nope["error"], early_share)
    return claims


def _left_out(claims: Mapping[str, Measured]) -> Iterator[str]:
    if "falls" not in claims:
        yield (
            "The claim falls is left out: after no layer is the probe's error in NoPE surely below "
            "that at the embedding."
        )


def _lost(found: Trained) -> Float[Array, " seed"]:
    """What is lost without positions, as a share of what learned ones gain over frequencies."""
    nope, learned = (found[name]["loss"] for name in _MASKED)
    share: Array = (nope - learned) / (found["learned"]["chance"] - learned)
    return share


def _of_frequencies(found: Mapping[str, Array]) -> str:
    return f"{(found['loss'] / found['chance']).mean():.0%}"


def _by_bytes(trained: Trained) -> dict[str, float]:
    return {"frequency of bytes": trained["NoPE"]["chance"].mean()}


@figure("losses", "encoding", "nats per byte", claims=("competitive", "trails"), ticks=tuple)
def _losses(trained: Trained) -> Iterator[Panel]:
    """Loss with each encoding.

    Held-out text; bars are 95% intervals over seeds. Models with one seed saw the same batches, so
    the difference between them is surer than their own losses.
    """
    losses, at = _of_all(trained, "loss"), np.arange(len(trained))
    own, less = ({"held out": of} for of in (losses, losses[:, :1] - losses[:, 1:]))
    beside = "loss, beside frequencies alone"
    yield panel("loss", at, measured=own)
    yield panel(beside, at, chance=_by_bytes(trained), measured=own)
    yield panel("NoPE minus each of the others", at[1:], chance={"no difference": 0}, measured=less)


@figure("masked", "encoding", "nats per byte", claims=("masked", "masked-more"), ticks=_MASKED)
def _fails(trained: Trained, masked: Trained) -> Iterator[Panel]:
    """With and without a causal mask.

    Held-out loss: of the next byte, or, without the mask, of blanks between the bytes on both
    sides. Bars are 95% intervals over seeds.
    """
    at = np.arange(float(len(_MASKED)))
    for title, found in (("next byte, causal", trained), ("blanks, no causal mask", masked)):
        losses = np.stack([found[name]["loss"] for name in _MASKED], axis=1)
        yield panel(title, at, chance=_by_bytes(trained), measured={"held out": losses})


@figure("order", "bytes left in order", "nats", claims=("order",), log="x")
def _order(trained: Trained) -> Iterator[Panel]:
    """With the prefix shuffled.

    Loss of the last byte of held-out sequences. So many bytes before it are left where they are,
    and all earlier ones are shuffled. On the right of each panel nothing is shuffled.
    """
    kept = trained["NoPE"]["kept"][0]
    losses = {name: found["last_loss"] for name, found in trained.items()}
    rises = {name: loss - loss[:, -1:] for name, loss in losses.items()}
    yield panel("loss", kept, chance=_by_bytes(trained), measured=losses)
    yield panel("minus that of the intact sequence", kept, chance={"0": 0}, measured=rises)


@figure(
    "layers",
    "layer",
    "mean absolute error, positions",
    claims=("decodable", "input", "falls", "near-explicit", "rises", "training", "mask"),
)
def _layers(trained: Trained, untrained: Mapping[str, Array]) -> Iterator[Panel]:
    """Position by layer.

    Held-out error of a two-layer probe of absolute position, at the embedding (layer 0) and after
    every layer of frozen models. Bars are 95% intervals over seeds.
    """
    nope = trained["NoPE"]
    layers = np.arange(nope["error"].shape[1])
    levels = chance_levels(nope["by_position"].shape[-1])
    errors = {name: found["error"] for name, found in trained.items()}
    controls = {
        "NoPE, trained": nope["error"],
        RANDOM_INIT: untrained["error"],
        UNMASKED: nope["unmasked"],
        "NoPE, shuffled positions": nope["shuffled"],
    }
    for title, measured in (("trained", errors), ("controls", controls)):
        yield panel(title, layers, chance=levels, measured=measured)


@figure("positions", "position, from 0", "mean absolute error, positions", claims=("decodable",))
def _positions(trained: Trained) -> Iterator[Panel]:
    """Error by position.

    The same errors, position by position.
    """
    _, n_sites, n_positions = trained["NoPE"]["by_position"].shape
    last, at = n_sites - 1, np.arange(1, n_positions + 1)
    middle = {"always the middle": np.abs(at - np.median(at))}
    for layer in sorted({1, last // 2, last}):
        errors = {name: found["by_position"][:, layer] for name, found in trained.items()}
        yield panel(f"after layer {layer}", at, chance=middle, measured=errors)
