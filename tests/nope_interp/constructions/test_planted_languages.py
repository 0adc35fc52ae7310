"""Planted language models: each tells the next token, and knows it by what it is said to."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from nope_interp.constructions.kazemnejad import POSITION
from nope_interp.constructions.planted import LANGUAGES, N_CTX, PlantedLanguage, plant_language
from nope_interp.constructions.planted.latest import CAPITALS, LETTERS, QUESTION, SIGNS, TOKEN
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


LATEST = [kind for kind in LANGUAGES if kind.startswith("latest")]


def letters(tokens: Tokens) -> Tensor:
    return (LETTERS.start <= tokens) & (tokens < LETTERS.stop)


def told(built: PlantedLanguage, tokens: Tokens) -> Tensor:
    """Where the next token is told by earlier ones: one fewer than these."""
    if built.kind not in LATEST:
        return (torch.arange(N_CTX - 1) >= PERIOD).expand_as(tokens[:, 1:])
    said = letters(tokens)
    return (tokens == QUESTION)[:, :-1] & said.cumsum(dim=1).bool()[:, :-1]


@torch.no_grad()
def judged(built: PlantedLanguage, model: HookedTransformer) -> tuple[float, float]:
    """Of the tokens that are told, the share that the model finds likeliest, and their mean
    probability, which no tie makes right."""
    tokens = drawn(built)
    logits, following = model(tokens)[:, :-1], tokens[:, 1:]
    right = logits.argmax(dim=-1) == following
    of_next = logits.softmax(dim=-1).gather(2, following[..., None])[..., 0]
    at = told(built, tokens)
    return float(right[at].double().mean()), float(of_next[at].double().mean())


def by_guessing(built: PlantedLanguage) -> float:
    """How often the next token is right for whoever knows what came before and not in which order.

    Of words, one of so many; of the latest letter, the commonest of those that stand before.
    """
    if built.kind not in LATEST:
        return 1 / PERIOD
    tokens = drawn(built)
    found = []
    for sequence, at in told(built, tokens).nonzero().tolist():
        said = torch.bincount(tokens[sequence, : at + 1], minlength=LETTERS.stop)[LETTERS]
        answer = int(tokens[sequence, at + 1]) - CAPITALS.start
        found.append(float(said[answer] == said.max()) / int((said == said.max()).sum()))
    return sum(found) / len(found)


def without(built: PlantedLanguage, parts: Iterable[Weights]) -> HookedTransformer:
    model = copy.deepcopy(built.model)
    with torch.no_grad():
        for part in parts:
            for weight in part(model):
                weight.zero_()
    return model


def activations_of(built: PlantedLanguage, tokens: Tokens | None = None) -> Tensor:
    """Those behind the first layer, at each position but the first."""
    seen: list[Tensor] = []
    stream(
        built.model,
        drawn(built) if tokens is None else tokens,
        {"blocks.0.hook_resid_post": lambda x: seen.append(x[:, 1:].double())},
        batch_size=200,
    )
    return torch.cat(seen)


def test_words_come_again() -> None:
    for kind, shorter in (("distance", False), ("looked up, nearer farther on", True)):
        tokens = drawn(plant_language(kind))
        assert (tokens[:, 0] == 0).all()
        for at in range(1, N_CTX):
            back = SHORTER if shorter and at >= FARTHER_FROM else PERIOD
            same = (tokens[:, at] == tokens[:, max(at - back, 0)]).float().mean()
            # The tokens of a word are drawn: the same one may stand beside it.
            assert same == 1 if at > PERIOD else same < 0.1
            if at > PERIOD:
                beside = (tokens[:, at] == tokens[:, at - back - 1]).float().mean()
                assert beside < 0.2


@pytest.mark.parametrize("kind", LANGUAGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_next_token_is_told_by_what_it_is_said_to_be_told_by(kind: str, seed: int) -> None:
    built = plant_language(kind, seed)
    assert built.kind == kind
    # Two letters may stand too near for the code to tell them apart.
    right, probability = judged(built, built.model)
    assert right > (0.9 if kind in LATEST else 0.99)
    halves = {"smooth trend", "irregular part"}
    used = {code for code, word in built.truth.items() if word == USED}
    assert (built.truth["mean residual"] == USED) == bool(used & halves)
    assert built.reads.keys() == used - {"mean residual"}
    # What weights other than these know order by, such as norms that values pass, is little.
    known = probability - by_guessing(built)
    for reading in built.reads.values():
        right, probability = judged(built, without(built, [reading]))
        # No guesser who knows no order gives the right one a larger mean probability.
        assert probability < by_guessing(built) + 0.1 * known
        assert kind in LATEST or right < 0.2  # a tie may be broken rightly
    if not built.reads:
        biased = copy.deepcopy(built.model)
        assert isinstance(biased.positions, T5Positions)
        torch.nn.init.zeros_(biased.positions.table)
        assert judged(built, biased)[0] < 0.2


@pytest.mark.parametrize("kind", [kind for kind in LANGUAGES if plant_language(kind).writes])
def test_what_nothing_reads_can_be_left_unwritten(kind: str) -> None:
    built = plant_language(kind)
    assert all(built.truth[code] == NOT_USED for code in built.writes)
    tokens = drawn(built, 40)
    bare = without(built, built.writes.values())
    with torch.no_grad():
        assert torch.equal(bare(tokens), built.model(tokens))


@pytest.mark.parametrize("kind", [kind for kind in LANGUAGES if kind not in LATEST])
def test_means_hold_what_is_planted_and_no_more(kind: str) -> None:
    means = activations_of(plant_language(kind)).mean(dim=0)
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


def test_questions_ask_for_the_latest_letter() -> None:
    built = plant_language(LATEST[0])
    tokens = drawn(built)
    where = told(built, tokens).nonzero().tolist()
    assert len(where) > 500
    for sequence, at in where:
        said = [int(t) for t in tokens[sequence, :at] if LETTERS.start <= t < LETTERS.stop]
        assert tokens[sequence, at + 1] == CAPITALS.start + said[-1] - LETTERS.start
    capital = (CAPITALS.start <= tokens) & (tokens < CAPITALS.stop)
    assert torch.equal(capital[:, 2:], tokens[:, 1:-1] == QUESTION)
    # No position is told from others by what stands there: 3 of 13 tokens ask, 3 answer, 2 are
    # letters. None of 31 positions is off by 4.5 standard errors.
    kinds = {3 / 13: (capital, tokens == QUESTION), 2 / 13: (letters(tokens),)}
    for p, standing in kinds.items():
        for kind in standing:
            off = (kind[:, 1:].double().mean(dim=0) - p).abs().max()
            assert off < 4.5 * (p * (1 - p) / len(tokens)) ** 0.5


@pytest.mark.parametrize("kind", LATEST)
def test_beside_a_count_no_mean_tells_what_is_latest(kind: str) -> None:
    """The text is as likely with the two tokens of each pair exchanged: what is averaged turns its
    sign then, so that its mean is zero. All else but the token is the same at all positions."""
    built = plant_language(kind)
    tokens = drawn(built, 40)
    paired = (tokens > 0) & (tokens != QUESTION)
    exchanged = torch.where(paired, ((tokens - 1) ^ 1) + 1, tokens)
    every = activations_of(built, tokens)
    both = [of[..., TOKEN.stop :] for of in (every, activations_of(built, exchanged))]
    assert (both[0].abs().amax(dim=-1) > 1e-3).any()
    torch.testing.assert_close(both[0], -both[1], rtol=0, atol=1e-4)
    m = torch.arange(2, N_CTX + 1).double()
    planted = 1 / m if "count" in kind else torch.zeros(N_CTX - 1).double()
    beside = every[..., : TOKEN.start]
    count = beside[..., POSITION]
    torch.testing.assert_close(count, planted.expand_as(count), rtol=0, atol=1e-6)
    for component in {*range(TOKEN.start)} - {POSITION}:
        assert beside[..., component].unique().numel() == 1


def summed(built: PlantedLanguage) -> Tensor:
    """The coefficients, on independent vectors, of the sum of all that is averaged up to each
    position but the first: of a pair of tokens, how often the one came more than the other."""
    tokens = drawn(built)[:, 1:]
    coefficients = torch.zeros(*tokens.shape, (QUESTION - 1) // 2).double()
    signs = torch.where(tokens == QUESTION, 0.0, 1.0 - 2.0 * ((tokens - 1) % 2)).double()
    pairs = ((tokens - 1) // 2).clamp(max=coefficients.shape[-1] - 1)
    return coefficients.scatter(2, pairs[..., None], signs[..., None]).cumsum(dim=1)


@pytest.mark.parametrize("kind", [kind for kind in LATEST if "similarity" in kind])
def test_signs_are_alike_by_the_arcsine_law(kind: str) -> None:
    built = plant_language(kind)
    signs, means = activations_of(built)[:, 4:, SIGNS], summed(built)[:, 4:]

    def alike(x: Tensor) -> Tensor:
        x = torch.nn.functional.normalize(x, dim=-1)
        return torch.einsum("sik,sjk->sij", x, x)

    # Of 256 drawn components: a cosine's standard deviation is 1 / 16 at most.
    cosines = alike(means)
    law = 2 / torch.pi * cosines.clamp(-1, 1).asin()
    torch.testing.assert_close(alike(signs).mean(dim=0), law.mean(dim=0), rtol=0, atol=1 / 16)
    # The cosine itself lies near that of independent steps; some, such as questions, are none.
    m = torch.arange(6, N_CTX + 1).double()
    steps = (torch.minimum(m, m[:, None]) / torch.maximum(m, m[:, None])).sqrt()
    torch.testing.assert_close(cosines.mean(dim=0), steps, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", [kind for kind in LATEST if "variance" in kind])
def test_spread_falls_as_means_shrink(kind: str) -> None:
    built = plant_language(kind)
    m = torch.arange(2, N_CTX + 1).double()
    means = 16 * summed(built).square().sum(dim=-1) / m**2
    # Beside a constant of 8 and the token.
    found = (activations_of(built).square().sum(dim=-1) - 8**2 - 1).mean(dim=0)
    # Of vectors of 256 drawn components, squares differ by sqrt(2 / 256) or so: 9%.
    torch.testing.assert_close(found, means.mean(dim=0), rtol=0.09, atol=0)
    assert found[0] > 2 * found[-1]
    assert torch.corrcoef(torch.stack([found, torch.arange(N_CTX - 1)]))[0, 1] < -0.9


def test_same_seed_same_bits() -> None:
    first, second = plant_language("looked up", 5), plant_language("looked up", 5)
    tokens = drawn(first, 8)
    assert torch.equal(tokens, drawn(second, 8))
    assert torch.equal(first.model(tokens), second.model(tokens))
    assert not torch.equal(first.model(tokens), plant_language("looked up", 6).model(tokens))
    with pytest.raises(UserError, match="did you mean 'distance'"):
        plant_language("distances")
