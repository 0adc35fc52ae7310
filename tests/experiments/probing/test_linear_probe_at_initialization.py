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

VOCABULARY, LENGTH = 256, 128
POSITIONS = torch.arange(1, LENGTH)
FIRST = (0, "attn_out")
LATER = (3, "attn_out")


def fed(
    probes: dict[tuple[int, str], LinearProbe] | dict[tuple[int, str], TwoLayerProbe],
    attn_only: bool,
    centred: bool,
) -> None:
    """Each probe reads its place of a random model: sequences to fit on, then others."""
    config = dataclasses.replace(default_transformer(), d_vocab=VOCABULARY, attn_only=attn_only)
    model = HookedTransformer(config)
    if centred:
        with torch.no_grad():
            model.embed.weight.sub_(model.embed.weight.mean(0))
    generator = torch.Generator().manual_seed(5)
    fit = torch.randint(VOCABULARY, (384, LENGTH), generator=generator)
    held_out = torch.randint(VOCABULARY, (192, LENGTH), generator=generator)

    def feed(activations: torch.Tensor, place: tuple[int, str], stage: str) -> None:
        getattr(probes[place], stage)(activations[:, 1:], POSITIONS)

    for tokens, stage in ((fit, "update"), (held_out, "evaluate")):
        listeners = {hook_name(*place): partial(feed, place=place, stage=stage) for place in probes}
        stream(model, tokens, listeners, until=list(listeners)[-1])


@cache
def linear_errors(attn_only: bool, centred: bool) -> dict[tuple[int, str], Score]:
    """The linear probe's errors at places of a random model, at more of them without MLPs."""
    between = [(0, "resid_post"), (1, "attn_out")] if attn_only else []
    probes = {place: LinearProbe() for place in (FIRST, *between, LATER)}
    fed(probes, attn_only, centred)
    return {place: probe.result()["linear"].score("mae") for place, probe in probes.items()}


@cache
def two_layer_error(centred: bool) -> Score:
    """The two-layer probe's error at the first attention, which stands before any MLP: it writes
    the same with and without them."""
    probe = TwoLayerProbe()
    fed({FIRST: probe}, False, centred)
    return probe.result()["two_layer"].score("mae")


@pytest.mark.slow
def test_without_any_constant_only_nonlinear_probes_read_position() -> None:
    errors, two_layer = linear_errors(attn_only=True, centred=True), two_layer_error(True)
    for place, linear in errors.items():
        assert linear.ci_high > linear.chance, place  # at chance, or worse by overfitting
    assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_first_attention_output_has_no_linear_code_whatever_comes_later() -> None:
    for centred in (True, False):
        linear = linear_errors(attn_only=False, centred=centred)[FIRST]
        two_layer = two_layer_error(centred)
        assert linear.ci_low < linear.chance < linear.ci_high
        assert two_layer.ci_high < 0.7 * two_layer.chance


@pytest.mark.slow
def test_the_mlps_mean_wakes_the_linear_probe_and_a_small_vocabularys_mean_wakes_it_further() -> (
    None
):
    centred, plain = (linear_errors(attn_only=False, centred=c)[LATER] for c in (True, False))
    assert centred.ci_high < centred.chance
    assert plain.ci_high < centred.ci_low
