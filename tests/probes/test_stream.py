"""What all streaming probes promise: order of calls, merging, and errors in a sentence."""

import copy
import pickle

import numpy as np
import pytest
import torch

from probes.errors import ProbeError
from probes.nonlinear import TwoLayerProbe
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.scores import SHUFFLED
from probes.similarity import SimilarityProbe
from probes.streaming import StreamingProbe
from probes.variance import VarianceProbe
from tests import typecheck

PROBES = [LinearProbe, TwoLayerProbe, VarianceProbe, SimilarityProbe, PositionalVectorProbe]
MERGEABLE = [probe for probe in PROBES if probe is not TwoLayerProbe]
POSITIONS = torch.arange(1, 9)

every_probe = pytest.mark.parametrize("make", PROBES, ids=lambda probe: probe.__name__)
mergeable_probe = pytest.mark.parametrize("make", MERGEABLE, ids=lambda probe: probe.__name__)


@pytest.fixture
def batch() -> torch.Tensor:
    x = torch.randn(24, 8, 6, generator=torch.Generator().manual_seed(0))
    x[..., 0] += POSITIONS / 3
    return x * (1 + 1 / POSITIONS[:, None])


def values(result) -> dict:
    return {(name, s.metric, s.control): s.value for name, r in result.items() for s in r.scores}


@every_probe
def test_every_score_has_a_control_a_chance_level_and_an_interval(make, batch, feed):
    assert isinstance(make(), StreamingProbe)
    for result in feed(make(), batch[:14], batch[14:], POSITIONS).values():
        metrics = [score.metric for score in result.scores if score.control == ""]
        controls = [score.metric for score in result.scores if score.control == SHUFFLED]
        assert sorted(metrics) == sorted(controls)
        assert len(set(metrics)) == len(metrics)
        for score in result.scores:
            assert score.ci_low < score.value < score.ci_high
            assert np.isfinite(score.chance)
            assert score.n == 10
        np.testing.assert_array_equal(result.arrays["positions"], POSITIONS)


@every_probe
def test_same_seed_same_bits_and_reading_a_result_changes_nothing(make, batch, feed):
    probe = make(seed=3)
    first = feed(probe, batch[:14], batch[14:], POSITIONS)
    again = feed(make(seed=3), batch[:14], batch[14:], POSITIONS)
    other = feed(make(seed=4), batch[:14], batch[14:], POSITIONS)
    for name, result in first.items():
        assert probe.result()[name].scores == result.scores == again[name].scores
        assert other[name].scores != result.scores


@every_probe
def test_numpys_seed_is_pythons(make, batch, feed, monkeypatch):
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    expected = feed(make(seed=3), batch[:14], batch[14:], POSITIONS)
    found = feed(make(seed=np.int64(3)), batch[:14], batch[14:], POSITIONS)
    assert [result.scores for result in found.values()] == [
        result.scores for result in expected.values()
    ]
    for wrong in (None, 1.5, "x", True, -1):
        with pytest.raises(ProbeError, match=f"seed is {wrong!r}: give a whole number"):
            make().for_shard(wrong, 0)


@every_probe
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_inside_a_hook(make, batch, feed, mode):
    expected = values(feed(make(), batch[:14], batch[14:], POSITIONS))
    with mode():
        assert values(feed(make(), batch[:14] * 1, batch[14:] * 1, POSITIONS)) == expected


@every_probe
def test_a_hook_may_be_in_inference_mode_now_and_then(make, batch, feed):
    expected = make()
    for part in batch[:14].split(7):
        expected.update(part, POSITIONS)
    expected.evaluate(batch[14:], POSITIONS)
    found, shard = make(), make().for_shard(1, 7)
    with torch.inference_mode():
        found.update(batch[:7] * 1, POSITIONS)
        shard.update(batch[7:14] * 1, POSITIONS)
    split = copy.deepcopy(found)
    found.update(batch[7:14], POSITIONS)
    found.evaluate(batch[14:], POSITIONS)
    assert values(found.result()) == values(expected.result())
    if isinstance(split, TwoLayerProbe):
        return  # it has no sums to add
    split.merge(shard)
    split.evaluate(batch[14:], POSITIONS)
    for name, result in split.result().items():
        for score, other in zip(result.scores, expected.result()[name].scores, strict=True):
            assert score.value == pytest.approx(other.value, rel=1e-4)


@every_probe
def test_it_leaves_the_global_random_state_and_the_activations_alone(make, batch, feed):
    copy = batch.clone()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    feed(make(), batch[:14], batch[14:], POSITIONS)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(batch, copy)


@every_probe
def test_half_precision_is_read_as_float32(make, batch, feed):
    half = batch.bfloat16()
    expected = values(feed(make(), half.float()[:14], half.float()[14:], POSITIONS))
    assert values(feed(make(), half[:14], half[14:], POSITIONS)) == expected


@every_probe
def test_memory_does_not_grow_with_the_data(make, batch):
    def size_after(n: int) -> int:
        probe = make(n_resamples=50)
        for _ in range(n):
            probe.update(batch[:12], POSITIONS)
        for _ in range(n):
            probe.evaluate(batch[12:], POSITIONS)
        return len(pickle.dumps(probe))

    # Four batches fill the sample of similarities. The variance probe's solved curve is drawn a
    # little finer with more data, because its bandwidth narrows.
    assert size_after(40) <= 1.5 * size_after(4)


@mergeable_probe
def test_merged_fits_are_the_fit_of_the_whole(make, batch):
    batch = batch.double()
    whole, merged = make(), make()
    for seed, start, end in ((1, 0, 5), (2, 5, 14)):
        whole.update(batch[start:end], POSITIONS)
        shard = make().for_shard(seed, start)
        shard.update(batch[start:end], POSITIONS)
        merged.merge(shard)
    whole.evaluate(batch[14:], POSITIONS)
    merged.evaluate(batch[14:], POSITIONS)
    assert merged.n_fitted == 14
    truth, ours = values(whole.result()), values(merged.result())
    for key, value in truth.items():
        # Equal up to the order of summation, and so is the control: its permutations are the same.
        assert ours[key] == pytest.approx(value, rel=1e-9, abs=1e-9), key


@every_probe
def test_held_out_shards_add_up_to_the_whole(make, batch):
    fitted = make(seed=0)
    fitted.update(batch[:14], POSITIONS)
    shards = [fitted.for_shard(seed, start) for seed, start in ((1, 0), (2, 5))]
    fitted.evaluate(batch[14:], POSITIONS)
    shards[0].evaluate(batch[14:19], POSITIONS)
    shards[1].evaluate(batch[19:], POSITIONS)
    shards[0].merge(shards[1])
    truth, ours = values(fitted.result()), values(shards[0].result())
    assert shards[0].n_held_out == 10
    for key, value in truth.items():
        if key[1] != "seriation_tau":
            # Equal up to the order of summation; the spectral order's ties are broken by seed.
            assert ours[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


@mergeable_probe
def test_merging_what_does_not_fit_together_is_refused(make, batch):
    def fitted(seed=0, rows=batch[:14], positions=POSITIONS):
        probe = make(seed=seed)
        probe.update(rows, positions)
        return probe

    def evaluated(probe):
        probe.evaluate(batch[14:], POSITIONS)
        return probe

    with pytest.raises(ProbeError, match="one that has not"):
        evaluated(fitted()).merge(fitted())
    with pytest.raises(ProbeError, match="d_model changed from 6 to 5"):
        fitted().merge(fitted(rows=batch[:14, :, :5]))
    with pytest.raises(ProbeError, match=r"from 8 positions 1\.\.8 to 7 positions 1\.\.7"):
        fitted().merge(fitted(rows=batch[:14, :7], positions=POSITIONS[:7]))
    with pytest.raises(ProbeError, match="two different fits"):
        evaluated(fitted()).merge(evaluated(fitted(rows=batch[4:18], seed=1)))
    with pytest.raises(ProbeError, match=r"for_shard\(\) came after evaluate"):
        evaluated(fitted()).for_shard(1, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LinearProbe(alpha=1.0), LinearProbe(alpha=1e4)),
        (SimilarityProbe(n_sequences=8), SimilarityProbe(n_sequences=16)),
        (SimilarityProbe(), SimilarityProbe(alpha=2.0)),
        (VarianceProbe(), VarianceProbe(n_resamples=10)),
        (LinearProbe(), PositionalVectorProbe()),
    ],
)
def test_probes_of_different_settings_are_not_merged(one, other, batch):
    one.update(batch[:7], POSITIONS)
    other.update(batch[7:14], POSITIONS)
    with pytest.raises(ProbeError, match="different settings"):
        one.merge(other)


@every_probe
def test_positions_are_read_as_whole_numbers_whatever_holds_them(make, batch, feed):
    expected = values(feed(make(), batch[:14], batch[14:], POSITIONS))
    for dtype in (torch.uint8, torch.int16):
        found = values(feed(make(), batch[:14], batch[14:], POSITIONS.to(dtype)))
        assert found == expected
    with pytest.raises(ProbeError, match="strictly increasing"):
        make().update(batch[:, :2], torch.tensor([5, 3], dtype=torch.uint8))


@every_probe
def test_positions_that_change_in_place_have_changed(make, batch):
    probe, positions = make(), POSITIONS.clone()
    probe.update(batch[:14], positions)
    positions += 8
    with pytest.raises(ProbeError, match=r"positions changed between batches, from .* 1\.\.8"):
        probe.evaluate(batch[14:], positions)


@every_probe
def test_a_probe_is_not_merged_with_itself(make, batch):
    probe, alone = make(), make()
    for add, part in (("update", batch[:14]), ("evaluate", batch[14:])):
        getattr(alone, add)(part, POSITIONS)
        getattr(probe, add)(part, POSITIONS)
        with pytest.raises(ProbeError, match="cannot merge a probe with itself"):
            probe.merge(probe)
    assert (probe.n_fitted, probe.n_held_out) == (14, 10)
    assert values(probe.result()) == values(alone.result())


def test_two_layer_fits_cannot_be_merged(batch):
    probes = [TwoLayerProbe(seed=seed) for seed in (0, 1)]
    for probe in probes:
        probe.update(batch, POSITIONS)
    with pytest.raises(ProbeError, match="gradient descent leaves no sums"):
        probes[0].merge(probes[1])


@every_probe
def test_merging_an_empty_probe_changes_nothing(make, batch, feed):
    probe = make()
    probe.merge(make())
    first = feed(probe, batch[:14], batch[14:], POSITIONS)
    assert values(first) == values(feed(make(), batch[:14], batch[14:], POSITIONS))


@every_probe
@pytest.mark.parametrize(
    ("spoil", "positions", "message"),
    [
        (lambda x: x[0], POSITIONS, r"shape \(8, 6\); expected \(batch, pos, d_model\)"),
        (lambda x: x[:0], POSITIONS, r"shape \(0, 8, 6\): the batch axis is empty"),
        (lambda x: x[..., :0], POSITIONS, "the d_model axis is empty"),
        (lambda x: x.long(), POSITIONS, "torch.int64; expected floating point"),
        (lambda x: x, POSITIONS[1:], r"positions have shape \(7,\); expected \(8,\)"),
        (lambda x: x, POSITIONS[None], r"positions have shape \(1, 8\); expected \(8,\)"),
        (lambda x: x, POSITIONS.float(), "positions are torch.float32; expected whole numbers"),
        (lambda x: x, POSITIONS.flip(0), r"strictly increasing; got \[8, 7, 6"),
        (lambda x: x, POSITIONS - 3, r"from 0 upwards.*got \[-2, -1"),
        (lambda x: x.where(x != x[3, 2, 1], torch.nan), POSITIONS, "NaN or infinite"),
        (lambda x: x.where(x != x[3, 2, 1], torch.inf), POSITIONS, "NaN or infinite"),
    ],
    ids=[
        "one sequence",
        "no sequence",
        "no component",
        "integers",
        "a position short",
        "positions by sequence",
        "fractional positions",
        "falling positions",
        "negative positions",
        "NaN",
        "infinity",
    ],
)
def test_bad_activations_are_named(make, batch, spoil, positions, message):
    probe = make()
    with pytest.raises(ProbeError, match=message):
        probe.update(spoil(batch), positions)


@every_probe
def test_arrays_are_refused_with_the_way_to_a_tensor(make, batch, monkeypatch):
    # As for a user, whose types nothing checks.
    monkeypatch.setattr(typecheck, "ON", False)
    with pytest.raises(ProbeError, match=r"activations are a ndarray.*torch\.from_numpy"):
        make().update(batch.numpy(), POSITIONS)
    with pytest.raises(ProbeError, match="positions are a list"):
        make().update(batch, POSITIONS.tolist())


@every_probe
def test_an_unknown_score_is_answered_with_the_known_ones(make, batch, feed):
    result = next(iter(feed(make(), batch[:14], batch[14:], POSITIONS).values()))
    known = result.scores[0].metric
    with pytest.raises(ProbeError, match=rf"no score \('maee', ''\).*'{known}'"):
        result.score("maee")


@every_probe
def test_nan_in_held_out_activations_is_named(make, batch):
    probe = make()
    probe.update(batch[:14], POSITIONS)
    with pytest.raises(ProbeError, match="NaN or infinite"):
        probe.evaluate(batch[14:].where(batch[14:] != batch[15, 2, 1], torch.nan), POSITIONS)


@every_probe
def test_sizes_and_positions_must_stay(make, batch):
    probe = make()
    probe.update(batch, POSITIONS)
    with pytest.raises(ProbeError, match="d_model changed from 6 to 5 between batches"):
        probe.update(batch[..., :5], POSITIONS)
    with pytest.raises(ProbeError, match="positions changed between batches"):
        probe.update(batch[:, :5], POSITIONS[:5])
    with pytest.raises(ProbeError, match="positions changed between batches"):
        probe.evaluate(batch, POSITIONS + 1)


@every_probe
def test_calls_out_of_order_say_what_is_missing(make, batch):
    probe = make()
    with pytest.raises(ProbeError, match="fitted on 0 sequences"):
        probe.evaluate(batch, POSITIONS)
    probe.update(batch[:1], POSITIONS)
    with pytest.raises(ProbeError, match="fitted on 1 sequences"):
        probe.evaluate(batch, POSITIONS)
    probe.update(batch[1:], POSITIONS)
    with pytest.raises(ProbeError, match="0 held-out sequences"):
        probe.result()
    probe.evaluate(batch[:1], POSITIONS)
    with pytest.raises(ProbeError, match="1 held-out sequences"):
        probe.result()
    with pytest.raises(ProbeError, match=r"update\(\) came after evaluate\(\)"):
        probe.update(batch, POSITIONS)
