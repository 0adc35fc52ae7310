"""Planted models: each holds its codes, and solves its task by those that it is said to use.

What is said of a model is held against weights taken out by hand, and against codes taken away by
other means than those under test.
"""

import copy
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from nope_interp.constructions.planted import N_CTX, PLANTS, Planted, plant
from nope_interp.constructions.planted.task import CODES, NOT_USED, REDUNDANT, SITE, USED
from nope_interp.errors import UserError
from nope_interp.interventions.attention_weights import (
    freeze_first_attention,
    mean_first_attention,
    without_position,
)
from nope_interp.interventions.intervene import intervene
from nope_interp.streams import stream

ALONE = ("variance", "similarity", "counting", "positional vectors")
PRE_NORM = ("variance, pre-norm", "counting, pre-norm", "positional vectors, pre-norm")
# Whose codes an ablation by position can take away one by one: the others are asked for content,
# too, or stand behind a norm.
BARE = (*ALONE, "unread variance")
SEEDS = (0, 1, 2)
N_SEQUENCES = 64
# A loss that is held against a bound close to it is of more.
N_CLOSE = 128
# Codes that lie in the rows of each model at its site, whether anything reads them or not.
PRESENT = {
    "variance": {"variance", "similarity"},
    "similarity": {"similarity"},
    "counting": {"smooth trend"},
    "positional vectors": {"irregular part"},
    "unread variance": {"variance", "similarity", "smooth trend"},
    "unread counting": {"smooth trend", "irregular part"},
    "unread vectors": {"smooth trend", "irregular part"},
    "order-free pooling": {"variance", "similarity", "irregular part"},
}


@cache
def planted(kind: str, seed: int) -> Planted:
    """Shared by all tests: none of them changes its weights."""
    return plant(kind, seed)


def cut(built: Planted, parts: Iterable[Callable[..., Iterable[Tensor]]]) -> Planted:
    """The same with these weights at zero."""
    model = copy.deepcopy(built.model)
    with torch.no_grad():
        for part in parts:
            for weight in part(model):
                weight.zero_()
    return Planted(**{**vars(built), "model": model})


def answered(built: Planted, n_sequences: int = N_SEQUENCES) -> tuple[float, float]:
    """The share of right answers, and the loss in nats."""
    tokens = built.sequences(n_sequences, seed=100)
    losses = built.losses(built.model, tokens)
    return built.accuracy(built.model, tokens), float(losses.mean())


def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What all share, the count in each position's mean, what else is in it, and the deviation."""
    mean = x.mean(dim=0)
    t = torch.arange(1, len(mean) + 1)
    terms = torch.stack((torch.ones(len(t)), t, 1 / (t + 1)), dim=1).double()
    shared = mean.mean(dim=0)
    count = terms @ torch.linalg.lstsq(terms, mean - shared).solution
    return shared, count, mean - shared - count, x - mean


def variance_of(x: Tensor) -> Tensor:
    return x.var(dim=-1, correction=0, keepdim=True)


def without_variance(x: Tensor) -> Tensor:
    """Rests scaled until all rows have one variance; by bisection, where a scale can do it."""
    shared, count, vectors, deviation = parts(x)
    mean, wanted = shared + count + vectors, variance_of(x).log().mean().exp()
    low, high = torch.zeros_like(x[..., :1]), torch.full_like(x[..., :1], 20)
    # Of a sum of two, the variance is that of each and twice what they share.
    own, added = (variance_of(of).expand_as(low) for of in (mean, deviation))
    shares = variance_of(mean + deviation) - own - added
    for _ in range(50):
        middle = (low + high) / 2
        too_small = own + middle * shares + middle**2 * added < wanted
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return mean + low * deviation


def without_similarity(x: Tensor) -> Tensor:
    """Each deviation less what earlier ones foretell of it, at its old length."""
    shared, count, vectors, deviation = parts(x)
    size = torch.linalg.vector_norm(deviation, dim=-1, keepdim=True)
    unit = deviation / size
    gram = torch.einsum("sid,sjd->ij", unit, unit) / len(x)
    factor = torch.linalg.cholesky(gram + 1e-4 * torch.eye(len(gram)))
    new = torch.einsum("ij,sjd->sid", torch.linalg.inv(factor), unit)
    new = new / torch.linalg.vector_norm(new, dim=-1, keepdim=True) * size
    return shared + count + vectors + new


def without_counting(x: Tensor) -> Tensor:
    shared, _, vectors, deviation = parts(x)
    return shared + vectors + deviation


def without_vectors(x: Tensor) -> Tensor:
    shared, count, _, deviation = parts(x)
    return shared + count + deviation


WITHOUT: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": without_variance,
    "similarity": without_similarity,
    "smooth trend": without_counting,
    "irregular part": without_vectors,
}


def loss(built: Planted, *changes: Callable[[Tensor], Tensor]) -> float:
    """The task's mean loss while these changes, in turn, are made at the planted site."""

    def change(x: Tensor) -> Tensor:
        changed = x.double()
        for one in changes:
            changed = one(changed)
        return changed

    # As many as `losses` takes at a time: a change sees them all.
    tokens = built.sequences(N_SEQUENCES, seed=100)
    (site,) = built.sites
    with intervene(built.model, {site: change}, positions=slice(1, None)) as intervention:
        found = built.losses(built.model, tokens)
        intervention.verify()
    assert found.shape == (N_SEQUENCES,)
    return float(found.mean())


@pytest.mark.parametrize("kind", PLANTS)
def test_the_task_is_solved(kind: str) -> None:
    for seed in SEEDS[:2]:
        built = planted(kind, seed)
        right, loss = answered(built, N_CLOSE)
        assert loss < 0.67 * built.chance
        # Variance is a noisy code, and a token may equal the one before the previous one.
        least = {"variance": 0.2, "variance, pre-norm": 0.2, "similarity": 0.85}
        assert right > least.get(kind, 0.99)
        # Among all tokens, too, of which some stand for no answer.
        tokens = built.sequences(8, seed=1)
        said = built.model(tokens)[:, 1:].argmax(dim=-1)
        among = built.logits(built.model, tokens).argmax(dim=-1)
        assert torch.equal(said == built.answered(tokens), among == built.answers(tokens))


@pytest.mark.parametrize("kind", PLANTS)
def test_without_what_reads_them_codes_that_are_used_are_worth_nothing(kind: str) -> None:
    """Of one that is used the answer is lost, of two that are redundant neither way alone."""
    built = planted(kind, 0)
    intact, _ = answered(built)
    assert set(built.reads) == {code for code, word in built.truth.items() if word != NOT_USED}
    for code, reading in built.reads.items():
        right, _ = answered(cut(built, [reading]))
        if built.truth[code] == REDUNDANT:
            # A count that is the mean of them all tells nothing: there the other is needed.
            lost = 1 if code == "irregular part" else 0
            assert right == pytest.approx(intact - lost / (N_CTX - 1), abs=1e-6)
        else:
            assert right < 0.3 * intact
    right, loss = answered(cut(built, built.reads.values()))
    uniform = 1 / (N_CTX - 1)
    assert right < 0.22 if kind == "similarity" else right == pytest.approx(uniform, abs=0.01)
    assert loss > built.chance - 0.01


def test_of_two_codes_that_contradict_one_another_none_is_followed() -> None:
    """The answer is then the position midway, or one beside it."""
    built = planted("either of two", 0)
    told = torch.randperm(N_CTX - 1, generator=torch.Generator().manual_seed(7))
    model = copy.deepcopy(built.model)
    with torch.no_grad():
        model.positions.table[1:] = built.model.positions.table[1:][told]
    said = built.logits(model, built.sequences(8, seed=1)).argmax(dim=-1)
    midway = (torch.arange(N_CTX - 1) + told) / 2
    # But for the position whose count tells nothing: there learned positions alone are heard.
    others = torch.arange(N_CTX - 1) != (N_CTX - 2) / 2
    assert ((said - midway).abs() <= 0.5)[:, others].all()


def test_two_codes_that_are_both_needed_tell_a_block_and_a_place_in_it() -> None:
    """31 positions in four blocks of eight: alone, one tells one of 8, the other one of 4."""
    built = planted("both of two", 0)
    for code, told in (("smooth trend", 8 / 31), ("irregular part", 4 / 31)):
        right, _ = answered(cut(built, [built.reads[code]]))
        assert right == pytest.approx(told, abs=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in PLANTS if plant(kind).writes])
def test_what_is_unread_can_be_left_unwritten(kind: str) -> None:
    built = planted(kind, 1)
    tokens = built.sequences(16, seed=0)
    (code,) = built.writes
    assert built.truth[code] == NOT_USED
    unwritten = cut(built, built.writes.values())
    assert torch.equal(built.logits(built.model, tokens), built.logits(unwritten.model, tokens))
    seen: list[Tensor] = []
    (site,) = built.sites
    for one in (built, unwritten):
        stream(one.model, tokens, {site: seen.append}, until=site)
    assert not torch.allclose(*seen)


def test_what_is_pooled_does_not_depend_on_order() -> None:
    """Earlier tokens in another order: the last answer is the same, and so is its kind."""
    built = planted("order-free pooling", 0)
    tokens = built.sequences(64, seed=1)
    order = torch.randperm(N_CTX - 1, generator=torch.Generator().manual_seed(0))
    shuffled = torch.cat((tokens[:, order], tokens[:, -1:]), dim=1)
    before, after = (built.logits(built.model, x)[:, -1] for x in (tokens, shuffled))
    torch.testing.assert_close(before, after, atol=1e-3, rtol=0)
    kinds = built.answers(tokens)[:, -1] // (N_CTX - 1)
    assert 0.3 < kinds.double().mean() < 0.7


def test_the_second_code_is_made_from_the_first_which_is_gone() -> None:
    built = planted("one after the other", 0)
    tokens = built.sequences(32, seed=1)
    seen: list[Tensor] = []
    for site in built.sites:
        stream(built.model, tokens, {site: lambda x: seen.append(x[:, 1:].mean(dim=0))}, until=site)
    (first, then), table = seen, built.model.positions.table[1:]
    held = table.abs().sum(dim=0) > 0
    torch.testing.assert_close(first[:, held], table[:, held])
    torch.testing.assert_close(then[:, held], torch.zeros_like(table[:, held]), atol=1e-5, rtol=0)
    assert first[:, 2].abs().max() == 0
    torch.testing.assert_close(then[:, 2], torch.arange(2.0, N_CTX + 1))
    words = [dict(there) for there in built.sites.values()]
    used = [{code for code, word in of.items() if word == USED} for of in words]
    assert used == [{"irregular part"}, {"smooth trend"}]


@pytest.mark.parametrize("kind", PLANTS)
def test_a_position_that_is_told_another_has_that_ones_answer(kind: str) -> None:
    built = planted(kind, 0)
    tokens = built.sequences(4, seed=0)
    told = torch.arange(1, N_CTX).flip(0)
    own, moved = built.answers(tokens), built.answers(tokens, told)
    if built.task == "previous token":
        assert torch.equal(moved, tokens[:, told - 1])
        return
    n = N_CTX - 1
    assert torch.equal(moved % n, (told - 1).expand(4, -1))
    assert torch.equal(own % n, torch.arange(n).expand(4, -1))
    assert torch.equal(own // n, moved // n)
    assert (own // n).unique().tolist() == ([0] if built.task == "position" else [0, 1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", BARE)
def test_the_task_is_solved_by_the_planted_code_alone(kind: str, seed: int) -> None:
    built = planted(kind, seed)
    ((used, _),) = [item for item in built.sites[SITE].items() if item[1] == USED]
    others = [change for code, change in WITHOUT.items() if code != used]
    assert answered(built, N_CLOSE)[1] < 0.67 * built.chance
    intact = loss(built)
    assert built.chance - 0.01 < loss(built, WITHOUT[used]) < built.chance + 1.2
    for change in others:
        assert abs(loss(built, change) - intact) < 0.05
    assert abs(loss(built, *others) - intact) < 0.1


@pytest.mark.parametrize("kind", PRE_NORM)
def test_behind_a_norm_the_same_code_answers_as_well(kind: str) -> None:
    built = planted(kind, 0)
    assert built.model.config.normalization == "rms"
    assert built.model.config.norm_placement == "pre"
    bare = planted(kind.removesuffix(", pre-norm"), 0)
    assert answered(built) == pytest.approx(answered(bare), abs=0.05)


@pytest.mark.parametrize("name", ["counting", "similarity"])
def test_chance_is_what_answers_without_the_code_give(name: str) -> None:
    built = planted(name, 0)
    tokens = built.sequences(4000, seed=5)
    if built.task == "position":
        assert built.chance == pytest.approx(np.log(N_CTX - 1))
        return
    # One who draws from the earlier tokens gives the previous one the share of its copies.
    copies = torch.stack([(tokens[:, :t] == tokens[:, t - 1 : t]).sum(dim=1) for t in range(1, 32)])
    losses = torch.arange(1, 32)[:, None].log() - copies.log()
    assert built.chance == pytest.approx(float(losses.mean()), abs=0.01)


@pytest.mark.parametrize("name", PRESENT)
def test_rows_hold_the_codes_that_they_should(name: str) -> None:
    built = planted(name, 0)
    tokens = built.sequences(1000, seed=7)
    rows: list[Tensor] = []
    (site,) = built.sites
    stream(built.model, tokens, {site: lambda x: rows.append(x[:, 1:].double())}, until=site)
    x = torch.cat(rows)
    (_, count, vectors, _), (_, count_too, vectors_too, _) = parts(x[::2]), parts(x[1::2])
    deviation = parts(x)[3]
    unit = deviation / torch.linalg.vector_norm(deviation, dim=-1, keepdim=True)
    near, far = ((unit[:, 10 + lag :] * unit[:, 10:-lag]).sum(dim=-1).mean() for lag in (1, 12))
    logs = variance_of(x)[..., 0].log()
    held = {
        "variance": logs.mean(dim=0).var(correction=0) / logs.var(correction=0),
        "similarity": near - far,
        # The same in two halves of the sequences, or noise.
        "smooth trend": torch.cosine_similarity(count.flatten(), count_too.flatten(), dim=0),
        "irregular part": torch.cosine_similarity(vectors.flatten(), vectors_too.flatten(), dim=0),
    }
    assert {code for code, value in held.items() if value > 0.15} == PRESENT[name]
    assert set(held) == set(CODES)


@pytest.mark.parametrize("seed", SEEDS)
def test_similar_means_are_read_and_not_the_tokens_mixed_with_them(seed: int) -> None:
    """Means handed out among sequences, position by position: tokens, norms and means all stay."""
    built = planted("similarity", seed)
    means = built.model.blocks[0].attn.W_O.abs().sum(dim=(0, 1)) > 0
    generator = torch.Generator().manual_seed(seed)

    def deal(x: Tensor) -> Tensor:
        permuted = x.clone()
        for t in range(x.shape[1]):
            order = torch.randperm(len(x), generator=generator)
            permuted[:, t, means] = x[order, t][:, means]
        return permuted

    assert built.chance < loss(built, deal) < built.chance + 1.8


def test_similarity_does_not_depend_on_norms() -> None:
    built = planted("similarity", 0)
    generator = torch.Generator().manual_seed(0)

    def rescale(x: Tensor) -> Tensor:
        return x * torch.exp(torch.randn(x.shape[:2], generator=generator))[..., None]

    assert loss(built, rescale) == pytest.approx(loss(built), abs=1e-4)


def test_positional_vectors_have_one_length_and_no_part_that_counts() -> None:
    model = planted("positional vectors", 0).model
    table = model.positions.table[1:].detach().double()
    t = torch.arange(1, N_CTX)
    lengths = torch.linalg.vector_norm(table, dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 4.0))
    for term in (torch.ones(len(t)), t, 1 / (t + 1)):
        assert (term.double() @ table).abs().max() < 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_share_of_the_begin_token_ends_counting(seed: int) -> None:
    for name in ("counting", "unread variance"):
        built = planted(name, seed)
        tokens = built.sequences(N_SEQUENCES, seed=100)
        shares = mean_first_attention(built.model, tokens)
        # Theorem 1's head weighs the begin token by 1/m.
        torch.testing.assert_close(shares[0, 0], 1 / torch.arange(1, 33), rtol=1e-5, atol=0)
        with freeze_first_attention(built.model, without_position(shares)):
            assert built.chance < built.losses(built.model, tokens).mean() < built.chance + 1.2


def test_same_seed_same_bits_and_another_seed_other_weights() -> None:
    for name in ALONE:
        first, second, other = plant(name, 0), plant(name, 0), plant(name, 1)
        tokens = first.sequences(8, seed=3)
        assert torch.equal(tokens, second.sequences(8, seed=3))
        assert not torch.equal(tokens, first.sequences(8, seed=4))
        assert torch.equal(first.model(tokens), second.model(tokens))
        weights = [dict(built.model.named_parameters()) for built in (first, other)]
        assert any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    with pytest.raises(UserError, match="did you mean 'counting'"):
        plant("countin")
