"""What the first attention writes, which sees the order of earlier tokens by positions only."""

from typing import Any

import torch
from torch import Tensor

from nope_interp.streams import stream


def first_attention(built: Any, tokens: Tensor) -> Tensor:
    """What the first layer's attention writes at the last position."""
    kept: list[Tensor] = []
    stream(built, tokens, {"blocks.0.hook_attn_out": lambda x: kept.append(x[:, -1].clone())})
    return kept[0]


def shuffled_past(tokens: Tensor, seed: int = 0) -> Tensor:
    """The same tokens, the last one in its place and the earlier ones in another order."""
    order = torch.randperm(tokens.shape[1] - 1, generator=torch.Generator().manual_seed(seed))
    return torch.cat((tokens[:, :-1][:, order], tokens[:, -1:]), dim=1)


def assert_same(found: Tensor, expected: Tensor) -> None:
    # float32 rounding over two layers that add in another order, relative to the largest entry.
    torch.testing.assert_close(
        found, expected, atol=2e-5 * float(expected.abs().max()), rtol=0, check_dtype=False
    )


def differ(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() > 1e-3 * expected.abs().max())
