"""One head on a prompt, and what feeds it."""

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch

import nope_interp as ni
from experiments.explore.heads import feeds, head
from experiments.explore.kept import Kept
from experiments.explore.playground import Playground
from experiments.explore.reading import changed_pass, read
from nope_interp.errors import UserError
from nope_interp.models.composition import k_composition
from tests.experiments.explore.states import PROMPT, changing, head_change, state
from tests.small_models import model as small_model

pytestmark = pytest.mark.usefixtures("one_thread")
AT = {"layer": 1, "head": 2}


def pattern(playground: Playground) -> torch.Tensor:
    with torch.no_grad():
        _, cache = playground.model.run_with_cache(playground.tokens(PROMPT))
    return cache["blocks.1.attn.hook_pattern"][0, 2]


def unpacked(packed: object) -> torch.Tensor:
    raw = np.frombuffer(base64.b64decode(packed.base64), "<f4")  # type: ignore[attr-defined]
    return torch.from_numpy(raw.reshape(packed.shape).copy())  # type: ignore[attr-defined]


def test_a_heads_pattern_is_the_models(playground: Playground) -> None:
    found = head(playground, state(**AT))
    torch.testing.assert_close(unpacked(found.before), pattern(playground))
    assert found.after is None
    assert found.tokens == read(playground, state()).tokens
    assert found.label == read(playground, state()).before.labels[1][2]
    scores = read(playground, state()).before.scores
    assert found.scores == {name: values[1][2] for name, values in scores.items()}


def test_after_a_change_it_is_the_changed_models(llama: Playground) -> None:
    asked = changing(positions="rotary:none").model_copy(update=AT)
    found = head(llama, asked)
    with ni.ablate_positions(llama.model, "rotary:none"):
        expected = pattern(llama)
    assert found.after is not None
    torch.testing.assert_close(unpacked(found.after), expected)
    assert not torch.allclose(unpacked(found.before), expected, atol=1e-3)


def test_frequencies_are_shares_of_the_norms_of_queries_and_keys(llama: Playground) -> None:
    found = head(llama, state(**AT)).frequencies
    with torch.no_grad():
        _, cache = llama.model.run_with_cache(llama.tokens(PROMPT))
    attention = llama.model.blocks[1].attn
    query, key = (cache[f"blocks.1.attn.{name}"][0] for name in ("hook_q", "hook_k"))
    query, key = query.view(len(query), 4, 8)[:, 2], key.view(len(key), 2, 8)[:, 1]
    assert attention is not None

    def norms(x: torch.Tensor) -> torch.Tensor:
        return (x[:, :4] ** 2 + x[:, 4:] ** 2).sqrt().mean(dim=0)

    size = norms(query) * norms(key)
    assert found is not None
    assert found.share == pytest.approx((size / size.sum()).tolist(), rel=1e-4)
    assert found.radians == pytest.approx([10_000 ** (-n / 4) for n in range(4)], rel=1e-4)
    assert (found.high, found.chance) == (pytest.approx(found.share[0]), 0.25)


def test_a_model_that_does_not_rotate_has_no_frequencies(embedded: Playground) -> None:
    assert head(embedded, state(**AT)).frequencies is None


def test_earlier_heads_are_named_by_their_composition(embedded: Playground) -> None:
    found = feeds(embedded, state(layer=2, head=1))
    scores = torch.stack([k_composition(embedded.model, n, 2) for n in range(2)])
    own = {(one.layer, one.head): one.score for one in found.feeds}
    assert own == {at: pytest.approx(float(scores[at][1])) for at in own}
    told = [one.score for one in found.feeds]
    assert told == sorted(told, reverse=True)
    assert told[0] == pytest.approx(float(scores[:, :, 1].max()))
    assert found.chance == pytest.approx(float(np.quantile(scores.numpy(), 0.9)))
    labels = read(embedded, state()).before.labels
    assert all(one.label == labels[one.layer][one.head] for one in found.feeds)


def test_where_nothing_composes_it_says_why(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = feeds(embedded, state(layer=0, head=1))
    assert (found.feeds, found.why) == ([], "The first layer has no earlier heads.")
    post = small_model(norm_placement="post", n_heads=4, n_layers=4)
    monkeypatch.setattr(Playground, "model", post)
    assert "post-norm" in feeds(embedded, state(**AT)).why


@pytest.mark.parametrize("at", [{}, {"layer": 1}, {"head": 1}])
def test_where_no_head_is_looked_at_it_is_asked_for(
    embedded: Playground, at: dict[str, int]
) -> None:
    for answer in (head, feeds):
        with pytest.raises(UserError, match="no head is looked at: give a layer and a head"):
            answer(embedded, state(**at))


@pytest.mark.parametrize("at", [{"layer": 4, "head": 0}, {"layer": 0, "head": 4}])
def test_a_head_that_is_not_there_is_refused(embedded: Playground, at: dict[str, int]) -> None:
    for answer in (head, feeds):
        with pytest.raises(UserError, match=r"the model has no (layer|head)"):
            answer(embedded, state(**at))


def test_scores_on_repeated_tokens_are_kept_within_bounds(embedded: Playground) -> None:
    """Each change has its own, and a page may ask for any number of them."""
    small = Playground(embedded.loaded, repeated=Kept(2000))
    for to in ("ablated", "uniform", "previous_token"):
        after = changed_pass(small, changing(head_change(0, 1, to)))
        assert after is not None
        assert 0 < small.repeated.n_bytes <= 2000
        scores = sum(values.nbytes for values in after.scores.values())
        assert after.n_bytes == replace(after, scores={}).n_bytes + scores
    assert small.made == {}
