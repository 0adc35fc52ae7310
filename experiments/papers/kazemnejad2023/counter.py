"""Counter or pool? Claims on trained models without positions whose first tokens are changed: does
the reading of 1/m shift as a counter's, is it one head that counts, and is its count inverted?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.kazemnejad2023.first_tokens import (
    CHANGES,
    FIRST_SITE,
    counted,
    n_shared,
    n_unread,
    predicted,
    predicted_inverse,
)
from experiments.papers.on_text import given_variant, sentences, told_of
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measured import Measured
from experiments.results.measurements import RANDOM_INIT
from experiments.runs.cells import Cells
from experiments.variants.embedded import EMBEDDED_MODEL
from experiments.variants.variants import ModelVariant, config_of, loaded_variant, random_init
from nope_interp.errors import UserError
from nope_interp.positions.layers import layer_positions
from nope_interp.pretrained.source import is_own
from nope_interp.shapes import Sequences
from nope_interp.tasks.answers import AnswerTask, ExampleSource, TaskSplit
from nope_interp.tasks.dataset import dataset
from nope_interp.tasks.sources import Split, TokenSource

# How many sequences are read; of a task, of each length.
_SPLITS: tuple[tuple[Split, int], ...] = (("fit", 128), ("held_out", 64))
_LENGTH, _SHORTEST = 127, 16
LEAST_READ = 8  # tokens of the longest sequences
# R² below which readings of 1/m, and of m, are not judged, though shifts are divided by slopes.
# From there on Theorem 1's own model, whose scores content disturbs, has 0.8 of its shift or more,
# and its inverted count an R² above a half.
LEAST_R2, LEAST_R2_OF_M = 0.7, 0.9
_UNTRAINED = "untrained/"

# What is found in a model, by name.
Found = Mapping[str, Array]


def counter_findings(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Changes the first tokens of the model that ships with the package, and of a given one.

    Raises UserError where the given model cannot be loaded or has a context too short.
    """
    shipped = replace(config, model=str(EMBEDDED_MODEL), positions="auto", text=None)
    given = None
    if config.model is not None:  # first, so that a model that cannot be read is refused at once
        given = cells.arrays("the given model's counter", lambda: _of(config, device))
    small = cells.arrays("counter", lambda: _of(shipped, device))
    found = {"the small model": small}
    claims = {f"counter-{name}": measured for name, measured in _claims(small).items()}
    of_given: list[str] = []
    if given is not None:
        name = Path(str(config.model)).name
        found[name] = given
        of_given += sentences(given["told"])
        if given["none"].all():
            claims |= {f"counter-{name}": claim for name, claim in _claims_of_given(given).items()}
        else:
            of_given.append(f"No claim is tested on {name}: it has positions.")
    return Findings(
        claims,
        (_drawn(found), _by_head(found), _inverted(found)),
        setting="first tokens changed in 64 held-out sequences of trained models",
        notes=(
            "Changed are the first tokens, which all sequences share, and as many after them. This "
            "is done in 64 held-out sequences, of a task in 64 of each length.",
            *of_given,
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
    k = n_shared(drawn[0])
    fit, read = ([tokens[:, : model.cfg.n_ctx - k] for tokens in part] for part in drawn)
    needed = n_unread(k) + LEAST_READ
    if not read or read[-1].shape[1] < needed:
        raise UserError(
            f"{config.model!r} reads too short sequences to count in: give a model whose context "
            f"holds {needed + k} tokens, and sequences of {needed}."
        )
    untrained = counted(random_init(variant, config.seed).model, fit, read, config.seed)
    return {
        "none": none,
        "told": told_of(variant),
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
    every = examples_of(source.task, "train" if split == "fit" else "validation", n, config.seed)
    return [tokens for tokens in every if tokens.shape[1] <= most]


def examples_of(task: AnswerTask, split: TaskSplit, n: int, seed: int) -> list[Sequences]:
    """Up to `n` different examples of each length of the split, cut where the shortest of them
    ends; the longest last."""
    every = (examples.different for examples in dataset(task, n, split=split, seed=seed).values())
    cut = [examples.tokens[:, : int(examples.length.min())] for examples in every]
    return sorted(cut, key=lambda tokens: tokens.shape[1])


def _loaded(config: ReproduceConfig, device: str) -> ModelVariant:
    """The model, with what it was trained on; text, for one that is not ours."""
    model = str(config.model)
    if not is_own(model):
        return given_variant(config, device, seq_len=_SHORTEST, of_heads=True)
    read = config_of(model, positions=config.positions, text=config.text)
    return loaded_variant(read, device, needed={})


def _reads_well(found: Found) -> bool:
    return bool(found["r2"][FIRST_SITE] >= LEAST_R2)


def _reads_m_well(found: Found) -> bool:
    return bool(found["position/r2"][found["position/site"]] >= LEAST_R2_OF_M)


def _claims(found: Found) -> dict[str, Measured]:
    """By what is claimed; without what the readings tell too badly."""
    claims = {}
    if _reads_well(found):
        shares = {name: found[f"share/{name}"][:, FIRST_SITE, 0] for name in CHANGES}
        claims = {name: over_seeds(share) for name, share in shares.items()}
        claims["head"] = best_head(found)[1]
    if _reads_m_well(found):
        claims["inverted"] = inversion(found)
    return claims


def _claims_of_given(found: Found) -> dict[str, Measured]:
    """The same of a given model: of the shares the one whose interval reaches lowest."""
    claims = _claims(found)
    shares = [claims.pop(name) for name in CHANGES if name in claims]
    of_given = {f"given-{name}": claim for name, claim in claims.items()}
    if shares:
        of_given["given"] = min(shares, key=lambda share: share.ci_low)
    return of_given


def inversion(found: Found, shift: str = "shift") -> Measured:
    """R² of an inverted count's shift: 1 where the reading of m shifts as predicted at every
    position, 0 where it shifts by the same everywhere, on average as predicted."""
    return over_seeds(found[f"position/{shift}"], partial(_r2_of_inverted, found))


def no_shift(found: Found) -> float:
    """The R² of an inverted count's shift where nothing shifts."""
    return float(_r2_of_inverted(found, np.zeros((1, len(found["m"]))))[0])


def _r2_of_inverted(found: Found, means: Float[Array, "row _"]) -> Float[Array, " row"]:
    expected = predicted_inverse(CHANGES["scaled"].factor, found["m"], int(found["k"]))
    spread = np.square(expected - expected.mean()).sum()
    r2: Array = 1 - np.square(means - expected).sum(axis=-1) / spread
    return r2


def _untrained(found: Found) -> Found:
    """What is found in random weights of the same shape."""
    parts = {name: array for name, array in found.items() if name.startswith(_UNTRAINED)}
    return {name.removeprefix(_UNTRAINED): array for name, array in parts.items()}


def best_head(found: Found) -> tuple[tuple[int, int], Measured]:
    """The head with the largest share in every second sequence, and its share in the others."""
    chosen, scored = found["heads"][::2], found["heads"][1::2]
    layer, head = np.unravel_index(chosen.mean(axis=0).argmax(), chosen.shape[1:])
    return (int(layer), int(head)), over_seeds(scored[:, layer, head])


def _told(name: str, found: Found) -> Iterator[str]:
    random = _untrained(found)
    r2, of_random = (of["r2"][FIRST_SITE] for of in (found, random))
    yield (
        f"In {name} 1/m is read {_place(found, FIRST_SITE)}, with an R² of {r2:.2f} (random "
        f"weights of the same shape: {of_random:.2f}). Below {LEAST_R2} it is not judged."
    )
    if _reads_well(found):
        yield from _told_of_shares(name, found, random)
    site = int(found["position/site"])
    yield (
        f"In {name} m is read best {_place(found, site)}, with an R² of "
        f"{found['position/r2'][site]:.2f} (random weights: {random['position/r2'].max():.2f}). "
        f"Below {LEAST_R2_OF_M} it is not judged."
    )
    if _reads_m_well(found):
        yield from _told_of_inversion(name, found, random)


def _told_of_shares(name: str, found: Found, random: Found) -> Iterator[str]:
    (layer, head), share = best_head(found)
    chance = max(abs(found[f"share/{change}"][:, FIRST_SITE, 1].mean()) for change in CHANGES)
    told = of_best = "Random weights are not judged."
    if _reads_well(random):
        told = f"In random weights it is {scaled_share(random):.2f}."
        of_best = f"In random weights the best head has {best_head(random)[1].value:.2f}."
    yield (
        f"{name}: with the first tokens scaled, the reading shifts by {scaled_share(found):.2f} of "
        f"what a counter predicts. {told} Shifts are divided by the reading's slope on 1/m."
    )
    yield (
        f"{name}: first tokens that all sequences share: {found['k']}. Fitted to permuted "
        f"positions the share is at most {chance:.2f}. Scaled alone, the begin token shifts the "
        f"reading by {found['alone'][0]:.2f} of what a counter of that token predicts, and the "
        f"second token by {found['alone'][1]:.2f}."
    )
    yield (
        f"In {name} the head that counts most is L{layer}H{head}, with a share of "
        f"{share.value:.2f}. {of_best}"
    )


def _told_of_inversion(name: str, found: Found, random: Found) -> Iterator[str]:
    inverted = inversion(found)
    of_random = (
        f"Random weights have {inversion(random).value:.2f}."
        if _reads_m_well(random)
        else "Random weights are not judged."
    )
    yield (
        f"{name}: an inverted count predicts how that reading shifts with an R² of "
        f"{inverted.value:.2f}. No shift at all would have {no_shift(found):.2f}. {of_random}"
    )
    if "position/before" in found:
        before = inversion(found, "before").value
        yield f"{name}: before that MLP the R² of an inverted count is {before:.2f}."


def scaled_share(found: Found) -> float:
    """The share of a counter's shift where the first tokens are scaled."""
    return float(found["share/scaled"][:, FIRST_SITE, 0].mean())


def _place(found: Found, site: int) -> str:
    part = "MLP" if found["after_mlp"][site] else "attention"
    return f"after the {part} of layer {found['layer'][site]}"


@figure(
    "counter",
    "tokens seen, m",
    "shift of the reading of 1/m",
    claims=("counter-scaled", "counter-duplicated", "counter-deleted", "counter-given"),
    log="x",
)
def _drawn(every: Mapping[str, Found]) -> Iterator[Panel]:
    """Counter or pool.

    The first tokens are changed, minus as many others changed alike, read after the
    first attention, over the reading's slope on 1/m. Of a task, examples of the longest training
    length. Bars are 95% intervals over sequences.
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
    others 0. Heads of later layers cannot be seen after the first attention, and have 0. Bars
    are 95% intervals over sequences.
    """
    for model, found in every.items():
        shares = {
            name: of["heads"].reshape(len(of["heads"]), -1)
            for name, of in (("trained", found), (RANDOM_INIT, _untrained(found)))
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

    The first tokens weigh twice as much, minus as many others alike. Readings are after the MLP
    where m is read best, and before it. An inverted count shifts more, the more tokens it has seen.
    A linear reading of 1/m, which nothing has inverted, shifts less. Bars are 95% intervals over
    sequences.
    """
    for model, found in every.items():
        yield panel(
            model,
            found["m"],
            predicted={
                "inverted": predicted_inverse(CHANGES["scaled"].factor, found["m"], int(found["k"]))
            },
            reference={"not inverted": found["position/without"]},
            measured={
                "after the MLP": found["position/shift"],
                **({"before it": found["position/before"]} if "position/before" in found else {}),
            },
        )
