"""What a result shows at a prompt is short, whatever it holds."""

from pathlib import Path

import torch

from experiments.codes.task import InterventionTask
from experiments.probing.measure import Reading
from experiments.probing.sites import Site
from experiments.probing.split import Split
from experiments.results.summary import summary
from experiments.sweeps.registry import experiment
from experiments.sweeps.sweep import Sweep, SweepCell
from nope_interp.constructions.planted import plant


def test_a_long_text_is_cut_to_ten_lines() -> None:
    facts = {"folder": "runs/" + 300 * "x", "measurements": "3 rows"}
    shown = summary("Comparison of m", facts, "It is readable. " * 10_000, (".measurements",))
    lines = shown.splitlines()
    assert len(lines) == 10
    assert lines[0] == "Comparison of m"
    assert lines[2] == "  measurements  3 rows"
    assert lines[-2].endswith("[...]")
    assert lines[-1] == "  Go on with .measurements."
    assert max(map(len, lines)) < 250


def test_a_short_text_stands_whole_and_none_leaves_no_line() -> None:
    told = summary("Sweep", {"folder": "runs"}, "Two of two are done.", (".failed()",))
    assert told.splitlines()[2] == "  Two of two are done."
    assert len(summary("Sweep", {"folder": "runs"}, "", (".failed()",)).splitlines()) == 3


def test_a_sweep_of_many_cells_counts_them(tmp_path: Path) -> None:
    cells = tuple(SweepCell(n, {"seed": n}, {}, tmp_path / str(n)) for n in range(1, 501))
    sweep = Sweep(tmp_path, experiment("compare"), cells)
    sweep.log(cells[0]).write_text("why it failed")
    shown = repr(sweep)
    assert shown.startswith("Sweep of compare, 500 cells\n")
    assert "1 failed, 499 queued" in shown
    assert len(shown.splitlines()) == 4


def test_what_holds_a_model_or_its_numbers_names_the_rest() -> None:
    planted = plant("variance")
    split = Split(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))
    task = InterventionTask(planted.model, split, planted.losses, torch.full((2,), planted.chance))
    reading = Reading([{"value": 1.0}] * 1000, {}, {Site(0, "resid_post"): []})
    assert repr(planted).startswith("Planted(kind='variance'")
    assert max(len(repr(shown)) for shown in (planted, task, reading)) < 400
