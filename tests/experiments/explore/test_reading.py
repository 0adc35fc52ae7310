"""What a prompt shows, held against the library and against sums by hand."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nope_interp as ni
from experiments.explore.asked import Change
from experiments.explore.playground import Playground
from experiments.explore.reading import read
from nope_interp.errors import UserError
from probes.head_rules import LABELS
from probes.heads.detectors import HeadProbe
from tests.experiments.explore.states import OTHER, PROMPT, changing, head_change, state

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
def log_probabilities(playground: Playground, prompt: str = PROMPT) -> Tensor:
    return playground.model(playground.tokens(prompt))[0].float().log_softmax(-1)


@torch.no_grad()
def patterns(playground: Playground, prompt: str = PROMPT) -> list[Tensor]:
    _, cache = playground.model.run_with_cache(playground.tokens(prompt))
    return [cache[f"blocks.{n}.attn.hook_pattern"][0] for n in range(playground.variant.n_layers)]


def unpacked(packed: Any) -> np.ndarray:
    kind = "<f4" if packed.dtype == "float32" else np.uint8
    return np.frombuffer(base64.b64decode(packed.base64), kind).reshape(packed.shape)


def test_a_prompt_is_read_as_the_model_reads_it(playground: Playground) -> None:
    found = read(playground, state())
    tokens, expected = playground.tokens(PROMPT), log_probabilities(playground)
    assert "".join(found.tokens[1:]) == PROMPT
    assert found.before.surprisal[0] is None
    surprisal = -expected[:-1].gather(1, tokens[0, 1:, None])[:, 0]
    assert found.before.surprisal[1:] == pytest.approx(surprisal.tolist(), abs=1e-4)
    loss = float(ni.sequence_losses(playground.model, tokens)[0])
    assert found.before.loss == pytest.approx(loss, abs=1e-4)
    top = expected[-1].exp().topk(10)
    assert [one.id for one in found.before.predictions] == top.indices.tolist()
    probabilities = [one.probability for one in found.before.predictions]
    assert probabilities == pytest.approx(top.values.tolist(), abs=1e-5)
    assert found.after is found.difference is None


def test_a_special_token_that_is_typed_is_read_as_this_token(llama: Playground) -> None:
    begin = int(llama.tokens("a")[0, 0])
    a, b = (int(llama.tokens(letter)[0, 1]) for letter in "ab")
    assert llama.tokens("a<bos>b")[0].tolist() == [begin, a, begin, b]


def test_thumbnails_hold_the_greatest_weight_of_each_cell(playground: Playground) -> None:
    long, short = read(playground, state()), read(playground, state("It is so"))
    for layer, pattern in enumerate(patterns(playground)):
        small = unpacked(long.before.thumbnails[layer]) / 255
        assert small.shape == (len(pattern), 32, 32)
        assert small.max() == pytest.approx(float(pattern.max()), abs=1 / 255)
        # Of 39 tokens the last cell covers the last two.
        assert small[:, -1, -1] == pytest.approx(pattern[:, -2:, -2:].amax(dim=(1, 2)), abs=1 / 255)
    for layer, pattern in enumerate(patterns(playground, "It is so")):
        small = unpacked(short.before.thumbnails[layer]) / 255
        assert small == pytest.approx(pattern.numpy(), abs=1 / 255)


def test_scores_are_those_of_the_detectors(playground: Playground) -> None:
    found = read(playground, state()).before
    for layer, pattern in enumerate(patterns(playground)):
        probe = HeadProbe()
        probe.read_text(pattern[None].repeat(2, 1, 1, 1))
        scores = probe.result()
        for name in ("previous_token", "first_token", "local", "uniform", "entropy"):
            expected = scores.value[:, scores.column(name)]
            assert found.scores[name][layer] == pytest.approx(expected, abs=1e-5), name
    assert {label for row in found.labels for label in row} <= {*LABELS}


def test_a_prompt_too_short_to_score_has_no_scores_and_is_shown(embedded: Playground) -> None:
    found = read(embedded, state("so")).before
    assert found.scores["previous_token"] == [[None] * 4] * 4
    assert found.scores["induction"][0][0] is not None  # of repeated tokens, not of the prompt
    assert found.labels == [["none"] * 4] * 4


@pytest.mark.parametrize("prompt", [PROMPT[:n] for n in (10, 14, 18, 30)])
def test_equal_weights_are_not_called_local_where_most_tokens_are_near(
    embedded: Playground, prompt: str
) -> None:
    asked = state(prompt, change={"head_changes": [head_change(1, 2, "uniform")]})
    found = read(embedded, asked).after
    assert found is not None
    assert found.scores["uniform"][1][2] == pytest.approx(1)
    assert (found.scores["local"][1][2] > 0.6) == (len(prompt) < 20)
    assert found.labels[1][2] == "uniform"


@pytest.mark.parametrize(
    ("change", "ablated"),
    [
        ({"positions": "rotary:none"}, {}),
        ({"positions": "rotary:keep_highest=0.5", "layers": [1]}, {"layers": [1]}),
        ({"positions": "rotary", "heads": [[1, 0], [1, 1]]}, {"layers": [1], "heads": [0, 1]}),
    ],
)
def test_positions_are_taken_away_as_the_library_does(
    llama: Playground, change: dict[str, Any], ablated: dict[str, Any]
) -> None:
    found = read(llama, changing(**change))
    with ni.ablate_positions(llama.model, change["positions"], **ablated):
        expected, ways = log_probabilities(llama), patterns(llama)
    before, intact = log_probabilities(llama), patterns(llama)
    written = llama.tokens(PROMPT)[0, 1:, None]
    assert found.after is not None
    assert found.difference is not None
    surprisal = -expected[:-1].gather(1, written)[:, 0]
    moved = surprisal + before[:-1].gather(1, written)[:, 0]
    assert found.after.surprisal[1:] == pytest.approx(surprisal.tolist(), abs=1e-4)
    assert found.difference.surprisal[1:] == pytest.approx(moved.tolist(), abs=1e-4)
    assert found.difference.loss == pytest.approx(float(moved.mean()), abs=1e-4)
    assert float(moved.abs().max()) > 1e-3
    for layer in range(2):
        distance = (ways[layer] - intact[layer]).abs().sum(-1).mean(-1) / 2
        assert found.difference.patterns[layer] == pytest.approx(distance.tolist(), abs=1e-5)
    both = {one.id: one for one in found.difference.predictions}
    assert {*expected[-1].topk(10).indices.tolist(), *before[-1].topk(10).indices.tolist()} == {
        *both
    }
    assert all(
        one.after == pytest.approx(float(expected[-1, id].exp()), abs=1e-5)
        for id, one in both.items()
    )
    # And the model is as it was.
    assert torch.equal(log_probabilities(llama), before)


def test_heads_of_one_layer_each_may_lose_their_positions(llama: Playground) -> None:
    found = read(llama, changing(positions="rotary", heads=[[0, 0], [0, 1], [1, 2], [1, 3]]))
    with (
        ni.ablate_positions(llama.model, "rotary", layers=[0], heads=[0, 1]),
        ni.ablate_positions(llama.model, "rotary", layers=[1], heads=[2, 3]),
    ):
        expected = -log_probabilities(llama)[:-1].gather(1, llama.tokens(PROMPT)[0, 1:, None])
    assert found.after is not None
    assert found.after.surprisal[1:] == pytest.approx(expected[:, 0].tolist(), abs=1e-4)


def test_a_head_gets_the_pattern_that_is_asked_and_no_other_head_does(
    playground: Playground,
) -> None:
    own, other = patterns(playground), patterns(playground, OTHER)
    n = own[0].shape[-1]
    query, key = torch.arange(n)[:, None], torch.arange(n)
    wanted = {
        "uniform": (key <= query) / (query + 1),
        "previous_token": (key == (query - 1).clamp(min=0)).float(),
        "other_prompt": other[0][1],
    }
    for to, expected in wanted.items():
        found = read(playground, changing(head_change(0, 1, to)))
        assert found.difference is not None
        distance = (expected - own[0][1]).abs().sum(-1).mean() / 2
        in_layer = found.difference.patterns[0]
        assert in_layer[1] == pytest.approx(float(distance), abs=1e-5)
        assert [in_layer[head] for head in (0, 2, 3)] == [0, 0, 0]
        assert found.difference.loss != 0


def test_an_ablated_head_writes_nothing(playground: Playground) -> None:
    found = read(playground, changing(head_change(1, 2, "ablated")))

    def without(z: Tensor) -> Tensor:
        heads = z.clone().view(*z.shape[:2], 4, -1)
        heads[:, :, 2] = 0
        return heads.view(z.shape)

    with ni.intervene(playground.model, {"blocks.1.attn.hook_z": without}):
        expected = float(ni.sequence_losses(playground.model, playground.tokens(PROMPT))[0])
    assert found.after is not None
    assert found.after.loss == pytest.approx(expected, abs=1e-4)
    assert found.difference is not None
    assert found.difference.loss != 0
    assert found.difference.patterns[0] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"positions": "rotery"}, "did you mean 'rotary'"),
        ({"positions": "learned"}, "the model has no learned positions"),
        ({"positions": "rotary:none", "layers": [7]}, "the model has no layer 7"),
        ({"positions": "rotary", "heads": [[0, 1]]}, "head 1 shares its keys"),
        ({"positions": "rotary", "heads": [[0, 1]], "layers": [0]}, "heads name their layers"),
        ({"head_changes": [head_change(9, 0, "ablated")]}, "the model has no layer 9"),
        ({"head_changes": [head_change(0, 4, "uniform")]}, "the model has no head 4"),
        ({"head_changes": [head_change(0, 0, "uniform")] * 2}, "is changed twice"),
        ({"head_changes": [head_change(0, 0, "other_prompt")]}, "no other prompt is given"),
    ],
)
def test_what_cannot_be_changed_is_one_sentence_and_changes_nothing(
    llama: Playground, change: dict[str, Any], told: str
) -> None:
    before = log_probabilities(llama)
    with pytest.raises(UserError, match=told):
        read(llama, state(change=change))
    assert torch.equal(log_probabilities(llama), before)


def test_another_prompts_pattern_has_as_many_tokens(llama: Playground) -> None:
    change = {"head_changes": [head_change(0, 0, "other_prompt")]}
    with pytest.raises(
        UserError,
        match=r"^the other prompt has 4 tokens and this one 39: type two of one length\.$",
    ):
        read(llama, state(change=change, other_prompt="abc"))


def test_a_model_without_positions_says_that_there_is_nothing_to_take(embedded: Playground) -> None:
    with pytest.raises(UserError, match="has no positional encoding"):
        read(embedded, changing(positions="all"))


@pytest.mark.parametrize(
    ("prompt", "told"),
    [("x" * 200, "the prompt has 201 tokens: give one of 2 to 128"), ("\ud800", "not valid Unic")],
)
def test_prompts_that_cannot_be_read_are_one_sentence(
    embedded: Playground, prompt: str, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        embedded.tokens(prompt)


def test_a_token_that_the_model_lacks_is_refused(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(embedded.variant), "encode", lambda variant, text: [7, 999])
    with pytest.raises(UserError, match="token 999 is not in the vocabulary"):
        embedded.tokens("ab")


def test_a_pass_is_kept_and_read_once(embedded: Playground) -> None:
    read(embedded, state())  # and the repeated tokens, which all prompts share
    runs: list[int] = []
    handle = embedded.model.blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))
    try:
        for _ in range(2):
            read(embedded, state("Read this once, please."))
        first = len(runs)
        read(embedded, state("And this is another one."))
        assert len(runs) == 2 * first == 2
    finally:
        handle.remove()


def test_no_change_at_all_is_no_change() -> None:
    assert state(change={}).changes is None
    assert Change(layers=[0]).nothing
