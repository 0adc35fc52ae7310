"""Planted models: each holds its code, solves its task by it, and by no other."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from nope_interp.constructions.planted import N_CTX, PLANTS, Planted, decoy, plant
from nope_interp.errors import UserError
from nope_interp.interventions.intervene import (
    freeze_first_attention,
    intervene,
    mean_first_attention,
    without_position,
)
from nope_interp.streams import stream

NAMES = (*PLANTS, "decoy")
SEEDS = (0, 1, 2)
N_SEQUENCES = 128
# Codes that lie in the rows of each model at its site, whether anything reads them or not.
PRESENT = {
    "variance": {"variance", "similarity"},
    "similarity": {"similarity"},
    "counting": {"counting"},
    "positional vectors": {"positional vectors"},
    "decoy": {"variance", "similarity", "counting"},
}


@cache
def planted(name: str, seed: int) -> Planted:
    """Shared by all tests: none of them changes its weights."""
    return decoy(seed) if name == "decoy" else plant(name, seed)


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
    for _ in range(50):
        middle = (low + high) / 2
        too_small = variance_of(mean + middle * deviation) < wanted
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
    "counting": without_counting,
    "positional vectors": without_vectors,
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_task_is_solved_by_the_planted_code_alone(name: str, seed: int) -> None:
    built = planted(name, seed)
    others = [change for code, change in WITHOUT.items() if code != built.code]
    intact = loss(built)
    assert intact < 0.67 * built.chance
    assert built.chance - 0.01 < loss(built, WITHOUT[built.code]) < built.chance + 1.2
    for change in others:
        assert abs(loss(built, change) - intact) < 0.05
    assert abs(loss(built, *others) - intact) < 0.1


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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
        "counting": torch.cosine_similarity(count.flatten(), count_too.flatten(), dim=0),
        "positional vectors": torch.cosine_similarity(
            vectors.flatten(), vectors_too.flatten(), dim=0
        ),
    }
    assert {code for code, value in held.items() if value > 0.15} == PRESENT[name]


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
    for name in ("counting", "decoy"):
        built = planted(name, seed)
        tokens = built.sequences(N_SEQUENCES, seed=100)
        shares = mean_first_attention(built.model, tokens)
        # Theorem 1's head weighs the begin token by 1/m.
        torch.testing.assert_close(shares[0, 0], 1 / torch.arange(1, 33), rtol=1e-5, atol=0)
        with freeze_first_attention(built.model, without_position(shares)):
            assert built.chance < built.losses(built.model, tokens).mean() < built.chance + 1.2


def test_same_seed_same_bits_and_another_seed_other_weights() -> None:
    for name in PLANTS:
        first, second, other = plant(name, 0), plant(name, 0), plant(name, 1)
        tokens = first.sequences(8, seed=3)
        assert torch.equal(tokens, second.sequences(8, seed=3))
        assert not torch.equal(tokens, first.sequences(8, seed=4))
        assert torch.equal(first.model(tokens), second.model(tokens))
        weights = [dict(built.model.named_parameters()) for built in (first, other)]
        assert any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    with pytest.raises(UserError, match="did you mean 'counting'"):
        plant("countin")
