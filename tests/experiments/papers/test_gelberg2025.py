"""Small models whose positions are dropped: what is read of them is what it is called."""

import numpy as np
import pytest
import torch

from experiments.papers.gelberg2025.experiment import _left_out, _numbers, _shown
from experiments.papers.gelberg2025.models import (
    CONTROL,
    DROPPED,
    RECALIBRATED,
    TIMES,
    Sizes,
    bias_gradients,
    curve_steps,
    read_model,
)
from experiments.papers.recorded import recorded
from experiments.papers.registry import paper
from experiments.results.measured import Measured
from experiments.results.measurements import INTACT
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.pretrained.scaled import SCALINGS
from nope_interp.tasks.text import TextTask

SIZES = Sizes(n_layers=1, width=16, context=16, steps=4, again=2, n_windows=8, device="cpu")


@pytest.fixture(scope="module")
def found() -> dict[str, np.ndarray]:
    return read_model(SIZES, seed=0)


def test_every_variant_is_read_at_every_length(found: dict[str, np.ndarray]) -> None:
    variants = (INTACT, CONTROL, DROPPED, RECALIBRATED, *SCALINGS)
    assert {f"loss/{variant}" for variant in variants} | {"curve/NoPE", "curve/RoPE"} == set(found)
    assert all(found[f"loss/{variant}"].shape == (len(TIMES),) for variant in variants)
    assert found["curve/RoPE"].shape == curve_steps(SIZES).shape
    # The intact model is the one whose curve this is.
    assert found["loss/intact"][0] == pytest.approx(found["curve/RoPE"][-1], abs=1e-6)
    assert found["curve/RoPE"][-1] < found["curve/RoPE"][0]
    # Training goes on from where it stood, and scaling by 1 changes nothing.
    assert found[f"loss/{CONTROL}"][0] < found["loss/intact"][0]
    for scaling in SCALINGS:
        same = found[f"loss/{scaling}"] == found[f"loss/{CONTROL}"]
        assert same.tolist() == [True, False, False]
    assert found["loss/dropped"][0] != found["loss/intact"][0]


def test_the_same_seed_gives_the_same_bits(found: dict[str, np.ndarray]) -> None:
    torch.manual_seed(123)  # of nothing that is drawn here
    again = read_model(SIZES, seed=0)
    for name, values in found.items():
        np.testing.assert_array_equal(values, again[name])


def test_claims_are_differences_of_losses() -> None:
    losses = {INTACT: [1, 2, 4], CONTROL: [0.9, 2, 3], DROPPED: [3, 3, 3]}
    losses |= {RECALIBRATED: [1.2, 1.25, 1.3], SCALINGS[0]: [0.9, 2, 2]}
    losses |= {SCALINGS[1]: [0.9, 2, 1.7], SCALINGS[2]: [0.9, 2, 5]}
    found = {f"loss/{name}": np.array([of], dtype=float) for name, of in losses.items()}
    found |= {"curve/NoPE": np.array([[5, 2.5]]), "curve/RoPE": np.array([[5, 2.0]])}
    expected = {"converges": 0.5, "cost": 2, "recovers": 0.3, "rotary-fails": 3}
    expected |= {"extends": 0.1, "scaled": 0.4}
    assert {name: values.item() for name, values in _numbers(found).items()} == pytest.approx(
        expected
    )


# As a reviewer read them after one step of training and one of recalibration.
UNTRAINED = {
    "converges": Measured(6e-05, -0.0006, 0.0013, 3),
    "cost": Measured(4e-05, -0.0002, 0.0005, 3),
    "recovers": Measured(0.0001, -0.0003, 0.0006, 3),
    "extends": Measured(-0.007, -0.031, 0.007, 3),
}
LEARNED = {"converges": Measured(0.5, 0.4, 0.6, 3), "cost": Measured(2, 1, 3, 3)}


@pytest.mark.parametrize(
    ("learned", "shown"),
    [
        ((), False),
        (("converges",), False),
        (("cost",), False),
        (("converges", "cost"), True),
    ],
    ids=str,
)
def test_models_that_use_no_context_neither_recover_nor_extend(
    learned: tuple[str, ...], shown: bool
) -> None:
    """Both bounds are from above alone, and such models are within them."""
    of = paper("gelberg2025")
    for id in ("recovers", "extends"):
        assert of.claim(id).verdict(*tuple(vars(UNTRAINED[id]).values())[:3]) == "reproduced"
    claims = UNTRAINED | {id: LEARNED[id] for id in learned}
    kept = _shown(of, claims)
    assert kept == (claims if shown else {id: claims[id] for id in ("converges", "cost")})
    assert len([*_left_out(kept)]) == (not shown)


def test_the_kept_run_has_learned() -> None:
    for run in recorded("gelberg2025"):
        assert _shown(paper("gelberg2025"), run.found) == run.found


def test_the_gradient_is_that_of_attention_written_out() -> None:
    [norm] = bias_gradients(SIZES, "none", seed=0)
    config = TransformerConfig(1, 16, 4, d_vocab=257, n_ctx=16, positions="none", seed=0)
    model = HookedTransformer(config)
    text = TextTask().source().sequences(64, 16, begin_token=False, split="held_out", seed=0)
    order = torch.rand(text.shape, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    _, cache = model.run_with_cache(text.gather(1, order))
    x = cache["normalized", 0, "ln1"].detach()
    weight = model.blocks[0].attn.qkv.weight.detach().requires_grad_()
    total = torch.zeros(())
    for head in range(4):
        q, k = (x @ weight[16 * i + 4 * head : 16 * i + 4 * head + 4].T for i in (0, 1))
        scores = (q @ k.mT / 2).masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
        total = total + scores.softmax(dim=-1).diagonal(-1, 1, 2).mean() / 4
    (gradient,) = torch.autograd.grad(total, [weight])
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-4)
