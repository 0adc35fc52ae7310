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
FIRST = (0, "attn_out")
PLACES = [FIRST, (0, "resid_post"), (1, "attn_out"), (3, "attn_out")]


@cache
def read(attn_only: bool, centred: bool) -> tuple[dict[tuple[int, str], Score], Score]:
    """The linear probe's errors at each place of a random model, the two-layer one's at the
    first."""
    config = dataclasses.replace(default_transformer(), d_vocab=VOCABULARY, attn_only=attn_only)
    model = HookedTransformer(config)
    if centred:
        with torch.no_grad():
            model.embed.weight.sub_(model.embed.weight.mean(0))
    generator = torch.Generator().manual_seed(5)
    fit = torch.randint(VOCABULARY, (384, 128), generator=generator)
    held_out = torch.randint(VOCABULARY, (192, 128), generator=generator)
    linear, two_layer = {place: LinearProbe() for place in PLACES}, TwoLayerProbe()

    def feed(activations: torch.Tensor, place: tuple[int, str], stage: str) -> None:
        for probe in (linear[place], *([two_layer] if place == FIRST else [])):
            getattr(probe, stage)(activations[:, 1:], POSITIONS)

    for tokens, stage in ((fit, "update"), (held_out, "evaluate")):
        listeners = {hook_name(*place): partial(feed, place=place, stage=stage) for place in PLACES}
        stream(model, tokens, listeners)
    errors = {place: probe.result()["linear"].score("mae") for place, probe in linear.items()}
    return errors, two_layer.result()["two_layer"].score("mae")


@pytest.mark.slow
def test_without_any_constant_only_nonlinear_probes_read_position() -> None:
    errors, two_layer = read(attn_only=True, centred=True)
    for place, linear in errors.items():
        assert linear.ci_high > linear.chance, place  # at chance, or worse by overfitting
    assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_first_attention_output_has_no_linear_code_whatever_comes_later() -> None:
    for centred in (True, False):
        errors, two_layer = read(attn_only=False, centred=centred)
        linear = errors[FIRST]
        assert linear.ci_low < linear.chance < linear.ci_high
        assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_mlps_mean_wakes_the_linear_probe_and_a_small_vocabularys_mean_wakes_it_further() -> (
    None
):
    centred, plain = (read(attn_only=False, centred=c)[0][3, "attn_out"] for c in (True, False))
    assert centred.ci_high < centred.chance
    assert plain.ci_high < centred.ci_low
