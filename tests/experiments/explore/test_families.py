"""Pretrained families that differ in what they show: each answers, or says what it cannot."""

import base64
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from experiments.explore import patching
from experiments.explore.answers import PatchMap
from experiments.explore.heads import feeds, head
from experiments.explore.model import model
from experiments.explore.moving import move
from experiments.explore.playground import Playground
from experiments.explore.reading import read
from experiments.loaded import LoadedModel
from experiments.variants.config import ProbingConfig
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.interventions import patched_runs
from nope_interp.positions.layers import positions_in_words
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.tasks.sources import TextSource, UniformSource
from tests.byte_llama import byte_tokenizer
from tests.experiments.explore.states import head_change, state
from tests.huggingface import VOCABULARY, bridged_model, plain_model

pytestmark = pytest.mark.usefixtures("one_thread")
CLEAN, CORRUPTED = "the quick brown fox", "the quilk brown fox"
# Those whose attention goes on without what its patterns' hooks give back.
IDLE = {"t5", "gptj"}


class Letters:
    """Each letter is a token, and nothing special is."""

    def __call__(self, text: str, **how: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[4 + ord(one) % (VOCABULARY - 4) for one in text])

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + id % 26) for id in ids)


def playground_of(family: str, **changes: int) -> Playground:
    built = bridged_model(family, **changes)
    text = torch.randint(4, VOCABULARY, (20_000,), generator=torch.Generator().manual_seed(0))
    sources = TextSource(text, None), UniformSource(torch.arange(4, VOCABULARY), None)
    variant = ModelVariant(
        name=family,
        kind="pretrained",
        model=built,
        tokenizer=Letters(),
        sources=sources,
        positions=positions_in_words(built),
        spec=ModelSpec(family, "cpu"),
    )
    return Playground(LoadedModel(variant, ProbingConfig()))


def test_sites_that_a_model_lacks_are_not_offered() -> None:
    assert "resid_mid" in model(playground_of("llama")).sites
    assert "resid_mid" not in model(playground_of("gptj")).sites


@pytest.mark.parametrize("family", ["gpt2", "bloom", "t5", "gptj", "gpt_oss"])
def test_a_family_answers_or_says_what_it_cannot(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    playground = playground_of(family)
    conditions = model(playground).conditions
    assert conditions
    for name in conditions:
        found = read(playground, state(CLEAN, change={"positions": name})).difference
        assert found is not None
        # A constant bias is none; and a quarter of GPT-J's two frequencies here rounds to none.
        assert found.loss != 0 or name in ("t5:mean", "rotary:drop_highest=0.25")
    for to in ("ablated", "uniform"):
        asked = state(CLEAN, change={"head_changes": [head_change(0, 1, to)]}, layer=1, head=1)
        if to == "uniform" and family in IDLE:
            with pytest.raises(UserError, match="past its pattern hooks"):
                read(playground, asked)
            continue
        found = read(playground, asked).difference
        assert found is not None
        assert found.loss != 0
        assert head(playground, asked).after is not None
    assert len(feeds(playground, state(CLEAN, layer=1, head=1)).feeds) == 4
    for at in ("resid_pre", "head_out", "pattern"):
        asked = state(CLEAN, other_prompt=CORRUPTED, patch={"at": at})
        if at == "pattern" and family in IDLE:
            with pytest.raises(UserError, match="past its pattern hooks"):
                list(patching.patch(playground, asked, nullcontext))
            continue
        *_, joining = patching.patch(playground, asked, nullcontext)
        playground.made.pop("patched")
        with monkeypatch.context() as whole:
            whole.setattr(patched_runs, "_is_exact", lambda *given: False)
            *_, without = patching.patch(playground, asked, nullcontext)
        recovered = [torch.tensor(one.recovered) for one in (joining, without)]  # type: ignore[union-attr]
        torch.testing.assert_close(*recovered, rtol=1e-3, atol=1e-4)
        assert recovered[0].abs().max() > 0.01


def test_what_half_precision_rounds_is_no_share() -> None:
    """The ends lie 1/128 apart, a step of bfloat16: shares were 0 or 1 at random positions."""
    playground = playground_of("llama")
    playground.model.to(torch.bfloat16)
    one, other = playground.tokens("cl")[0].tolist()
    with torch.no_grad():
        embedding = playground.model.original_model.get_input_embeddings().weight
        embedding[other] = embedding[one] * 1.01
    for corrupted in (CORRUPTED, CLEAN[::-1]):
        asked = state(CLEAN, other_prompt=corrupted, patch={"at": "resid_pre"})
        with ExitStack() as stack:
            if corrupted == CORRUPTED:
                told = "but for the rounding of bfloat16"
                stack.enter_context(pytest.raises(UserError, match=told))
            list(patching.patch(playground, asked, nullcontext))


def test_one_layer_alone_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both prompts have the same tokens it reads the same, and nothing is run."""
    playground = playground_of("llama", num_hidden_layers=1)
    asked = state("abcdefgh", other_prompt="azcdefgh", patch={"at": "resid_pre"})
    monkeypatch.setattr(patched_runs, "_MOST_TOKENS", 1)
    *_, found = patching.patch(playground, asked, nullcontext)
    assert isinstance(found, PatchMap)
    (recovered,) = found.recovered
    assert [place for place, share in enumerate(recovered) if share] == [1]
    assert recovered[1] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "changes", "attending"),
    [
        ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}, [1, 3]),
        ("granitemoehybrid", {}, [3]),
        ("olmo_hybrid", {}, [3]),
        ("qwen3_next", {}, [3]),
    ],
)
def test_a_hybrid_shows_the_layers_that_have_heads(
    family: str, changes: dict[str, int], attending: list[int]
) -> None:
    playground = playground_of(family, **changes)
    n = [playground.model.cfg.n_heads * (layer in attending) for layer in range(4)]
    assert model(playground).attending == attending
    last = attending[-1]
    asked = state(CLEAN, change={"head_changes": [head_change(last, 1, "ablated")]})
    found = read(playground, asked)
    assert found.after is not None
    assert found.difference is not None
    assert found.difference.loss != 0
    for table in (found.before.labels, *found.before.scores.values(), found.difference.patterns):
        assert [len(row) for row in table] == n
    assert [packed.shape[0] for packed in found.before.thumbnails] == n

    # The patterns that transformers gives for the same layers.
    plain, ids = plain_model(family, **changes), playground.tokens(CLEAN)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        shown = plain(ids, output_attentions=True).attentions
    square = (ids.shape[1],) * 2
    maps = [one[0] for one in shown if one is not None and tuple(one.shape[-2:]) == square]
    for layer, weights in zip(attending, maps, strict=True):
        packed = head(playground, state(CLEAN, layer=layer, head=2)).before
        values = np.frombuffer(base64.b64decode(packed.base64), "<f4").reshape(packed.shape)
        assert values == pytest.approx(weights[2].numpy(), abs=1e-5)

    absent = {"code": "mean residual", "layer": 0, "site": "attn_in", "moves": {"2": 4}}
    with pytest.raises(UserError, match="layer 0 has no attn_in: choose from layer"):
        move(playground, state(CLEAN, move=absent))

    earlier = feeds(playground, state(CLEAN, layer=last, head=1))
    assert {one.layer for one in earlier.feeds} == set(attending[:-1])
    assert bool(earlier.why) == (len(attending) == 1)
    with pytest.raises(UserError, match=r"layer 0 has no heads: choose from layers? [13, ]+\."):
        head(playground, state(CLEAN, layer=0, head=0))
    with pytest.raises(UserError, match=r"no heads to patch in layers? [-02, ]+: patch the res"):
        list(
            patching.patch(
                playground,
                state(CLEAN, other_prompt=CORRUPTED, patch={"at": "head_out"}),
                nullcontext,
            )
        )


@pytest.mark.parametrize("family", ["jamba", "granitemoehybrid", "olmo_hybrid"])
def test_the_stream_of_a_hybrid_is_patched(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    playground = playground_of(family)
    asked = state(CLEAN, other_prompt=CORRUPTED, patch={"at": "resid_pre"})
    *_, joining = patching.patch(playground, asked, nullcontext)
    playground.made.pop("patched")
    monkeypatch.setattr(patched_runs, "_is_exact", lambda *given: False)
    *_, whole = patching.patch(playground, asked, nullcontext)
    recovered = [torch.tensor(one.recovered) for one in (joining, whole)]  # type: ignore[union-attr]
    torch.testing.assert_close(*recovered, rtol=1e-3, atol=1e-4)
    assert recovered[0].abs().max() > 0.01


def test_a_position_of_a_hybrid_is_moved() -> None:
    playground = playground_of("granitemoehybrid")
    with torch.no_grad():
        # What all tokens have in common: recurrences, which start from nothing, tell by it how
        # many tokens they have read.
        playground.model.original_model.get_input_embeddings().weight += 1
    told = {"code": "mean residual", "layer": 1, "site": "resid_post", "moves": {"1": 9}}
    moved = move(playground, state(CLEAN, move=told))
    assert [len(row) for row in moved.patterns] == [0, 0, 0, playground.model.cfg.n_heads]
    assert min(moved.patterns[3]) > 0
    assert [one.layer for one in moved.probes] == [0, 1, 2, 3]


def test_a_token_keeps_the_space_that_a_decoder_strips() -> None:
    """Llama's takes it from the first token of a text; each token is shown alone."""
    words = {"<s>": 0, "\u2581the": 1, "\u2581cat": 2, "a": 3, "\u2581": 4}
    built = Tokenizer(BPE(vocab=words, merges=[]))
    built.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    read_by = PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>")
    variant = replace(playground_of("llama").variant, tokenizer=read_by)
    shown = variant.token_strings(torch.tensor([0, 1, 2, 3, 4]))
    assert shown == ["<s>", " the", " cat", "a", " "]


def test_tokens_of_bytes_are_decoded_as_they_are() -> None:
    variant = replace(playground_of("llama").variant, tokenizer=byte_tokenizer())
    alone = [variant.tokenizer.decode([token]) for token in range(257)]
    assert variant.token_strings(torch.arange(257)) == alone
