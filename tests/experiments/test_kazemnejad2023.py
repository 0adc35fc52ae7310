"""Length generalisation: ranks against a count by hand, and a comparison small enough to run."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.reproduce import kazemnejad2023_lengths as lengths
from experiments.reproduce.config import ReproduceConfig
from experiments.reproduce.kazemnejad2023_lengths import ENCODINGS, PRESETS, reciprocal_ranks
from experiments.reproduce.run import reproduce
from nope_interp.errors import UserError

accuracies = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=5, max_size=5)


@given(accuracies)
def test_ranks_are_counted_and_ties_share_their_places(accuracy: list[float]) -> None:
    [found] = reciprocal_ranks(np.array([accuracy]))
    [listed] = reciprocal_ranks(np.array([accuracy]), ties_share=False)
    for i in range(5):
        better = sum(other > accuracy[i] for other in accuracy)
        tied = [j for j in range(5) if accuracy[j] == accuracy[i]]
        places = range(better + 1, better + len(tied) + 1)
        assert found[i] == pytest.approx(sum(1 / place for place in places) / len(tied))
        assert listed[i] == pytest.approx(1 / places[tied.index(i)])
    assert found.sum() == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)


def test_a_preset_that_is_unknown_or_not_the_papers_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'tiny'"):
        ReproduceConfig("kazemnejad2023", preset="tinny")
    with pytest.raises(UserError, match="chi2023 has no preset: leave 'tiny' out"):
        ReproduceConfig("chi2023", preset="tiny")


@pytest.mark.slow
def test_a_comparison_runs_and_leaves_out_what_did_not_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = dataclasses.replace(
        PRESETS["tiny"],
        tasks=("summation", "parity"),
        sizes=dataclasses.replace(
            PRESETS["tiny"].sizes,
            model={"n_layers": 1, "d_model": 16, "n_heads": 2, "rotary_fraction": 0.25},
        ),
        longest=3,
        n_per_length=20,
    )
    monkeypatch.setitem(PRESETS, "tiny", small)
    config = ReproduceConfig("kazemnejad2023", n_seeds=2, training=0.004, preset="tiny")
    unlearned = reproduce(config, out=tmp_path, show_progress=False)
    status = unlearned.claims.set_index("claim")["status"]
    assert status["length-generalisation"] == "not measured"
    assert status["theorem-1"] == "reproduced"
    note = next(note for note in unlearned.info["notes"] if "Not learned" in note)
    assert all(f"summation with {name}: 2 of 2 runs" in note for name in ENCODINGS)
    assert "0 of 4" in note
    assert "--preset tiny" in unlearned.info["command"]

    # With nothing asked of them they are ranked.
    monkeypatch.setattr(lengths, "LEARNED", 0.0)
    ranked = reproduce(config, out=tmp_path / "ranked", show_progress=False)
    figures = {figure.id: figure for figure in ranked.figures}
    assert figures["lengths"].shaded == (2, 3)
    curves = figures["lengths"].panels[0].series
    assert [series.name for series in curves] == list(ENCODINGS)
    assert all(list(series.x) == [2, 3, 4, 5, 6] for series in curves)
    chance, ranks = figures["ranking"].panels[0].series
    assert ranks.y.sum() == pytest.approx(chance.y.sum())
    claim = ranked.claims.set_index("claim").loc["length-generalisation"]
    assert claim["value"] == pytest.approx(ranks.y[0] - ranks.y[1:].max())
