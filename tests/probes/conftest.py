"""What the probe tests share: feeding a probe, and the residuals of a random causal transformer."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional


@pytest.fixture(scope="session")
def feed() -> Callable:
    """feed(probe, fit, held_out, positions): the probe's results, fed in uneven batches."""

    def run(probe, fit: Tensor, held_out: Tensor, positions: Tensor):
        for batch in fit.split(13):
            probe.update(batch, positions)
        for batch in held_out.split(9):
            probe.evaluate(batch, positions)
        return probe.result()

    return run


@pytest.fixture(scope="session")
def random_residuals() -> Callable:
    """The residuals of a frozen random causal transformer without positional encodings.

    Pre-norm, weights N(0, 0.02^2), divided by sqrt(2 n_layers) where they write to the residual,
    tokens drawn uniformly and no begin token; `random_residuals(seed, n)` gives [n 128 d_model]
    after 4 layers.
    """
    d, heads, n_layers, vocabulary, scale = 128, 4, 4, 10_000, 0.02
    generator = torch.Generator().manual_seed(0)
    embed = torch.randn(vocabulary, d, generator=generator) * scale
    attention = torch.randn(n_layers, 4, d, d, generator=generator) * scale
    rise = torch.randn(n_layers, d, 4 * d, generator=generator) * scale
    fall = torch.randn(n_layers, 4 * d, d, generator=generator) * scale

    def run(seed: int, n: int) -> Tensor:
        tokens = torch.randint(vocabulary, (n, 128), generator=torch.Generator().manual_seed(seed))
        x = embed[tokens]
        for layer in range(n_layers):
            e = functional.layer_norm(x, (d,))
            q, k, v = (
                (e @ attention[layer, i]).unflatten(-1, (heads, -1)).transpose(1, 2)
                for i in range(3)
            )
            z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            written = z.transpose(1, 2).flatten(2) @ attention[layer, 3]
            x = x + written / (2 * n_layers) ** 0.5
            written = functional.gelu(functional.layer_norm(x, (d,)) @ rise[layer]) @ fall[layer]
            x = x + written / (2 * n_layers) ** 0.5
        return x

    return run
