"""A moved position, held against the library's own intervention and probes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nope_interp as ni
from experiments.explore import text
from experiments.explore.moving import move
from experiments.explore.playground import Playground
from experiments.explore.text import fitted_on, probes_for
from experiments.loaded import load
from nope_interp.errors import UserError
from probes.regression import LinearProbe
from tests.byte_llama import byte_llama
from tests.experiments.explore.states import PROMPT, changing, state

MOVES = {12: 20, 30: 5}

pytestmark = pytest.mark.usefixtures("one_thread")


def moving(code: str = "mean residual", layer: int = 0, **parts: Any) -> dict[str, Any]:
    asked = {"code": code, "layer": layer, "site": "resid_post", "moves": MOVES, **parts}
    asked["moves"] = {str(position): to for position, to in asked["moves"].items()}
    return asked


@torch.no_grad()
def run(playground: Playground) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Probabilities of the next token, patterns and the stream behind each layer."""
    logits, cache = playground.model.run_with_cache(playground.tokens(PROMPT))
    layers = range(playground.variant.n_layers)
    patterns = [cache[f"blocks.{n}.attn.hook_pattern"][0].clone() for n in layers]
    streams = [cache[f"blocks.{n}.hook_resid_post"].clone() for n in layers]
    return logits[0, -1].softmax(-1), patterns, streams


def test_what_follows_a_moved_position_is_what_the_library_finds(playground: Playground) -> None:
    found = move(playground, state(move=moving()))
    tokens = playground.variant.sources[0].sequences(**fitted_on(playground, 39))
    code = ni.fit_code(playground.model, tokens, "mean residual", layer=0)
    before, unmoved, _ = run(playground)
    with ni.set_position(playground.model, code, MOVES):
        after, moved, streams = run(playground)
    for layer, pattern in enumerate(moved):
        distance = (pattern - unmoved[layer]).abs().sum(-1).mean(-1) / 2
        assert found.patterns[layer] == pytest.approx(distance.tolist(), abs=1e-5)
    # Before the layer behind the site nothing moves, and in it something does.
    assert found.patterns[0] == found.control_patterns[0] == [0, 0, 0, 0]
    assert min(found.patterns[1]) > 0
    distance = float((after - before).abs().sum() / 2)
    assert found.distance == pytest.approx(distance, abs=1e-5)
    assert {one.id: one.after for one in found.predictions} == pytest.approx(
        {one.id: float(after[one.id]) for one in found.predictions}, abs=1e-5
    )
    for layer, told in enumerate(found.probes):
        probe = LinearProbe(n_resamples=2)
        fed: list[Tensor] = []
        hook = f"blocks.{layer}.hook_resid_post"
        ni.stream(playground.model, tokens, {hook: lambda x, fed=fed: fed.append(x[:, 1:].clone())})
        positions = torch.arange(1, tokens.shape[1])
        for some in fed:
            probe.update(some, positions)
        probe.evaluate(fed[0], positions)
        read = probe.predict(streams[layer][:, [*MOVES]])[0]
        assert [one.after for one in told.moved] == pytest.approx(read.tolist(), abs=0.02)
        assert [(one.position, one.to) for one in told.moved] == [*MOVES.items()]
        assert told.moved[0].before != told.moved[0].after


def test_the_control_moves_as_far_and_has_a_range(playground: Playground) -> None:
    found = move(playground, state(move=moving()))
    assert found.draws >= 3
    assert 0 < found.control_low < found.control_distance < found.control_high < 1
    assert max(found.control_patterns[1]) > 0
    for told in found.probes:
        assert all(one.control != one.after for one in told.moved)


def test_a_moved_position_is_read_where_it_was_moved_to(embedded: Playground) -> None:
    """All of the code is moved at the stream behind a layer: its own probe reads the new place."""
    found = move(embedded, state(move=moving(layer=3, moves={"12": 30})))
    (moved,) = found.probes[3].moved
    towards = (moved.after - moved.before) / (moved.to - moved.position)
    aside = (moved.control - moved.before) / (moved.to - moved.position)
    assert towards > 0.15
    assert towards > aside + 0.1


def test_similarity_is_moved_in_the_scores(llama: Playground) -> None:
    found = move(
        llama, state(move=moving("similarity", 1, site="attn_in", moves={"12": 20, "20": 12}))
    )
    assert found.patterns[0] == [0, 0, 0, 0]
    assert min(found.patterns[1]) > 0
    assert found.control_patterns[1] != found.patterns[1]


def test_probes_are_fitted_once_and_beat_chance(embedded: Playground) -> None:
    probes = probes_for(embedded, 39)
    assert probes_for(embedded, 100) is probes  # a short context is fitted whole
    assert all(error < 0.8 * probes.chance for error in probes.errors[1:])


def test_of_a_long_context_what_holds_a_prompt_is_fitted(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_SHORT", 64)
    lengths = [text.length_for(embedded, n) for n in (3, 32, 33, 64, 65, 128)]
    assert lengths == [32, 32, 64, 64, 96, 128]


def test_a_change_is_not_in_force_and_it_is_said(llama: Playground) -> None:
    plain = move(llama, state(move=moving()))
    asked = changing(positions="rotary").model_copy(update={"move": state(move=moving()).move})
    found = move(llama, asked)
    assert found.distance == plain.distance
    assert found.notes == plain.notes
    assert "nothing is taken away" in found.notes[-1]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (moving(moves={"60": 3}), "has 39 tokens, and none at position 60"),
        (moving(moves={"3": 127, "2": 200}), "position 200 has no code of its own"),
        (moving(moves={"0": 3}), "position 0 has no code of its own"),
        (moving(moves={"x": 3}), "a position is 'x'"),
        (moving("mean residuals"), "did you mean 'mean residual'"),
        (moving("similarity"), "in the scores alone, .* fit it at site 'attn_in'"),
        (moving(site="resid"), "unknown site 'resid'"),
        (moving(layer=4), "the model has no layer 4"),
        (None, "no position is moved"),
    ],
)
def test_what_cannot_be_moved_is_one_sentence(embedded: Playground, asked: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        move(embedded, state(move=asked))


def test_a_note_says_on_how_many_sequences_code_and_probes_are_fitted(tmp_path: Path) -> None:
    """Of a code for later positions than the prompt's, on fewer, which are longer."""
    folder = byte_llama(tmp_path / "m", hidden_size=640, num_hidden_layers=1,
                        max_position_embeddings=256)  # fmt: skip
    note = move(Playground(load(folder)), state("one two", move=moving(moves={5: 40}))).notes[0]
    assert note.startswith("The code is fitted on 51 sequences of the model's text, probes on 104.")


@pytest.mark.parametrize("key", ["07", "1e1", "5.0", "-1", "\u0663", "100000"])
def test_a_position_is_written_in_one_way(embedded: Playground, key: str) -> None:
    asked = {**moving(), "moves": {"7": 1, key: 2}}
    with pytest.raises(UserError, match=f"a position is '{key}': give a whole number from 0"):
        move(embedded, state(move=asked))
