"""Why a linear probe is, or is not, at chance in a random model (what the report says about it).

Position enters a random NoPE model through even moments. A linear map can only read it once some
constant shared by all tokens survives the averaging while the rest shrinks: the mean of a small
vocabulary, or the mean that an activation such as GELU gives to the MLP's output.
"""

import dataclasses
from functools import cache, partial

import pytest
import torch

from experiments.variants.config import default_transformer
from nope_interp.models.transformer import HookedTransformer
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from probes.nonlinear import TwoLayerProbe
from probes.regression import LinearProbe
from probes.scores import Score

VOCABULARY, POSITIONS = 256, torch.arange(1, 128)
PLACES = [(0, "attn_out"), (0, "resid_post"), (1, "attn_out"), (3, "attn_out")]


@cache
def read(attn_only: bool, centred: bool) -> dict[tuple[int, str], tuple[Score, Score]]:
    """The errors of the linear and the two-layer probe at each place of a random model."""
    config = dataclasses.replace(default_transformer(), d_vocab=VOCABULARY, attn_only=attn_only)
    model = HookedTransformer(config)
    if centred:
        with torch.no_grad():
            model.embed.weight.sub_(model.embed.weight.mean(0))
    generator = torch.Generator().manual_seed(5)
    fit = torch.randint(VOCABULARY, (384, 128), generator=generator)
    held_out = torch.randint(VOCABULARY, (192, 128), generator=generator)
    probes = {place: (LinearProbe(), TwoLayerProbe()) for place in PLACES}

    def feed(activations: torch.Tensor, place: tuple[int, str], stage: str) -> None:
        for probe in probes[place]:
            getattr(probe, stage)(activations[:, 1:], POSITIONS)

    for tokens, stage in ((fit, "update"), (held_out, "evaluate")):
        listeners = {hook_name(*place): partial(feed, place=place, stage=stage) for place in PLACES}
        stream(model, tokens, listeners)
    return {
        place: (
            linear.result()["linear"].score("mae"),
            two_layer.result()["two_layer"].score("mae"),
        )
        for place, (linear, two_layer) in probes.items()
    }


@pytest.mark.slow
def test_without_any_constant_only_nonlinear_probes_read_position() -> None:
    errors = read(attn_only=True, centred=True)
    for place, (linear, _) in errors.items():
        assert linear.ci_high > linear.chance, place  # at chance, or worse by overfitting
    two_layer = errors[0, "attn_out"][1]
    assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_first_attention_output_has_no_linear_code_whatever_comes_later() -> None:
    for centred in (True, False):
        linear, two_layer = read(attn_only=False, centred=centred)[0, "attn_out"]
        assert linear.ci_low < linear.chance < linear.ci_high
        assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_mlps_mean_wakes_the_linear_probe_and_a_small_vocabularys_mean_wakes_it_further() -> (
    None
):
    centred, plain = read(attn_only=False, centred=True), read(attn_only=False, centred=False)
    deep = (3, "attn_out")
    assert centred[deep][0].ci_high < centred[deep][0].chance
    assert plain[deep][0].ci_high < centred[deep][0].ci_low
