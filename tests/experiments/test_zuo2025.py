"""The trained part of zuo2025, on models small enough to train here."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.reproduce import zuo2025_trained
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.run import reproduce
from experiments.reproduce.zuo2025_trained import PRESETS


@pytest.mark.slow
def test_trained_models_are_read_and_those_that_learned_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(PRESETS["tiny"], model={"n_layers": 2, "d_model": 16, "n_heads": 2})
    monkeypatch.setitem(PRESETS, "tiny", small)
    monkeypatch.setattr(
        zuo2025_trained, "TASKS", {"ordering": range(2, 6), "indexing": range(2, 6)}
    )
    sizes = {"width": 0.25, "length": 0.25, "depth": 0.34, "training": 0.004}
    config = ReproduceConfig("zuo2025", n_seeds=2, preset="tiny", **sizes)
    unlearned = reproduce(config, out=tmp_path, show_progress=False)
    status = unlearned.claims.set_index("claim")["status"]
    assert status["trained"] == "not measured"
    assert any("ordering: 2 of 2 models" in note for note in unlearned.info["notes"])

    monkeypatch.setattr(zuo2025_trained, "LEARNED", 0.0)
    found = reproduce(config, out=tmp_path / "all", show_progress=False)
    lowest = []
    for panel in next(f for f in found.figures if f.id == "trained").panels:
        chance, trained, untrained, unmasked = panel.series
        assert set(chance.y) == {0.5}
        # Ten steps of training move the scores, but not far.
        assert not np.array_equal(trained.y, untrained.y)
        np.testing.assert_allclose(trained.y, untrained.y, atol=0.2)
        assert not np.array_equal(unmasked.y, trained.y)
        lowest.append(trained.y.min())
    value = found.claims.set_index("claim").loc["trained", "value"]
    assert any(value == pytest.approx(low) for low in lowest)
