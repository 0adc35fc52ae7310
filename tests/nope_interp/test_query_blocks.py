"""Attention in blocks of queries: the same as at once, in memory that grows with the length."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nope_interp import query_blocks, streams
from nope_interp.hooked_model import HookedModel, layers_without_attention
from nope_interp.interventions.attention_weights import (
    freeze_first_attention,
    mean_first_attention,
    without_position,
)
from nope_interp.interventions.intervene import intervene
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import sequence_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import ablate_positions
from tests.huggingface import FAMILIES, HYBRIDS, bridged_model

LENGTH, BLOCK = 29, 5
# Our models, which share names with families of transformers.
OURS = tuple(f"our {positions}" for positions in ("none", "learned", "rotary", "alibi", "t5"))


def model_of(name: str, n_ctx: int = 64) -> HookedModel:
    if name not in OURS:
        return bridged_model(name)
    config = TransformerConfig(2, 32, 4, d_vocab=50, n_ctx=n_ctx, init_scale=0.3)
    positions = name.removeprefix("our ")
    return HookedTransformer(dataclasses.replace(config, positions=positions)).eval()  # type: ignore[arg-type]


def heard(model: HookedModel, length: int, size: int | None) -> dict[str, list[Tensor]]:
    """Everything that is heard of one pass, its attention computed so many queries at a time."""
    tokens = torch.randint(4, 50, (2, length), generator=torch.Generator().manual_seed(0))
    found: dict[str, list[Tensor]] = {}
    layers = range(model.cfg.n_layers)
    read = [layer for layer in layers if layer not in layers_without_attention(model)]
    names = [f"blocks.{layer}.attn.hook_{of}" for layer in read for of in ("pattern", "q")]
    names += [f"blocks.{read[-1]}.hook_attn_out", f"blocks.{layers[-1]}.hook_resid_post"]
    listeners = {name: partial(keep, found.setdefault(name, [])) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "block_size", lambda *of: size)
        streams.stream(model, tokens, listeners, in_blocks=True)
    return found


def keep(pieces: list[Tensor], activations: Tensor) -> None:
    pieces.append(activations.clone())


def assert_blocks_see_the_same(model: HookedModel, length: int, size: int) -> None:
    """What is heard of blocks of queries is what is heard of all queries at once."""
    whole, some = heard(model, length, None), heard(model, length, size)
    for name, (expected,) in whole.items():
        if not name.endswith("pattern"):
            (found,) = some[name]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
            continue
        first = 0
        for block in some[name]:
            n, keys = block.shape[-2:]
            first += n
            assert n <= size
            seen = expected[..., first - n : first, first - keys : first]
            torch.testing.assert_close(block, seen, atol=1e-5, rtol=1e-4)
            # No weight rests on what the block leaves out.
            assert expected[..., first - n : first, : first - keys].sum() == 0
        assert first == length


@pytest.mark.parametrize(
    ("family", "how", "lift"),
    [
        *((family, None, False) for family in (*OURS, *FAMILIES, *HYBRIDS, "jamba")),
        *(("our rotary", "rotary:shuffled", False), ("llama", "rotary:shuffled", False)),
        *(("gptj", "rotary:constant", False), ("gemma3", "rotary", True)),
        *(("gpt_neo", "learned", False), ("mistral", "rotary", True), ("gpt2", "all", False)),
        *((family, "alibi", False) for family in ("our alibi", "bloom", "mpt")),
        *(("our t5", f"t5:{condition}", False) for condition in ("none", "mean")),
    ],
)
def test_blocks_of_queries_see_what_all_see_at_once(
    family: str, how: str | None, lift: bool
) -> None:
    model = model_of(family)
    if not query_blocks.comes_in_blocks(model):
        assert family in ("falcon_alibi", "t5", "olmo_hybrid")
        return
    change = nullcontext() if how is None else ablate_positions(model, how, lift_window=lift)
    with change:
        assert_blocks_see_the_same(model, LENGTH, BLOCK)


def test_layers_that_read_an_earlier_ones_keys_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gemma 4's smaller models: their own forward pass cuts the masks of these layers."""
    model = bridged_model("gemma4_shared")
    (whole,) = heard_at(model, "hook_resid_post", None)
    monkeypatch.setattr(query_blocks, "_CELLS", 1)
    (found,) = heard_at(model, "hook_resid_post", query_blocks.block_size(model, 2, LENGTH))
    torch.testing.assert_close(found, whole)


@pytest.mark.parametrize("positions", ["alibi", "t5"])
@pytest.mark.parametrize("causal", [True, False])
def test_biases_are_heard_in_the_blocks_that_they_come_in(
    positions: Literal["alibi", "t5"], causal: bool
) -> None:
    config = TransformerConfig(1, 32, 4, 50, n_ctx=64, positions=positions, causal=causal)
    model = HookedTransformer(config).eval()
    (whole,), blocks = (heard_at(model, "attn.hook_score_bias", size) for size in (None, BLOCK))
    first = 0
    for block in blocks:
        n, keys = block.shape[-2:]
        torch.testing.assert_close(block, whole[..., first : first + n, :keys])
        first += n
    assert first == LENGTH


@pytest.mark.parametrize("family", ["our alibi", "our t5"])
def test_attention_that_nobody_hears_is_the_same_in_blocks(family: str) -> None:
    (whole,), (some,) = (heard_at(model_of(family), "hook_resid_post", n) for n in (None, BLOCK))
    torch.testing.assert_close(some, whole, atol=1e-5, rtol=1e-4)


def heard_at(model: HookedModel, name: str, size: int | None) -> list[Tensor]:
    """What is heard in the last layer alone, its attention computed so many queries at a time."""
    found: list[Tensor] = []
    tokens = torch.randint(4, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    last = model.cfg.n_layers - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "block_size", lambda *of: size)
        listeners = {f"blocks.{last}.{name}": partial(keep, found)}
        streams.stream(model, tokens, listeners, in_blocks=True)
    return found


def whole_map(pattern: Tensor) -> Tensor:
    """Equal weights for all that a query sees: what only a map of all queries can be told."""
    seen = torch.ones(LENGTH, LENGTH).tril()
    return (seen / seen.sum(dim=1, keepdim=True)).expand_as(pattern)


def mean_over_positions(z: Tensor) -> Tensor:
    return z.mean(dim=1, keepdim=True).expand_as(z)


def first_frozen(model: HookedModel) -> AbstractContextManager[Any]:
    tokens = torch.randint(4, 50, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    return freeze_first_attention(model, without_position(mean_first_attention(model, tokens)))


def fifth_removed(z: Tensor, hook: object) -> Tensor:
    z = z.clone()
    z[:, 5] = 0
    return z


def users_hook(model: HookedModel) -> AbstractContextManager[Any]:
    return model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", fifth_removed)])


CHANGES: dict[str, Callable[[HookedModel], AbstractContextManager[Any]]] = {
    "patterns": partial(intervene, functions={"blocks.1.attn.hook_pattern": whole_map}),
    "what attention writes": partial(
        intervene, functions={"blocks.0.hook_attn_out": mean_over_positions}
    ),
    "outputs": partial(intervene, functions={"blocks.0.attn.hook_z": mean_over_positions}),
    "the first token": first_frozen,
    "heads": partial(ablate_positions, how="rotary", heads=[0, 1]),
    "a hook of the user's": users_hook,
}


@pytest.mark.parametrize(
    ("family", "change"),
    [
        *((family, change) for family in ("our rotary", "llama", "gemma3") for change in CHANGES),
        *((family, "heads") for family in ("gpt_neox", "phi3", "cohere")),
        *(("gpt2", change) for change in CHANGES if change != "heads"),
    ],
)
def test_what_is_changed_inside_attention_does_not_depend_on_blocks(
    family: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 at its usual width is read in blocks from 86 tokens on."""
    model = model_of(family)
    tokens = torch.randint(4, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with CHANGES[change](model):
        whole = sequence_losses(model, tokens)
    monkeypatch.setattr(query_blocks, "_CELLS", 1)
    assert query_blocks.block_size(model, *tokens.shape) == 16
    with CHANGES[change](model):
        found = sequence_losses(model, tokens)
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)
    intact = sequence_losses(model, tokens)
    assert (intact - whole).abs().max() > 1e-4
    # What was changed inside is undone: blocks are read as before.
    assert query_blocks.block_size(model, *tokens.shape) == 16


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@given(st.data())
@settings(max_examples=12)
def test_blocks_of_any_size_see_the_same_at_any_length_and_window(
    family: str, data: st.DataObject
) -> None:
    length = data.draw(st.integers(2, 40), "length")
    size = data.draw(st.integers(1, length), "queries in a block")
    changes = {"num_key_value_heads": data.draw(st.sampled_from([1, 2, 4]), "key heads")}
    if family == "gemma3":
        changes["sliding_window"] = data.draw(st.integers(1, length + 1), "window")
    assert_blocks_see_the_same(bridged_model(family, **changes), length, size)


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if isinstance(made, Tensor):
            self.cells = max(self.cells, made.untyped_storage().nbytes() // made.itemsize)
        return made


@pytest.mark.parametrize(
    "family", ["our rotary", "our alibi", "our t5", "llama", "gemma3", "gpt2", "bloom", "mpt"]
)
@pytest.mark.parametrize("site", ["attn.hook_pattern", "hook_resid_post"])
def test_nothing_that_is_made_grows_with_the_square_of_the_length(
    family: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No longer block than this would be allowed by the cells.
    monkeypatch.setattr(query_blocks, "_CELLS", 2**14)
    model, sizes = model_of(family, n_ctx=1024), []
    if family == "gpt2":
        weight = model.original_model.transformer.wpe.weight
        weight.data = weight.data.repeat(1024 // len(weight), 1)
    heads: list[int] = []
    for length in (512, 1024):
        tokens = torch.randint(4, 50, (1, length))
        with Largest() as largest:
            streams.stream(
                model,
                tokens,
                {f"blocks.1.{site}": lambda x: heads.append(x.shape[1])},
                in_blocks=True,
            )
        sizes.append(largest.cells)
    assert heads
    assert sizes[1] <= 2.1 * sizes[0]
    # One head's map of all queries and keys would have this many.
    assert sizes[1] < 1024**2
