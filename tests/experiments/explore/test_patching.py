"""Patching between two prompts, held against TransformerLens's own loops."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from transformer_lens import patching

import nope_interp as ni
from experiments.explore.answers import PatchMap, Progress
from experiments.explore.patching import patch
from experiments.explore.playground import Playground
from experiments.prompt import PatchReading
from nope_interp.errors import UserError
from nope_interp.interventions import patched_runs
from tests.experiments.explore.states import OTHER, PROMPT, state

pytestmark = pytest.mark.usefixtures("one_thread")


def patched(
    playground: Playground, at: str, prompt: str = PROMPT, other: str = OTHER
) -> tuple[list[Progress], PatchMap]:
    playground.made.pop("patched", None)
    asked = state(prompt, other_prompt=other, patch={"at": at})
    *steps, found = patch(playground, asked, nullcontext)
    assert isinstance(found, PatchMap)
    return [step for step in steps if isinstance(step, Progress)], found


class Reference:
    """The two runs, and TransformerLens's metric of a third."""

    def __init__(self, playground: Playground) -> None:
        self.model: Any = playground.model
        self.corrupted = playground.tokens(OTHER)
        with torch.no_grad():
            logits, self.cache = self.model.run_with_cache(playground.tokens(PROMPT))
            second = self.model(self.corrupted)[0, -1].topk(2).indices
            self.answer = logits[0, -1].argmax()
            self.other = second[0] if second[0] != self.answer else second[1]
            self.ends = self.difference(logits), self.difference(self.model(self.corrupted))

    def difference(self, logits: Tensor) -> Tensor:
        return logits[0, -1, self.answer] - logits[0, -1, self.other]

    def share(self, difference: Tensor) -> Tensor:
        clean, corrupted = self.ends
        return (difference - corrupted) / (clean - corrupted)

    @torch.no_grad()
    def patched(self, at: str) -> Tensor:
        given = (self.model, self.corrupted, self.cache, lambda x: self.share(self.difference(x)))
        if at == "resid_pre":
            return patching.get_act_patch_resid_pre(*given)
        if at == "pattern":
            return patching.get_act_patch_attn_head_pattern_all_pos(*given)
        return self.heads()

    def heads(self) -> Tensor:
        """By hand: TransformerLens's loop needs an axis of heads, which Llama's bridge lacks."""
        found = torch.zeros(self.model.cfg.n_layers, 4)
        for layer, head in torch.cartesian_prod(torch.arange(len(found)), torch.arange(4)).tolist():
            name = f"blocks.{layer}.attn.hook_z"
            clean = self.cache[name].flatten(2)
            d = clean.shape[-1] // 4

            own = torch.arange(clean.shape[-1]) // d == head
            put = partial(_put, clean=clean, own=own)
            logits = self.model.run_with_hooks(self.corrupted, fwd_hooks=[(name, put)])
            found[layer, head] = self.share(self.difference(logits))
        return found


def _put(z: Tensor, hook: object, clean: Tensor, own: Tensor) -> Tensor:
    return torch.where(own, clean, z.flatten(2)).reshape(z.shape)


@pytest.mark.parametrize("at", ["resid_pre", "head_out", "pattern"])
def test_what_is_recovered_is_what_transformerlens_recovers(
    playground: Playground, at: str
) -> None:
    steps, found = patched(playground, at)
    reference = Reference(playground)
    expected = reference.patched(at)
    assert torch.tensor(found.recovered).shape == expected.shape
    torch.testing.assert_close(torch.tensor(found.recovered), expected, rtol=1e-3, atol=2e-4)
    assert expected.abs().max() > 0.05
    ends = (found.clean, found.corrupted)
    assert ends == pytest.approx([float(end) for end in reference.ends], abs=1e-4)
    decode = playground.variant.tokenizer.decode
    assert (found.answer, found.other) == (
        decode([int(reference.answer)]),
        decode([int(reference.other)]),
    )
    done = [step.done for step in steps]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == steps[-1].total


def test_ours_agrees_with_transformerlens_on_head_outputs(embedded: Playground) -> None:
    """The reference by hand is TransformerLens's own, where that can be asked."""
    reference = Reference(embedded)
    found = patching.get_act_patch_attn_head_out_all_pos(
        reference.model,
        reference.corrupted,
        reference.cache,
        lambda x: reference.share(reference.difference(x)),
    )
    torch.testing.assert_close(reference.heads(), found)


@pytest.mark.parametrize("refused", ["seen", "joined"])
def test_a_model_that_bears_no_shorter_way_is_run_all_the_way(
    llama: Playground, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Without kept keys, or runs that join either: the map stays, the work grows."""
    tokens: list[int] = []
    handle = llama.model.blocks[0].mlp.register_forward_pre_hook(
        lambda module, args: tokens.append(args[0].shape[0] * args[0].shape[1])
    )
    try:
        _, short = patched(llama, "resid_pre")
        n_short = sum(tokens)
        exact = patched_runs._is_exact
        monkeypatch.setattr(
            patched_runs,
            "_is_exact",
            lambda runs, seen, first: refused == "seen" and not seen and exact(runs, seen, first),
        )
        tokens.clear()
        _, longer = patched(llama, "resid_pre")
    finally:
        handle.remove()
    expected = torch.tensor(short.recovered)
    torch.testing.assert_close(torch.tensor(longer.recovered), expected, rtol=1e-3, atol=2e-4)
    assert sum(tokens) > 1.2 * n_short


@pytest.mark.parametrize("at", ["resid_pre", "head_out"])
def test_columns_that_share_a_pass_are_each_as_alone(
    playground: Playground, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    few, together = patched(playground, at)
    monkeypatch.setattr(patched_runs, "_MOST_TOKENS", 1)
    many, alone = patched(playground, at)
    shares = (torch.tensor(one.recovered) for one in (together, alone))
    torch.testing.assert_close(*shares, rtol=1e-3, atol=2e-4)
    n_layers = playground.model.cfg.n_layers
    assert [step.done for step in many] == list(range(0, many[-1].total + 1, n_layers))
    assert len(few) < len(many)


def test_runs_that_join_and_end_elsewhere_are_not_trusted(
    llama: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = patched(llama, "resid_pre")
    one_more = patched_runs._with_more
    monkeypatch.setattr(
        patched_runs, "_with_more", lambda corrupted, *rest: one_more(1.1 * corrupted, *rest)
    )
    _, found = patched(llama, "resid_pre")
    shares = (torch.tensor(one.recovered) for one in (found, expected))
    torch.testing.assert_close(*shares, rtol=1e-3, atol=2e-4)


def test_a_map_is_kept_until_another_is_asked(embedded: Playground) -> None:
    _, first = patched(embedded, "head_out")
    asked = state(other_prompt=OTHER, patch={"at": "head_out"})
    (again,) = patch(embedded, asked, nullcontext)
    assert again == first


@pytest.mark.parametrize(
    ("prompt", "other", "told"),
    [
        (PROMPT, "too short", "the prompts have 39 and 10 tokens"),
        (PROMPT, PROMPT, "the two prompts are the same"),
        (PROMPT, None, "patching takes two prompts"),
        ("x" * 500, "y" * 500, "the prompt has 501 tokens"),
    ],
)
def test_what_cannot_be_patched_is_one_sentence(
    embedded: Playground, prompt: str, other: str | None, told: str
) -> None:
    asked = state(prompt, other_prompt=other, patch={"at": "resid_pre"})
    with pytest.raises(UserError, match=told):
        list(patch(embedded, asked, nullcontext))


def test_prompts_that_the_model_does_not_tell_apart_are_refused(llama: Playground) -> None:
    def same(x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    with (
        ni.intervene(llama.model, {"ln_final.hook_normalized": same}),
        pytest.raises(UserError, match="the same logit difference"),
    ):
        patched(llama, "resid_pre")


def test_what_rounds_to_zero_is_printed_without_a_sign() -> None:
    found = PatchReading(pd.DataFrame([[-0.001, -0.5]]), -0.001, 0.0, "a", "b")
    assert "-0.0" not in repr(found)
    assert "-0.5" in repr(found)
