"""Positions taken away: nothing shows them any more, references agree, everything comes back."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers.models.falcon import modeling_falcon

from nope_interp.errors import UserError
from nope_interp.models.clockwork import ClockworkConfig, ClockworkRNN
from nope_interp.models.config import POSITIONS
from nope_interp.models.encodings import RotaryPositions
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.changes import position_permutation
from nope_interp.positions.conditions import CONDITIONS, parse_condition
from nope_interp.positions.layers import (
    describe_positions,
    layer_positions,
    positions_in_words,
    rotary_attribute,
    rotary_frequencies,
)
from nope_interp.positions.order import ROUNDING, order_dependence, position_table
from nope_interp.streams import run_until, stream
from tests import model_table, typecheck
from tests.first_attention import assert_same, differ, first_attention, shuffled_past
from tests.huggingface import (
    FAMILIES,
    HYBRIDS,
    VARIANTS,
    WINDOW,
    bridged_model,
    logits_of,
    plain_logits,
    plain_model,
)
from tests.small_models import D_VOCAB, random_tokens
from tests.small_models import model as own_model

OWN = tuple(f"ours_{positions}" for positions in POSITIONS if positions != "none")
LEARNED = ("gpt2", "gpt_bigcode", "gpt_neo", "opt")
ROTARY = tuple(
    family for family in FAMILIES if family not in (*LEARNED, "bloom", "mpt", "falcon_alibi", "t5")
)
WINDOWED = (
    *("gpt_neo", "mistral", "gemma2", "gemma3", "phi3", "cohere2", "llama4", "exaone4", "olmo3"),
    *("starcoder2", "gpt_oss", "afmoe", "afmoe_norms", "vaultgemma", "gemma4", "gemma4_shared"),
)
# Longer than the attention window of those that have one.
TOKENS = random_tokens(batch=2, pos=WINDOW + 6).clamp(min=4)
ONES = torch.ones_like(TOKENS)


@cache
def model(name: str) -> Any:
    """Shared by all tests: every one of them gives the positions back."""
    if name.startswith("ours_"):
        return own_model(positions=name.removeprefix("ours_"))
    return bridged_model(name)


def logits(built: Any, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        return built(tokens)


def patterns(built: Any, layer: int = 0) -> Tensor:
    kept: list[Tensor] = []
    name = f"blocks.{layer}.attn.hook_pattern"
    stream(built, TOKENS, {name: lambda x: kept.append(x.clone())})
    return kept[0]


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS, *OWN])
def test_without_positions_the_order_of_earlier_tokens_is_lost(name: str) -> None:
    built = model(name)
    permuted = shuffled_past(TOKENS)
    assert differ(first_attention(built, permuted), first_attention(built, TOKENS))
    with ablate_positions(built, lift_window=name in WINDOWED) as ablation:
        assert_same(first_attention(built, permuted), first_attention(built, TOKENS))
        ablation.verify()
    assert ablation.name == "all:none"


def fail_without_positions(built: Any, lift_window: bool) -> None:
    before = logits(built)
    with ablate_positions(built, lift_window=lift_window):
        assert not torch.equal(logits(built), before)
        raise ZeroDivisionError


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_the_model_comes_back_bit_for_bit(name: str) -> None:
    built = model(name)
    lift = name in WINDOWED
    before = logits(built)
    with pytest.raises(ZeroDivisionError):
        fail_without_positions(built, lift)
    assert torch.equal(logits(built), before)
    ablation = ablate_positions(built, lift_window=lift)
    stream(built, TOKENS, {"blocks.0.hook_resid_pre": lambda x: None}, batch_size=1)
    built.reset_hooks()
    assert not torch.equal(logits(built), before)
    ablation.restore()
    ablation.restore()
    assert torch.equal(logits(built), before)
    with pytest.raises(UserError, match="is over"), ablation:
        pass


@pytest.mark.parametrize("name", [*ROTARY, "gemma4_shared", *HYBRIDS])
def test_rotary_conditions_equal_the_plain_model_at_other_positions(name: str) -> None:
    built, n = model(name), TOKENS.shape[1]
    where = {
        "none": torch.zeros(n, dtype=torch.long),
        "constant": torch.zeros(n, dtype=torch.long),
        "keep_highest=0": torch.zeros(n, dtype=torch.long),
        "keep_highest=1": torch.arange(n),
        "drop_highest=0": torch.arange(n),
        "shuffled": position_permutation(n, seed=3),
    }
    for condition, positions in where.items():
        # Without the mask transformers takes such positions for several sequences in one row.
        expected = plain_logits(
            name, TOKENS, position_ids=positions.expand_as(TOKENS), attention_mask=ONES
        )
        with ablate_positions(built, f"rotary:{condition}", seed=3) as ablation:
            assert_same(logits(built), expected)
            ablation.verify()
    assert differ(plain_logits(name, TOKENS), expected)


@pytest.mark.parametrize(
    "name", ["llama", "gpt_neox", "cohere", "gptj", "glm", "glm4", "ernie4_5", "llama4", "afmoe"]
)
def test_a_band_equals_the_plain_model_whose_other_frequencies_stand_still(name: str) -> None:
    built, plain = model(name), plain_model(name)
    n = max((layer.rotary_dims or 0) // 2 for layer in layer_positions(built))
    others = torch.arange(n) != 1
    if name == "gptj":
        for block in plain.transformer.h:
            table = block.attn.embed_positions.view(-1, 2, n)
            table[:, 0, others], table[:, 1, others] = 0.0, 1.0  # sines, then cosines
    else:
        rotary = plain.model.rotary_emb if name != "gpt_neox" else plain.gpt_neox.rotary_emb
        rotary.inv_freq[others] = 0.0
    with ablate_positions(built, "rotary:band=1-2"):
        assert_same(logits(built), logits_of(plain, TOKENS))


@pytest.mark.parametrize("name", LEARNED)
def test_learned_conditions_equal_the_plain_model_with_another_table(name: str) -> None:
    built, n = model(name), TOKENS.shape[1]
    offset = 2 if name == "opt" else 0

    def zero(table: Tensor) -> None:
        table.zero_()

    def mean(table: Tensor) -> None:
        table[:] = table[offset : offset + n].mean(dim=0)

    for condition, change in {"none": zero, "mean": mean}.items():
        plain = plain_model(name)
        embedding = plain.model.decoder.embed_positions if name == "opt" else plain.transformer.wpe
        with torch.no_grad():
            change(embedding.weight)
        with ablate_positions(built, f"learned:{condition}"):
            assert_same(logits(built), logits_of(plain, TOKENS))
    for condition, positions in {
        "constant": torch.zeros(n, dtype=torch.long),
        "shuffled": position_permutation(n, seed=0),
    }.items():
        expected = plain_logits(
            name, TOKENS, position_ids=positions.expand_as(TOKENS), attention_mask=ONES
        )
        with ablate_positions(built, f"learned:{condition}"):
            assert_same(logits(built), expected)
        assert differ(plain_logits(name, TOKENS), expected)


def without_slopes(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plain model with zeros for its score bias."""
    plain = plain_model(name)
    if name == "bloom":
        for block in plain.transformer.h:
            block.self_attention.register_forward_pre_hook(
                lambda _, args, kwargs: (args, {**kwargs, "alibi": 0 * kwargs["alibi"]}),
                with_kwargs=True,
            )
    elif name == "mpt":
        build = plain.transformer.build_mpt_alibi_tensor
        monkeypatch.setattr(
            plain.transformer, "build_mpt_alibi_tensor", lambda *args, **kw: 0 * build(*args, **kw)
        )
    elif name == "falcon_alibi":
        bias = modeling_falcon.build_alibi_tensor
        monkeypatch.setattr(
            modeling_falcon, "build_alibi_tensor", lambda *a, **kw: 0 * bias(*a, **kw)
        )
    else:
        table = plain.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        table.data.zero_()
    return plain


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon_alibi", "t5"])
def test_score_biases_equal_the_plain_model_with_zeros(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, before = model(name), plain_logits(name, TOKENS)
    expected = logits_of(without_slopes(name, monkeypatch), TOKENS)
    monkeypatch.undo()
    assert differ(before, expected)
    encoding = "t5" if name == "t5" else "alibi"
    with ablate_positions(built, encoding):
        assert_same(logits(built), expected)


def biases_of_ours(built: Any) -> Tensor:
    _, cached = built.run_with_cache(TOKENS)
    return torch.cat([cached[f"blocks.{layer}.attn.hook_score_bias"] for layer in range(2)])


def biases_of_t5(built: Any) -> Tensor:
    """What the library's own attention is given in each layer."""
    seen: list[Tensor] = []
    with ExitStack() as stack:
        for block in built.blocks:
            attention = block.attn.original_component
            handle = attention.register_forward_pre_hook(
                lambda _, args, kwargs: seen.append(kwargs["position_bias"]), with_kwargs=True
            )
            stack.callback(handle.remove)
        logits(built)
    # The first layer computes its own where it is given none.
    length = TOKENS.shape[1]
    first = built.blocks[0].attn.original_component.compute_bias(length, length)
    return torch.cat([first if bias is None else bias for bias in seen]).detach()


@pytest.mark.parametrize(("name", "biases"), [("ours_t5", biases_of_ours), ("t5", biases_of_t5)])
def test_the_mean_bias_is_that_of_the_cells_that_are_seen_in_each_head(
    name: str, biases: Callable[[Any], Tensor]
) -> None:
    """A softmax ignores it, so logits are those without a bias, whatever constant it is."""
    built, n, heads = model(name), TOKENS.shape[1], [1, 2]
    intact = biases(built)
    with ablate_positions(built, "t5"):
        without = logits(built)
    with ablate_positions(built, "t5:mean", heads=heads):
        found = biases(built)
    seen = torch.ones(n, n).tril().bool()
    assert intact.shape == found.shape == (2, built.cfg.n_heads, n, n)
    for layer, head in np.ndindex(*intact.shape[:2]):
        before, after = (of[layer, head][seen] for of in (intact, found))
        mean = before.double().mean().float().expand_as(before)
        torch.testing.assert_close(after, mean if head in heads else before)
    with ablate_positions(built, "t5:mean"):
        assert_same(logits(built), without)


@pytest.mark.parametrize("name", OWN)
def test_ours_equals_a_model_without_positions(name: str) -> None:
    built = model(name)
    bare = own_model(positions="none")
    weights = {key: w for key, w in built.state_dict().items() if not key.startswith("positions.")}
    bare.load_state_dict(weights)
    assert differ(logits(built), logits(bare))
    with ablate_positions(built):
        assert_same(logits(built), logits(bare))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_the_highest_frequencies_equal_p_rope(share: float) -> None:
    built = model("ours_rotary")
    partial = own_model(positions="rotary", rotary_kept=share)
    partial.load_state_dict(built.state_dict())
    n = built.config.rotary_dims // 2
    kept = round(share * n)
    with ablate_positions(built, f"rotary:keep_highest={share}"):
        assert_same(logits(built), logits(partial))
    if kept:
        with ablate_positions(built, f"rotary:band=0-{kept}"):
            assert_same(logits(built), logits(partial))
    if kept < n:
        with ablate_positions(built, f"rotary:drop_highest={share}"):
            dropped = logits(built)
        with ablate_positions(built, f"rotary:band={kept}-{n}"):
            assert torch.equal(logits(built), dropped)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_ours_added_conditions_equal_another_table(positions: str) -> None:
    n = TOKENS.shape[1]
    order = position_permutation(n, seed=5)
    tables: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda table: table[:n].mean(dim=0).expand(n, -1),
        "constant": lambda table: table[:1].expand(n, -1),
        "shuffled": lambda table: table[order],
    }
    for condition, of in tables.items():
        built, changed = own_model(positions=positions), own_model(positions=positions)
        with torch.no_grad():
            changed.positions.table[:n] = of(changed.positions.table.clone())
        with ablate_positions(built, f"{positions}:{condition}", seed=5):
            assert_same(logits(built), logits(changed))


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("gpt_neox", [1, 2]),
        ("llama", [2, 3]),
        ("llama_yarn", [0, 1]),
        ("qwen3", [2, 3]),
        ("phi", [3]),
        ("falcon_grouped", [0, 1]),
        ("cohere", [2, 3]),
        ("phi3", [0, 1]),
        ("gpt_oss", [2, 3]),
        ("glm", [0, 1]),
        ("hunyuan_norms", [2, 3]),
        ("bloom", [0]),
        ("mpt", [0]),
        ("falcon_alibi", [0, 2]),
        ("t5", [1]),
        ("ours_rotary", [2]),
        ("ours_alibi", [0]),
        ("ours_t5", [1]),
    ],
)
def test_heads_are_ablated_one_by_one(name: str, heads: Sequence[int]) -> None:
    built = model(name)
    intact, logits_intact = patterns(built), logits(built)
    with ablate_positions(built, layers=[0]):
        ablated = patterns(built)
    with ablate_positions(built, layers=[0], heads=heads) as ablation:
        some = patterns(built)
        assert differ(logits(built), logits_intact)
        ablation.verify()
    others = [head for head in range(intact.shape[1]) if head not in heads]
    assert torch.equal(some[:, others], intact[:, others])
    assert_same(some[:, list(heads)], ablated[:, list(heads)])
    assert differ(ablated[:, list(heads)], intact[:, list(heads)])
    assert torch.equal(logits(built), logits_intact)


@pytest.mark.parametrize("condition", ["shuffled", "keep_highest=0.5"])
@pytest.mark.parametrize(
    "name", ["llama_yarn", "gpt_neox", "cohere_normed_heads", "glm", "hunyuan_norms", "ours_rotary"]
)
def test_all_heads_one_by_one_are_the_whole_layer(name: str, condition: str) -> None:
    built = model(name)
    with ablate_positions(built, f"rotary:{condition}", layers=[0]):
        whole = patterns(built)
    with ablate_positions(built, f"rotary:{condition}", layers=[0], heads=range(built.cfg.n_heads)):
        assert_same(patterns(built), whole)


@pytest.mark.parametrize("name", ["gpt_neox", "gemma3", "bloom", "t5", "ours_rotary", "ours_t5"])
def test_layers_are_ablated_one_by_one(name: str) -> None:
    built = model(name)
    first, second, before = patterns(built, 0), patterns(built, 1), logits(built)
    with ablate_positions(built, layers=[1]) as ablation:
        assert torch.equal(patterns(built, 0), first)
        assert differ(patterns(built, 1), second)
        ablation.verify()
    with ablate_positions(built, layers=[0]):
        assert differ(patterns(built, 0), first)
        one = logits(built)
    with ablate_positions(built):
        assert differ(logits(built), one)
    assert torch.equal(logits(built), before)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_sliding_window_still_shows_position(name: str) -> None:
    built, permuted = model(name), shuffled_past(TOKENS)
    windowed = [layer.layer for layer in layer_positions(built) if layer.reach is not None]
    with ablate_positions(built) as ablation:
        if 0 in windowed:
            assert differ(first_attention(built, permuted), first_attention(built, TOKENS))
        assert ablation.caveats(WINDOW) == ()
        (caveat,) = ablation.caveats(WINDOW + 1)
        kind = "chunks" if name == "llama4" else "window"
        assert f"longer than the attention {kind} of {WINDOW} tokens" in caveat
        # Each query beyond the window attends to less than all before it.
        assert (patterns(built, windowed[0])[:, :, -1, 0] == 0).all()
    with ablate_positions(built, lift_window=True) as ablation:
        assert ablation.caveats(WINDOW + 1) == ()
        for layer in windowed:
            pattern = patterns(built, layer)
            assert (pattern[:, :, -1, 0] > 0).all()
            assert pattern.triu(1).abs().max() == 0


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_recurrence_still_shows_position(name: str) -> None:
    with ablate_positions(model(name)) as ablation:
        assert ablation.caveats(WINDOW + 1) == ("The recurrence in layers 0-2 still tells order.",)
    with ablate_positions(model("llama")) as ablation:
        assert ablation.caveats(WINDOW + 1) == ()


def test_a_place_that_is_never_reached_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = bridged_model("llama")
    with (
        ablate_positions(llama) as ablation,
        pytest.raises(UserError, match="'all:none' was never at work: run this model"),
    ):
        ablation.verify()
    # A bridge that passes its hook points by, as real ones do for some of theirs.
    attn = llama.blocks[1].attn
    monkeypatch.setattr(attn, "_apply_position_embedding_hooks", lambda rotation: rotation)
    with ablate_positions(llama) as ablation:
        logits(llama)
    with pytest.raises(UserError, match=r"never reached blocks\.1\.attn\.hook_cos and 1 more"):
        ablation.verify()


def test_what_lies_behind_the_end_of_a_pass_was_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llama = bridged_model("llama")
    end = "blocks.0.hook_resid_post"
    with ablate_positions(llama, layers=[1]) as ablation:
        run_until(llama, TOKENS, end)
        ablation.verify()
    attn = llama.blocks[0].attn
    monkeypatch.setattr(attn, "_apply_position_embedding_hooks", lambda rotation: rotation)
    with ablate_positions(llama, layers=[0, 1]) as ablation:
        run_until(llama, TOKENS, end)
    with pytest.raises(UserError, match=r"never reached blocks\.0\.attn\.hook_cos"):
        ablation.verify()


@pytest.mark.parametrize("name", [*FAMILIES, *OWN])
def test_a_pass_may_end_inside_attention(name: str) -> None:
    built = model(name)
    lift = name in WINDOWED
    attending = [layer.layer for layer in layer_positions(built) if layer.encoding != "recurrence"]
    inside = f"blocks.{attending[-1]}.attn.hook_pattern"
    before = logits(built)
    with ablate_positions(built, lift_window=lift) as ablation:
        expected = logits(built)
    with ablate_positions(built, lift_window=lift) as ablation:
        for _ in range(2):  # the second begins where the first was cut short
            run_until(built, TOKENS, inside)
        ablation.verify()
        assert torch.equal(logits(built), expected)
        run_until(built, TOKENS, inside)
    assert torch.equal(logits(built), before)


def test_a_bias_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bloom = bridged_model("bloom")
    handle = bloom.blocks[0].attn.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "alibi": None}), with_kwargs=True
    )
    with (
        ablate_positions(bloom),
        pytest.raises(UserError, match="gets no alibi: it cannot be ablated"),
    ):
        logits(bloom)
    handle.remove()
    # A Falcon that was not wrapped here, whose bridge adds the bias twice.
    falcon = plain_model("falcon_alibi")
    unmended = build_bridge_from_module(falcon, type(falcon).__name__, hf_config=falcon.config)
    with ablate_positions(unmended), pytest.raises(UserError, match="load it with load_pretrained"):
        logits(unmended)


def test_ablations_of_one_encoding_do_not_nest_in_one_layer() -> None:
    built = model("gemma3")
    with ablate_positions(built, "rotary:keep_highest=0.5", layers=[0]):
        with pytest.raises(UserError, match="rotary is active already in layer 0"):
            ablate_positions(built)
        with ablate_positions(model("llama")):
            pass  # another model's is none of its business
    with ablate_positions(built):
        pass


@pytest.mark.parametrize("name", ["gemma3", "gptj", "llama"])
def test_layers_ablated_one_by_one_are_as_layers_ablated_at_once(name: str) -> None:
    built = model(name)
    with ablate_positions(built, "rotary:none", layers=[0, 1]):
        at_once = logits(built)
    with ablate_positions(built, "rotary:none", layers=[0]):
        one = logits(built)
        with ablate_positions(built, "rotary:none", layers=[1]) as second:
            assert torch.equal(logits(built), at_once)
            second.verify()
        assert torch.equal(logits(built), one)
    assert not torch.equal(one, at_once)


@pytest.mark.parametrize(
    ("name", "how", "idle"),
    [
        ("llama", "keep_highest=1", True),
        ("llama", "drop_highest=0", True),
        ("llama", "band=0-4", True),
        ("llama", "band=0-3", False),
        ("llama", "shuffled", False),
        ("llama", "none", False),
        # Its global layers turn a quarter of their frequencies, its local ones all.
        ("gemma4", "keep_highest=0.25", False),
    ],
)
def test_what_takes_no_position_away_is_said(name: str, how: str, idle: bool) -> None:
    built = model(name)
    before = logits(built)
    with ablate_positions(built, f"rotary:{how}") as ablation:
        assert torch.equal(logits(built), before) == idle
        said = [note for note in ablation.caveats(8) if "no position is taken away" in note]
    assert len(said) == idle


def test_the_turning_share_of_p_rope_is_all_of_it() -> None:
    built = model("gemma4")
    with ablate_positions(built, "rotary:keep_highest=0.25", layers=[1]) as ablation:
        (said,) = ablation.caveats(8)
        ablated = logits(built)
    assert torch.equal(ablated, logits(built))
    assert said.startswith("rotary:keep_highest=0.25 keeps every frequency that turns")


@pytest.mark.parametrize(("kind", "layers"), [("sliding", [0, 2]), ("full", [1, 3])])
def test_layers_that_share_keys_are_ablated_together(kind: str, layers: list[int]) -> None:
    built, plain = model("gemma4_shared"), plain_model("gemma4_shared")
    getattr(plain.model.rotary_emb, f"{kind}_attention_inv_freq").zero_()
    with ablate_positions(built, layers=layers):
        assert_same(logits(built), logits_of(plain, TOKENS))
    for alone in layers:
        match = f"layer {layers[1]} reads the keys of layer {layers[0]}: choose both layers"
        with pytest.raises(UserError, match=match):
            ablate_positions(built, layers=[alone])


def test_what_a_model_lacks_is_refused() -> None:
    llama, gpt2, smollm = model("llama"), model("gpt2"), model("smollm3")
    for built, how, options, sentence in [
        (llama, "learned", {}, "no learned positions: give rotary, which it has"),
        (gpt2, "rotary:none", {}, "no rotary positions: give learned, which it has"),
        (own_model(), "all", {}, "nothing to take away"),
        (llama, "rotary", {"layers": [2]}, "no layer 2: choose from layers 0 to 1"),
        (llama, "rotary", {"layers": [-1]}, "no layer -1"),
        (llama, "rotary", {"layers": []}, "no layers are chosen"),
        (smollm, "rotary", {"layers": [0, 1]}, "layer 1 of the model has no rotary"),
        (llama, "rotary", {"heads": [4]}, "no head 4: choose from heads 0 to 3"),
        (llama, "rotary", {"heads": [0]}, "shares its keys with heads 0 to 1"),
        (model("falcon"), "rotary", {"heads": [1, 2]}, "shares its keys with heads 0 to 3"),
        (llama, "rotary", {"heads": []}, "no heads are chosen"),
        (model("gptj"), "rotary", {"heads": [0]}, "a gptj model shows no rotated queries"),
        (model("llama4"), "rotary", {"heads": [0, 1], "layers": [0]}, "ablate whole layers of it"),
        (model("olmo_hybrid"), "all", {"heads": [0, 1], "layers": [3]}, "ablate whole layers of"),
        (gpt2, "learned", {"layers": [0]}, "leave layers and heads out"),
        (gpt2, "all", {"heads": [0]}, "leave layers and heads out"),
        (llama, "rotary:band=0-9", {}, "beyond the model's 4 rotary frequencies"),
        (llama, "rotary", {"lift_window": True}, "has a sliding window"),
        (model("gemma3"), "all", {"lift_window": True, "layers": [1]}, "has a sliding window"),
        (
            model("gemma3"),
            "all",
            {"lift_window": True, "heads": [0, 1]},
            "heads share one mask",
        ),
    ]:
        with pytest.raises(UserError, match=sentence):
            ablate_positions(built, how, **options)  # type: ignore[arg-type]
        if "beyond" not in sentence:
            continue
        ablate_positions(built, "rotary").restore()  # what was refused left nothing behind


def test_the_table_of_families_in_the_docs_is_current() -> None:
    assert model_table.PAGE.read_text() == model_table.page(model), (
        "the families have changed: run python -m tests.model_table"
    )


def test_an_unknown_family_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    built = bridged_model("llama")
    monkeypatch.setattr(type(built.original_model.config), "model_type", "marsian")
    for refused in (layer_positions, describe_positions, ablate_positions):
        with pytest.raises(UserError, match="'marsian' model keeps its positions is not known"):
            refused(built)


def test_a_model_that_is_no_transformer_is_refused() -> None:
    clockwork = ClockworkRNN(ClockworkConfig(d_in=1, d_hidden=8, d_out=1))
    for refused in (layer_positions, describe_positions, ablate_positions):
        with pytest.raises(
            UserError, match=r"a ClockworkRNN keeps its positions .*: give a Hooked"
        ):
            refused(clockwork)


def test_names_are_canonical_and_wrong_ones_get_the_nearest() -> None:
    canonical = {
        "learned": "learned:none",
        "rotary": "rotary:none",
        "rotary:keep_highest=.50": "rotary:keep_highest=0.5",
        "rotary:band=02-3": "rotary:band=2-3",
        "all:none": "all:none",
    }
    for how, name in canonical.items():
        assert str(parse_condition(how)) == name
        assert str(parse_condition(name)) == name
    wrong = {
        "rotery": "did you mean 'rotary'",
        "rotary:shufled": "did you mean 'shuffled'",
        "learned:keep_highest=1": "unknown condition of learned positions",
        "all:mean": "choose from none",
        "rotary:keep_highest": "give 0 to 1",
        "rotary:keep_highest=1.5": "give 0 to 1",
        "rotary:drop_highest=nan": "give 0 to 1",
        "rotary:band=3": "give LO-HI",
        "rotary:band=3-3": "LO below HI",
        "rotary:none=1": "takes no value",
        "rotary:": "choose from",
        "": "choose from",
    }
    for how, sentence in wrong.items():
        with pytest.raises(UserError, match=sentence):
            parse_condition(how)


@given(
    st.text()
    | st.from_regex(r"(rotary|learned|all|t5)(:[a-z_]{0,14}(=[-0-9.e]{0,8})?)?", fullmatch=True)
)
def test_anything_is_a_condition_or_one_sentence(how: str) -> None:
    try:
        condition = parse_condition(how)
    except UserError:
        return
    assert condition.name in CONDITIONS[condition.encoding]
    assert parse_condition(str(condition)) == condition


def test_what_each_layer_has() -> None:
    gemma = layer_positions(model("gemma3"))
    assert [layer.window for layer in gemma] == [WINDOW, None]
    assert [layer.rotary_base for layer in gemma] == [10_000, 1_000_000]
    assert [layer.rotary_dims for layer in layer_positions(model("gpt_neox"))] == [4, 4]
    assert [layer.encoding for layer in layer_positions(model("smollm3"))] == ["rotary", "none"]
    assert [layer.encoding for layer in layer_positions(model("t5"))] == ["t5", "t5"]
    for hybrid in ("afmoe", "cohere2", "llama4", "exaone4"):
        assert positions_in_words(model(hybrid)) == "rotary, none in layer 1"
    assert positions_in_words(model("exaone4_global")) == "rotary"
    assert [layer.chunk for layer in layer_positions(model("llama4"))] == [WINDOW, None]
    for hybrid in HYBRIDS:
        turned = 2 if hybrid.startswith("qwen") else 8
        assert describe_positions(model(hybrid)) == (
            f"A recurrence in layers 0-2; rotary positions (base 10,000, {turned} dimensions of a "
            "head) in layer 3."
        )
    ours = own_model(positions="rotary", rotary_base=500.0, rotary_fraction=0.5)
    assert layer_positions(ours)[1].rotary_dims == 4
    assert layer_positions(ours)[1].rotary_base == 500
    assert describe_positions(model("gemma3")) == (
        "Rotary positions (base 10,000, 8 dimensions of a head, window of 16 tokens) in layer 0; "
        "rotary positions (base 1,000,000, 8 dimensions of a head) in layer 1."
    )
    assert describe_positions(own_model(n_layers=3)) == "No positional encoding in layers 0-2."


def test_dimensions_that_stand_still_are_told() -> None:
    slow_still = own_model(positions="rotary", rotary_kept=0.5)
    assert describe_positions(slow_still) == (
        "Rotary positions (base 10,000, 8 dimensions of a head, 4 of which stand still) in layers "
        "0-1."
    )
    assert [row["rotated"] for row in position_table(slow_still)] == [4]
    built = bridged_model("llama")
    rotary_attribute(built, 0, "inv_freq")[1:] = 0
    assert [layer.turning for layer in layer_positions(built)] == [2, 2]


@pytest.mark.parametrize("name", [*FAMILIES, "ours_none", *OWN])
def test_a_layer_tells_order_where_it_has_positions_and_nowhere_else(name: str) -> None:
    built = model(name)
    layers = layer_positions(built)
    changes = order_dependence(built, layers)
    assert changes.keys() == {0, 1}
    for layer in layers:
        # What is added to the embedding comes with what a layer is given.
        by_itself = layer.encoding not in ("none", "learned", "sinusoidal")
        assert (changes[layer.layer] > 1e-3) == by_itself
        assert by_itself or changes[layer.layer] < ROUNDING[torch.float32]
    if name != "ours_none":
        with ablate_positions(built):
            assert max(order_dependence(built, layers).values()) < ROUNDING[torch.float32]
        assert order_dependence(built, layers) == changes


def test_layers_that_are_alike_stand_in_one_row() -> None:
    rows = position_table(model("gemma3"))
    order = [row.pop("order") for row in rows]
    shared = {"positions": "rotary", "rotated": 8}
    assert rows == [
        {**shared, "layers": "0", "base": 10_000, "sees": f"window of {WINDOW} tokens"},
        {**shared, "layers": "1", "base": 1_000_000, "sees": None},
    ]
    assert all(1e-3 < low <= high for low, high in order)
    (row,) = position_table(own_model(n_layers=3))
    assert (row["layers"], row["positions"], row["base"]) == ("0-2", "none", None)
    for name in HYBRIDS:
        recurrent, rotary = position_table(model(name))
        assert (recurrent["positions"], rotary["positions"]) == ("recurrence", "rotary")
        assert min(*recurrent["order"], *rotary["order"]) > 1e-3


def test_rotary_frequencies_are_the_ones_of_the_angles() -> None:
    for name, layer in [("gemma3", 0), ("gemma3", 1), ("gpt_neox", 1), ("llama_yarn", 0)]:
        built = model(name)
        _, cached = built.run_with_cache(TOKENS, names_filter=f"blocks.{layer}.attn.hook_sin")
        sines = cached[f"blocks.{layer}.attn.hook_sin"][0, 1]
        found = rotary_frequencies(built, layer)
        assert found is not None
        scale = rotary_scale(built)
        torch.testing.assert_close(sines[: len(found)], scale * found.sin())
    for name in ("gptj", "codegen"):
        found = rotary_frequencies(model(name), 1)
        assert found is not None
        torch.testing.assert_close(found, 10_000.0 ** -torch.tensor([0, 0.5]))
    ours = own_model(positions="rotary", rotary_kept=0.5)
    assert isinstance(ours.positions, RotaryPositions)
    found = rotary_frequencies(ours, 0)
    assert found is not None
    torch.testing.assert_close(found.sin(), ours.positions.sin[1])
    assert rotary_frequencies(model("smollm3"), 1) is None
    assert rotary_frequencies(model("bloom"), 0) is None


def rotary_scale(built: Any) -> float:
    """The factor on rotated queries and keys: YaRN's 0.1 log(factor) + 1, else 1."""
    rope = built.original_model.config.rope_parameters
    return 0.1 * math.log(rope["factor"]) + 1 if rope.get("rope_type") == "yarn" else 1.0


def test_hooks_of_the_user_see_what_is_ablated() -> None:
    built: HookedTransformer = model("ours_rotary")
    with ablate_positions(built):
        _, cache_ = built.run_with_cache(TOKENS)
        assert (cache_["blocks.1.attn.hook_sin"] == 0).all()
        assert torch.equal(cache_["blocks.1.attn.hook_rot_q"], cache_["blocks.1.attn.hook_q"])
    assert int(TOKENS.max()) < D_VOCAB


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_numpys_seed_is_pythons(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    built = model(name)
    how = f"{layer_positions(built)[0].encoding}:shuffled"
    found = []
    for seed in (3, np.int64(3), 4):
        with ablate_positions(built, how, seed=seed):
            found.append(logits(built))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("how", "places", "message"),
    [
        (None, {}, "positions to ablate are None"),
        ("all", {"layers": 3}, "layers are 3"),
        ("all", {"heads": [True]}, r"heads are \[True\]"),
        ("all", {"layers": ["0"]}, "layers are"),
        ("rotary:shuffled", {"seed": None}, "seed is None: give a whole number from 0 to"),
        ("rotary:shuffled", {"seed": 1.5}, "seed is 1.5: give"),
        ("rotary:shuffled", {"seed": "x"}, "seed is 'x': give"),
        ("rotary:shuffled", {"seed": True}, "seed is True: give"),
        ("rotary:shuffled", {"seed": -1}, "seed is -1: give"),
        ("rotary:shuffled", {"seed": 2**64}, "seed is 18446744073709551616: give"),
    ],
)
def test_wrong_types_are_one_sentence(
    how: Any, places: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    with pytest.raises(UserError, match=message):
        ablate_positions(bridged_model("llama"), how, **places)
    with pytest.raises(UserError, match="a Linear has no hook points"):
        ablate_positions(torch.nn.Linear(2, 2), "all")
