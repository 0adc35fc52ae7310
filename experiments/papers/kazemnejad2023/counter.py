"""Counter or pool? Claims on trained models without positions whose first tokens are changed: does
the reading of 1/m shift as a counter's, is it one head that counts, and is its count inverted?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023.first_tokens import (
    CHANGES,
    MOST_SHARED,
    counted,
    n_shared,
    predicted,
    predicted_inverse,
)
from experiments.papers.on_text import given_variant
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.results.measurements import RANDOM_INIT
from experiments.runs.cells import Cells
from experiments.variants.embedded import EMBEDDED_MODEL
from experiments.variants.variants import ModelVariant, random_init
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import load_model
from nope_interp.positions.layers import layer_positions
from nope_interp.shapes import Sequences
from nope_interp.tasks.answers import ExampleSource, TaskSplit, dataset
from nope_interp.tasks.sources import Split, TokenSource

# How many sequences are read; of a task, of each length.
_SPLITS: tuple[tuple[Split, int], ...] = (("fit", 128), ("held_out", 64))
_LENGTH, _SHORTEST = 127, 16
_UNTRAINED = "untrained/"

# What is found in a model, by name.
Found = Mapping[str, Array]


def counter_findings(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Changes the first tokens of the model that ships with the package, and of a given one.

    Raises UserError where the given model cannot be loaded or has a context too short.
    """
    shipped = replace(config, model=str(EMBEDDED_MODEL), positions="auto", text=None)
    small = cells.arrays("counter", lambda: _of(shipped, device))
    found = {"the small model": small}
    claims = {f"counter-{name}": measured for name, measured in _claims(small).items()}
    if config.model is not None:
        given = cells.arrays("counter of the given model", lambda: _of(config, device))
        found[Path(config.model).name] = given
        if given["none"].all():
            claims |= _claims_of_given(given)
    return Findings(
        claims,
        (_drawn(found), _by_head(found), _inverted(found)),
        setting="64 held-out sequences",
        notes=(
            "Changed are the first tokens, which all sequences share, and as many after them. This "
            "is done in 64 held-out sequences, of a task in 64 of each length.",
            *(sentence for name, of in found.items() for sentence in _told(name, of)),
        ),
    )


def _of(config: ReproduceConfig, device: str) -> dict[str, Array]:
    """What is found in the model, and, under "untrained/", in one of its shape with random weights:
    of a model of ours, those that its training began with."""
    variant = _loaded(config, device)
    model, source = variant.model, variant.sources[0]
    none = np.array([layer.encoding == "none" for layer in layer_positions(model)])
    drawn = [_sequences(source, model.cfg.n_ctx, n, split, config) for split, n in _SPLITS]
    # Room for the first tokens to stand twice.
    room = model.cfg.n_ctx - n_shared(drawn[0])
    fit, read = ([tokens[:, :room] for tokens in part] for part in drawn)
    if not read or read[-1].shape[1] < _SHORTEST:
        raise UserError(
            f"{config.model!r} reads too short sequences to count in: give a model whose context "
            f"holds {_SHORTEST + MOST_SHARED} tokens."
        )
    untrained = counted(random_init(variant, config.seed).model, fit, read, config.seed)
    return {
        "none": none,
        **counted(model, fit, read, config.seed),
        **{f"{_UNTRAINED}{name}": array for name, array in untrained.items()},
    }


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


def _loaded(config: ReproduceConfig, device: str) -> ModelVariant:
    """The model, with what it was trained on; text, for one that is not ours."""
    more: dict[str, Any] = {"seq_len": _SHORTEST}
    if str(config.model).endswith(".safetensors"):
        ours, trained_on = load_model(Path(str(config.model)))
        more = {**vars(trained_on), "seq_len": ours.config.n_ctx}
    return given_variant(config, device, needed={}, **more)


def _best(found: Found, of: str = "") -> int:
    """The site where 1/m, or with "position/" m, is read best of the intact sequences."""
    return int(found[f"{of}r2"].argmax())


def _claims(found: Found) -> dict[str, Measured]:
    """By what is claimed."""
    shares = {name: found[f"share/{name}"][:, _best(found), 0] for name in CHANGES}
    claims = {name: over_seeds(share) for name, share in shares.items()}
    return claims | {
        "head": _best_head(found)[1],
        "inverted": _inversion(found),
    }


def _claims_of_given(found: Found) -> dict[str, Measured]:
    """Without what the readings tell no better than a constant does."""
    claims = _claims(found)
    shares = [claims.pop(name) for name in CHANGES]
    named = {}
    if found["r2"].max() > 0:
        named["counter-given"] = min(shares, key=lambda share: share.ci_low)
        named["counter-given-head"] = claims["head"]
    if found["position/r2"].max() > 0:
        named["counter-given-inverted"] = claims["inverted"]
    return named


def _inversion(found: Found, of: str = "") -> Measured:
    """R² of an inverted count's shift: 1 where the reading of m shifts as predicted at every
    position, 0 where it shifts by the same everywhere, on average as predicted."""
    expected = predicted_inverse(CHANGES["scaled"].factor, found["m"], int(found["k"]))
    spread = np.square(expected - expected.mean()).sum()

    def r2(means: Float[Array, "row _"]) -> Float[Array, " row"]:
        share: Array = 1 - np.square(means - expected).sum(axis=-1) / spread
        return share

    return over_seeds(found[f"{of}position/shift"], r2)


def _best_head(found: Found, of: str = "") -> tuple[tuple[int, int], Measured]:
    """The head with the largest share in every second sequence, and its share in the others."""
    chosen, scored = found[f"{of}heads"][::2], found[f"{of}heads"][1::2]
    layer, head = np.unravel_index(chosen.mean(axis=0).argmax(), chosen.shape[1:])
    return (int(layer), int(head)), over_seeds(scored[:, layer, head])


def _told(name: str, found: Found) -> Iterator[str]:
    best, position = _best(found), _best(found, "position/")
    chance = max(abs(found[f"share/{change}"][:, best, 1].mean()) for change in CHANGES)
    (layer, head), share = _best_head(found)
    untrained = _best_head(found, _UNTRAINED)[1]
    inverted, random = _inversion(found), _inversion(found, _UNTRAINED)
    yield (
        f"In {name} 1/m is read best after layer {best + 1}, with an R² of "
        f"{found['r2'][best]:.2f}. First tokens that all sequences share: {found['k']}. Fitted to "
        f"permuted positions the share is at most {chance:.2f}. Scaled alone, the begin token "
        f"shifts the reading by {found['alone'][0]:.2f} of what a counter of that token predicts, "
        f"and the second token by {found['alone'][1]:.2f}."
    )
    yield (
        f"In {name} the head that counts most is L{layer}H{head}, with a share of "
        f"{share.value:.2f}. In random weights of the same shape the best head has "
        f"{untrained.value:.2f}."
    )
    yield (
        f"In {name} m is read best after layer {position + 1}, with an R² of "
        f"{found['position/r2'][position]:.2f}. An inverted count predicts its shift with an R² of "
        f"{inverted.value:.2f}, and that of random weights with {random.value:.2f}."
    )


@figure(
    "counter",
    "tokens seen, m",
    "shift of the reading of 1/m",
    claims=("counter-scaled", "counter-duplicated", "counter-deleted", "counter-given"),
    log="x",
)
def _drawn(every: Mapping[str, Found]) -> Iterator[Panel]:
    """Counter or pool.

    The first tokens are changed, minus as many others changed alike, read where 1/m is read best.
    Of a task, examples of the longest training length. Bars are 95% intervals over sequences.
    """
    for model, found in every.items():
        for name, change in CHANGES.items():
            expected = predicted(change.factor, found["m"], int(found["k"]))
            yield panel(
                f"{model}: {name}",
                found["m"],
                predicted={"a counter": expected},
                reference={"a pool": 0.0},
                measured={"measured": found[f"shift/{name}"]},
            )


@figure(
    "counter-heads",
    "head",
    "share of a counter's shift",
    claims=("counter-head", "counter-given-head"),
    ticks=lambda every: _heads(max(every.values(), key=lambda found: found["heads"].shape[1:])),
)
def _by_head(every: Mapping[str, Found]) -> Iterator[Panel]:
    """Which head counts.

    One head alone weighs the first tokens twice. A head of which Theorem 1 speaks has 1 and the
    others 0. Heads after the layer where 1/m is read best cannot be seen there, and have 0. Bars
    are 95% intervals over sequences.
    """
    for model, found in every.items():
        shares = {
            name: found[f"{of}heads"].reshape(len(found["heads"]), -1)
            for name, of in (("trained", ""), (RANDOM_INIT, _UNTRAINED))
        }
        at = np.arange(float(shares["trained"].shape[1]))
        yield panel(model, at, predicted={"one head counts": 1.0}, measured=shares)


def _heads(found: Found) -> tuple[str, ...]:
    return tuple(f"L{layer}H{head}" for layer, head in np.ndindex(found["heads"].shape[1:]))


@figure(
    "counter-inverted",
    "tokens seen, m",
    "shift of the reading of m, in positions",
    claims=("counter-inverted", "counter-given-inverted"),
    log="x",
)
def _inverted(every: Mapping[str, Found]) -> Iterator[Panel]:
    """Is the count inverted.

    The first tokens weigh twice as much, minus as many others alike, read where m is read best. An
    inverted count shifts more, the more tokens it has seen. A linear reading of 1/m, which nothing
    has inverted, shifts less. Bars are 95% intervals over sequences.
    """
    for model, found in every.items():
        yield panel(
            model,
            found["m"],
            predicted={
                "inverted": predicted_inverse(CHANGES["scaled"].factor, found["m"], int(found["k"]))
            },
            reference={"not inverted": found["position/without"]},
            measured={"measured": found["position/shift"]},
        )
