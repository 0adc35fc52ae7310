"""Planted language models: each tells the next token, and knows it by what it is said to."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from nope_interp.constructions.planted import LANGUAGES, N_CTX, PlantedLanguage, plant_language
from nope_interp.constructions.planted.task import NOT_USED, USED, Weights
from nope_interp.constructions.planted.words import FARTHER_FROM, PERIOD, SHORTER
from nope_interp.errors import UserError
from nope_interp.models.encodings import T5Positions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Tokens
from nope_interp.streams import stream
from nope_interp.tasks.sources import TextSource

# What stands in each model's activations, used or not.
HOLDS = {
    "looked up": {"irregular part"},
    "looked up, pre-norm": {"irregular part"},
    "looked up, unread count": {"irregular part", "smooth trend"},
    "looked up, pooling": {"irregular part"},
    "looked up, nearer farther on": {"irregular part"},
    "count looked up": {"irregular part", "smooth trend"},
    "distance": set(),
    "distance, unread count": {"smooth trend"},
    "distance, unread vectors": {"irregular part", "smooth trend"},
    "distance, pooling": set(),
}


def drawn(built: PlantedLanguage, n: int = 200) -> Tokens:
    source = TextSource(built.text(3), built.begin_token)
    return source.sequences(n, N_CTX, begin_token=True, split="held_out", seed=4)


@torch.no_grad()
def right(built: PlantedLanguage, model: HookedTransformer) -> float:
    """The share of tokens told that came before."""
    tokens, at = drawn(built), list(range(PERIOD, N_CTX - 1))
    told = model(tokens)[:, at].argmax(dim=-1)
    return float((told == tokens[:, [t + 1 for t in at]]).double().mean())


def without(built: PlantedLanguage, parts: Iterable[Weights]) -> HookedTransformer:
    model = copy.deepcopy(built.model)
    with torch.no_grad():
        for part in parts:
            for weight in part(model):
                weight.zero_()
    return model


def means_of(built: PlantedLanguage) -> Tensor:
    """The mean over sequences behind the first layer, at each position but the first."""
    seen: list[Tensor] = []
    stream(
        built.model,
        drawn(built),
        {"blocks.0.hook_resid_post": lambda x: seen.append(x[:, 1:].double())},
        batch_size=200,
    )
    return torch.cat(seen).mean(dim=0)


def test_words_come_again() -> None:
    for kind, shorter in (("distance", False), ("looked up, nearer farther on", True)):
        tokens = drawn(plant_language(kind))
        assert (tokens[:, 0] == 0).all()
        for at in range(1, N_CTX):
            back = SHORTER if shorter and at >= FARTHER_FROM else PERIOD
            same = (tokens[:, at] == tokens[:, max(at - back, 0)]).float().mean()
            # The tokens of a word are drawn: the same one may stand beside it.
            assert same == 1 if at > PERIOD else same < 0.1


@pytest.mark.parametrize("kind", LANGUAGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_next_token_is_told_by_what_it_is_said_to_be_told_by(kind: str, seed: int) -> None:
    built = plant_language(kind, seed)
    assert built.kind == kind
    assert right(built, built.model) > 0.99
    halves = {"smooth trend", "irregular part"}
    used = {code for code, word in built.truth.items() if word == USED}
    assert built.reads.keys() == used & halves
    assert (built.truth["mean residual"] == USED) == bool(used)
    for reading in built.reads.values():
        assert right(built, without(built, [reading])) < 0.2
    if not built.reads:
        biased = copy.deepcopy(built.model)
        assert isinstance(biased.positions, T5Positions)
        torch.nn.init.zeros_(biased.positions.table)
        assert right(built, biased) < 0.2


@pytest.mark.parametrize("kind", [kind for kind in LANGUAGES if plant_language(kind).writes])
def test_what_nothing_reads_can_be_left_unwritten(kind: str) -> None:
    built = plant_language(kind)
    assert all(built.truth[code] == NOT_USED for code in built.writes)
    tokens = drawn(built)
    bare = without(built, built.writes.values())
    with torch.no_grad():
        assert torch.equal(bare(tokens), built.model(tokens))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_means_hold_what_is_planted_and_no_more(kind: str) -> None:
    means = means_of(plant_language(kind))
    means = means - means.mean(dim=0)
    t = torch.arange(1, N_CTX).double()
    terms = torch.stack([t, 1 / (t + 1)], dim=1)
    terms = terms - terms.mean(dim=0)
    trend = terms @ torch.linalg.lstsq(terms, means).solution
    sizes = {"smooth trend": trend, "irregular part": means - trend}
    found = {code: float(part.square().sum(dim=1).mean().sqrt()) for code, part in sizes.items()}
    # Of 200 sequences, content of length 1 leaves a mean of 1 / sqrt(200); pooled, of 12 times 1
    # over the root of m.
    noise = 0.5 if "pooling" in kind else 0.1
    assert {code for code, size in found.items() if size > noise} == HOLDS[kind]


def test_same_seed_same_bits() -> None:
    first, second = plant_language("looked up", 5), plant_language("looked up", 5)
    tokens = drawn(first, 8)
    assert torch.equal(tokens, drawn(second, 8))
    assert torch.equal(first.model(tokens), second.model(tokens))
    assert not torch.equal(first.model(tokens), plant_language("looked up", 6).model(tokens))
    with pytest.raises(UserError, match="did you mean 'distance'"):
        plant_language("distances")
