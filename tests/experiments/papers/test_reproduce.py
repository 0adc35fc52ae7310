"""Papers held against measurements: the deciding tests, run folders, the listing, the page."""

import dataclasses
import html
import json
import math
import os
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from experiments.cli.tables import of_papers
from experiments.papers import listing as list_module
from experiments.papers import recorded as recorded_module
from experiments.papers import reproduce as run_module
from experiments.papers.barbero2024 import experiment as barbero2024
from experiments.papers.barbero2024 import previous_token
from experiments.papers.chi2023 import experiment as chi2023
from experiments.papers.chi2023 import probes as chi2023_probes
from experiments.papers.chi2023 import trained as chi2023_trained
from experiments.papers.config import ReproduceConfig
from experiments.papers.haviv2022 import experiment as haviv2022
from experiments.papers.kazemnejad2023 import counter
from experiments.papers.kazemnejad2023 import experiment as kazemnejad2023
from experiments.papers.keep import record
from experiments.papers.kim2025 import experiment as kim2025
from experiments.papers.kim2025 import trained as kim2025_trained
from experiments.papers.koutnik2014 import experiment as koutnik2014
from experiments.papers.koutnik2014 import waveforms
from experiments.papers.koutnik2014.clocks import SCALES, held_noise_decoding
from experiments.papers.koutnik2014.waveforms import LEARNING_RATES, make_network, matched_sizes
from experiments.papers.listing import RECORDED, listing
from experiments.papers.markdown import papers_pages
from experiments.papers.recorded import Recorded, kept_outcomes, recorded
from experiments.papers.registry import PAPERS, paper
from experiments.papers.reproduce import reproduce
from experiments.papers.result import NOT_RUN, Reproduction
from experiments.papers.zuo2025 import experiment as zuo2025
from experiments.results.claims import (
    AFTER,
    BEFORE,
    NOT_MEASURED,
    PILOTS,
    SETTING_LATER,
    Claim,
    Outcome,
    Verdict,
)
from experiments.results.findings import (
    Figure,
    Panel,
    Series,
    curve,
    exactly,
    largest_deviation,
    line,
    log_spaced,
    over_seeds,
    pack,
    slope,
    unpack,
)
from experiments.results.measured import Measured
from experiments.results.measurements import write_arrays
from experiments.runs.cells import Cells
from experiments.runs.folder import RunFolder
from experiments.sweeps.runs import load_run
from nope_interp.errors import UserError
from nope_interp.fields import LARGEST_SEED
from nope_interp.files import read_json, write_json
from nope_interp.models.clockwork import POWERS_OF_TWO, ClockworkConfig
from probes.bootstrap import few_sequences
from tests.experiments.cli.command import nope_interp
from tests.experiments.report.parsed_page import HOSTILE, IMAGE, Page
from tests.paths import ROOT

TINY: dict[str, dict[str, Any]] = {
    "chi2023": {"width": 0.07, "length": 0.07, "depth": 0.34, "training": 0.03},
    "haviv2022": {"width": 0.25, "length": 0.25, "depth": 0.5, "training": 0.004},
    # An interval over two seeds reaches six times their distance to either side: nothing is sure.
    "zuo2025": {"width": 0.5, "length": 0.5, "depth": 0.34, "n_seeds": 3},
    "kazemnejad2023": {"length": 0.25},
    "barbero2024": {"training": 0.003},
    "koutnik2014": {"width": 0.5, "training": 0.003},
    "kim2025": {"width": 0.25, "length": 0.3, "training": 0.004},
    "gelberg2025": {"width": 0.25, "length": 0.25, "depth": 0.25, "training": 0.005},
}
# Of each paper, what no option makes less of: what is read, drawn or tried.
LESS: dict[str, list[tuple[ModuleType, str, Any]]] = {
    "chi2023": [
        (chi2023_probes, "_HELD_OUT", 16),
        (chi2023_trained, "_SEQUENCES", 32),
        (chi2023_trained, "_PREDICTED", 4),
    ],
    "haviv2022": [(haviv2022, "_HELD_OUT", 1_600)],
    "zuo2025": [
        (zuo2025, "_SEQUENCES", 4),
        (zuo2025, "_LAW_SEQUENCES", 16),
        (zuo2025, "_PROBE_SEQUENCES", 8),
    ],
    "kazemnejad2023": [
        (counter, "_SPLITS", (("fit", 32), ("held_out", 16))),
        (counter, "LEAST_R2", -np.inf),  # too few tokens to read 1/m well
        (counter, "LEAST_R2_OF_M", -np.inf),
    ],
    "barbero2024": [
        (barbero2024, "_HELD_OUT", 64),
        (barbero2024, "_KEPT", (0.0, 0.75, 1.0)),
        (previous_token, "_HELD_OUT", 64),
    ],
    "koutnik2014": [
        (koutnik2014, "_CHANCE_DRAWS", 100),
        (koutnik2014, "_NOISE_DRAWS", 10),
        (koutnik2014, "LEARNING_RATES", LEARNING_RATES[:2]),
        (waveforms, "LEARNING_RATES", LEARNING_RATES[:2]),
    ],
    "kim2025": [
        (kim2025, "_DRAWS", 500),
        (kim2025, "_AT_ONCE", 250),
        (kim2025_trained, "N_SEQUENCES", 64),
    ],
    "gelberg2025": [],
}


def tiny(name: str) -> ReproduceConfig:
    return ReproduceConfig(name, **{"n_seeds": 2, **TINY[name]})


def tiny_run(name: str, out: Path) -> Reproduction:
    """The run of this config, which reads less than any option asks for."""
    with pytest.MonkeyPatch.context() as patch:
        for module, constant, value in LESS[name]:
            patch.setattr(module, constant, value)
        return reproduce(tiny(name), out=out)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs kept with the package have tests of their own."""
    for module in (run_module, list_module):
        monkeypatch.setattr(module, "recorded", lambda name: [])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each paper's tiny run is made once, by whoever asks for it first."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def copied(finished: Reproduction, tmp_path: Path) -> Reproduction:
    """The same in a folder of its own, to be damaged."""
    return Reproduction.load(shutil.copytree(finished.folder, tmp_path / finished.folder.name))


@pytest.fixture(scope="module")
def finished(runs: Path) -> Reproduction:
    return tiny_run("kazemnejad2023", runs)


# ---------------------------------------------------------------- claims and their tests


def test_papers_and_claims_have_names_of_their_own() -> None:
    for name, found in PAPERS.items():
        assert found.name == name
        assert len({claim.id for claim in found.claims}) == len(found.claims)
        for claim in found.claims:
            assert claim.low < claim.high
            assert math.isfinite(claim.low) or math.isfinite(claim.high), "a claim needs a test"
            assert claim.says
            assert claim.source
            assert claim.status


bounds = st.floats(-1e6, 1e6)


@given(bounds, bounds, bounds, bounds)
def test_a_claim_is_reproduced_where_the_whole_interval_is_within(
    a: float, b: float, c: float, d: float
) -> None:
    (low, high), (ci_low, ci_high) = sorted((a, b)), sorted((c, d))
    claim = Claim("x", "x", "x", "x", "x", BEFORE, low=low, high=high)
    inside = all(low < x < high for x in np.linspace(ci_low, ci_high, 7))
    assert (claim.verdict(ci_low, ci_low, ci_high) == "reproduced") == inside
    assert claim.verdict(math.nan, math.nan, math.nan) == "not testable here"
    optional = dataclasses.replace(claim, needs="--model")
    assert optional.verdict(math.nan, math.nan, math.nan) == "not measured"


def test_contradicted_is_told_from_uncertain() -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, high=1)
    outside, across = (
        Outcome(claim, Measured(3.0, 2.0, 4.0, 5)),
        Outcome(claim, Measured(1.0, 0.0, 2.0, 5)),
    )
    within = Outcome(claim, Measured(0.0, -1.0, 0.9, 5))
    verdicts = [str(one.verdict) for one in (outside, within, across, outside)]
    assert verdicts == ["contradicted", "reproduced", "uncertain", "contradicted"]


def test_what_a_run_sees_it_finds_four_times_in_five() -> None:
    """Normal numbers, the true one so far from a bound: the interval is beyond it in 80%."""
    n, rng = 400, np.random.default_rng(0)
    half = 1.96 / math.sqrt(n)
    claim = Claim("x", "x", "x", "x", "x", BEFORE, low=0.0)
    sees = Outcome(claim, Measured(0.0, -half, half, n)).visible
    means = rng.normal(sees, 1 / math.sqrt(n), 20_000)
    found = [claim.verdict(m, m - half, m + half) == "reproduced" for m in means]
    assert np.mean(found) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("bounds", "effect"),
    [
        ({"expected": 1.0, "low": 0.9, "high": 1.3}, 0.1),
        ({"expected": 1.0, "high": 1.03}, 0.03),
        ({"expected": 1.0, "high": 1.03, "matters": 0.2}, 0.2),
        ({"low": 0.0}, math.nan),
    ],
)
def test_what_matters_is_the_way_from_what_is_expected_to_its_bound(
    bounds: dict[str, float], effect: float
) -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, **bounds)
    assert claim.effect == pytest.approx(effect, nan_ok=True)


def test_too_small_a_sample_is_not_testable_and_the_one_needed_is_computed() -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, low=0, matters=0.1, over="tasks")
    wide = Outcome(claim, Measured(0.1, -0.4, 0.6, 5))
    assert (wide.verdict, wide.sees_enough) == ("not testable here", False)
    assert wide.by_bounds == "uncertain"
    [n] = re.findall(r"^(\d+) tasks in place of 5$", wide.size_needed)

    def of(n: int) -> Outcome:
        """Intervals shrink as the root of their number, and are drawn out by Student's t."""
        drawn_out = [few_sequences(0.025, units) for units in (n, 5)]
        half = 0.5 * math.sqrt(5 / n) * drawn_out[0] / drawn_out[1]
        return Outcome(claim, Measured(0.05, 0.05 - half, 0.05 + half, n))

    assert of(int(n)).visible <= 0.1 < of(int(n) - 1).visible
    assert (of(int(n)).verdict, of(int(n)).size_needed) == ("uncertain", "")
    # What lies outside all the same was seen.
    assert Outcome(claim, Measured(1.0, 0.5, 1.5, 5)).verdict == "reproduced"
    assert Outcome(claim, Measured(-1.0, -1.5, -0.5, 5)).verdict == "contradicted"
    unknown = dataclasses.replace(claim, matters=math.nan)
    assert Outcome(unknown, wide.found).verdict == "uncertain"


def test_the_fewest_units_do_not_say_how_many_are_needed() -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, low=0, matters=0.1, over="tasks")
    few = Outcome(claim, Measured(0.1, -0.4, 0.6, 4)).size_needed
    assert few == "more tasks than 4, which are too few to tell how many"


@pytest.mark.parametrize(
    ("bounds", "interval", "too_small"),
    [
        ({"low": 0.0, "matters": 0.1}, (0.01, 0.09), True),
        ({"low": 0.0, "matters": 0.1}, (0.01, 0.11), False),
        ({"low": 0.0, "matters": 0.1}, (-0.01, 0.09), False),  # uncertain
        ({"low": 0.0}, (0.01, 0.09), False),  # nobody said what matters
        ({"high": 1.0, "matters": 0.1}, (0.91, 0.99), True),
        ({"high": 1.0, "matters": 0.1}, (0.80, 0.99), False),
        # An expected value stands off its bound: to lie near it is to be reproduced.
        ({"low": 0.95, "expected": 1.0}, (0.96, 0.97), False),
        ({"low": -0.1, "high": 0.1, "matters": 0.2}, (0.0, 0.05), False),
    ],
)
def test_what_is_surely_too_small_to_matter_is_said_so(
    bounds: dict[str, float], interval: tuple[float, float], too_small: bool
) -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, **bounds)
    outcome = Outcome(claim, Measured(sum(interval) / 2, *interval, 50))
    assert outcome.too_small is too_small
    assert outcome.said.endswith("too little to matter") is too_small


def test_an_interval_that_is_open_lies_within_a_bound_that_is() -> None:
    below = Claim("x", "x", "x", "x", "x", BEFORE, high=1, matters=0.1)
    assert below.verdict(0.5, -math.inf, 0.9) == "reproduced"
    assert below.verdict(0.5, -math.inf, 1.1) == "uncertain"
    assert below.verdict(2.0, 1.5, math.inf) == "contradicted"
    endless = Outcome(below, Measured(0.5, -math.inf, 1.1, 5))
    assert (endless.verdict, endless.size_needed) == ("uncertain", "")
    for values in ([0.0, math.nan], [math.nan, 0.0]):
        assert math.isnan(exactly(values).value)


def test_a_claim_of_larger_models_is_not_tested() -> None:
    worded = Claim("x", "x", "x", "x", "x", BEFORE, high=1, size_needed="recordings")
    found = Measured(3.0, 2.0, 4.0, 5)
    assert Outcome(worded, found).verdict == "not testable here"
    given = dataclasses.replace(worded, needs="--model")
    assert Outcome(given, NOT_MEASURED).verdict == "not measured"


def test_a_smaller_run_has_a_word_of_its_own_in_place_of_reproduced() -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, high=1)
    within, across, beyond = (Measured(x, x - 0.5, x + 0.5, 5) for x in (0.0, 1.0, 2.0))
    words = [Outcome(claim, found, reduced=True).verdict for found in (within, across, beyond)]
    assert words == ["reproduced small", "uncertain", "contradicted small"]
    assert Outcome(claim, within).verdict == "reproduced"


def test_every_claim_says_when_its_bounds_were_set() -> None:
    for found in PAPERS.values():
        for claim in found.claims:
            assert claim.bounds_set in (BEFORE, PILOTS, SETTING_LATER, AFTER), claim.id


def test_bounds_that_differ_from_those_of_the_kept_run_are_called_late() -> None:
    for name, found in PAPERS.items():
        tests = {claim.id: claim.test for claim in found.claims if claim.bounds_set != AFTER}
        assert recorded(name)
        for run in recorded(name):
            assert run.tests.keys() == run.found.keys()
            then = {id: test for id, test in run.tests.items() if id in tests}
            assert then == {id: tests[id] for id in then}


def test_the_test_is_said_in_words() -> None:
    claim = Claim("x", "x", "x", "x", "x", BEFORE, low=0.5)
    assert claim.test == "reproduced where the 95% interval lies above 0.5"
    assert (
        dataclasses.replace(claim, high=1).test
        == "reproduced where the 95% interval lies from 0.5 to 1"
    )
    assert (
        dataclasses.replace(claim, low=-math.inf, high=1).test
        == "reproduced where the 95% interval lies below 1"
    )


def test_docs_are_written_from_the_registry() -> None:
    """`python -m experiments.papers.markdown docs` writes them again."""
    pages = papers_pages()
    written = {path: (ROOT / "docs" / path).read_text(encoding="utf-8") for path in pages}
    assert written == pages
    assert {f"papers/{path.name}" for path in (ROOT / "docs" / "papers").iterdir()} < pages.keys()


def test_docs_say_what_bounds_alone_come_to_where_a_run_is_too_small() -> None:
    """That a claim is of larger models was set after its number had been seen."""
    lines = "".join(papers_pages().values()).splitlines()
    said = [line for line in lines if line.startswith("- Came out: not t")]
    measured = [line for line in said if "[" in line]
    assert measured
    assert all("by its bounds alone" in line for line in measured)
    assert any("by its bounds alone contradicted" in line for line in measured)


# ---------------------------------------------------------------- configs


def test_a_config_comes_back_from_its_dictionary() -> None:
    config = ReproduceConfig("chi2023", width=2, seed=3)
    again = ReproduceConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert list(config.seeds) == list(range(3, 23))
    assert config.command() == "nope-interp reproduce chi2023 --seeds 20 --width 2 --seed 3"
    given = ReproduceConfig("chi2023", model="a/b", positions="none")
    assert given.command().endswith("--model a/b --positions none")
    assert ReproduceConfig.from_dict(given.to_dict()).positions == "none"
    assert "positions" not in config.to_dict()  # whose run folders keep their names
    assert config.scaled("width", 100, multiple_of=12) == 204
    assert config.scaled("length", 3, least=16) == 16


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "chi2032"}, "unknown paper 'chi2032': did you mean 'chi2023'"),
        ({"name": "chi2023", "n_seeds": 1}, "n_seeds is 1: give 2 to"),
        ({"name": "chi2023", "width": 0}, "width is 0: give a factor"),
        ({"name": "chi2023", "width": math.nan}, "width is nan"),
        ({"name": "koutnik2014", "depth": 2.0}, "koutnik2014 has no depth to multiply"),
        ({"name": "koutnik2014", "model": "a/b"}, "reads no model of yours: leave 'a/b' out"),
        ({"name": "chi2023", "seed": -1}, "seed is -1"),
        (
            {"name": "zuo2025", "seed": LARGEST_SEED - 1, "n_seeds": 2},
            f"seed is {LARGEST_SEED - 1}: for 2 seeds give at most {LARGEST_SEED - 2}",
        ),
        ({"name": "chi2023", "widht": 2}, "did you mean 'width'"),
    ],
)
def test_nonsense_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ReproduceConfig.from_dict(values)


def test_not_every_paper_goes_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="koutnik2014 runs on the CPU"):
        reproduce(tiny("koutnik2014"), out=tmp_path, device="cuda")


# ---------------------------------------------------------------- numbers over seeds


def test_over_seeds_is_the_mean_and_its_interval() -> None:
    values = np.random.default_rng(0).normal(3, 1, size=400)
    found = over_seeds(values)
    assert found.value == pytest.approx(values.mean())
    standard_error = values.std(ddof=1) / 20
    assert found.ci_high - found.ci_low == pytest.approx(2 * 1.96 * standard_error, rel=0.15)
    assert found.n == 400


def test_slope_and_deviation_of_a_power_law() -> None:
    m = log_spaced(512)
    assert m[0] == 1
    assert m[-1] == 512
    curves = np.stack([3 / m, 3 / m])
    np.testing.assert_allclose(slope(m, curves), -1)
    off = curves.copy()
    off[1, 4] *= 1.25
    np.testing.assert_allclose(largest_deviation(3 / m)(off), [0, 0.25], atol=1e-12)


def test_clocks_that_tell_any_scale_alike_are_at_chance() -> None:
    periods, scales = np.array(POWERS_OF_TWO), np.array(SCALES)
    r2 = np.random.default_rng(0).random((2, 400, len(periods), len(scales)))
    alike = np.zeros_like(r2[0])
    alike[..., -1] = 1  # all tell the longest scale best: an order of 0
    ordered = np.where(scales == 2 * periods[:, None], 1.0, 0.0)[None]
    # In one call, which draws its chance level once.
    trained = np.concatenate((r2[0], r2[0], ordered, ordered))
    random = np.concatenate((alike, r2[1], alike[:1], ordered))
    held = alike[:1]  # no more than the chance level
    found = koutnik2014._order_above_controls(periods, trained, random, held)
    above, both, (of_training, of_neither) = np.split(found, [400, 800])
    assert above.mean() == pytest.approx(0, abs=0.05)  # some two standard errors
    # Against random modules in place of untrained ones it is below: the larger control counts.
    assert (both <= above + 1e-12).all()
    assert of_training > 0.2
    # What training did not bring about does not count.
    assert of_neither == 0


def test_clocks_that_hold_what_they_never_learned_are_at_chance() -> None:
    """Fresh noise at every tick, read by least squares: the few ticks of slow clocks tell long
    scales best. Against the first two controls alone its order is 0.18 too high."""
    rng = np.random.default_rng(3)
    t, scales = np.arange(waveforms.LENGTH), np.array(SCALES)
    y = np.exp(2j * np.pi * t[:, None] / scales)
    y -= y.mean(axis=0)

    def told(period: int) -> np.ndarray:
        x = np.repeat(rng.normal(size=(len(t) // period + 1, 8)), period, axis=0)[: len(t)]
        q = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
        basis = q.U[:, q.S / q.S[0] > 1e-9]
        return (abs(basis.T @ y) ** 2).sum(axis=0) / (abs(y) ** 2).sum(axis=0)

    noise = np.stack([np.stack([told(period) for period in POWERS_OF_TWO]) for _ in range(200)])
    alike = np.zeros_like(noise)
    alike[..., -1] = 1
    held = held_noise_decoding(8, 100)
    periods = np.array(POWERS_OF_TWO)
    found = koutnik2014._order_above_controls(periods, noise, alike, held)
    assert found.mean() == pytest.approx(0, abs=0.07)  # three standard errors of both means
    # The largest of the three controls counts, which is here the chance level.
    weak = koutnik2014._order_above_controls(periods, noise, alike, alike)
    assert weak.mean() > 0.1
    # And what is ordered beyond noise is seen.
    ordered = np.where(scales == 2 * periods[:, None], 1.0, 0.0)[None]
    assert koutnik2014._order_above_controls(periods, ordered, alike[:1], held) > 0.15


def test_the_order_of_rates_is_spearmans_by_ranks() -> None:
    """Without ties, 1 - 6 sum of squared differences of ranks / (n³ - n)."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        told = rng.permutation(6)
        r2 = np.zeros((1, 6, len(SCALES)))
        r2[0, np.arange(6), told] = 1
        expected = 1 - 6 * ((told - np.arange(6)) ** 2).sum() / (6**3 - 6)
        found = koutnik2014._order(np.geomspace(1, 90, 6), r2)
        assert found[0] == pytest.approx(expected)


def test_the_clockwork_rnns_numbers_are_those_of_its_config() -> None:
    """What its `paper.toml` has as text and numbers is counted elsewhere."""
    found = paper("koutnik2014")
    sizes = re.findall(r"`--width ([\d.]+)` gives (\d+)", found.paper_sizes)
    sizes += re.findall(r"()\((\d+) parameters\)", found.default)
    sizes += re.findall(r"()have (\d+) parameters", found.claim("against-rnn").differs)
    assert len(sizes) == 6
    for width, n_parameters in sizes:
        config = ClockworkConfig(1, int(64 * float(width or 1)), 1)
        assert config.n_parameters == int(n_parameters)
    n_modules = len(POWERS_OF_TWO)
    assert found.claim("parameters").expected == koutnik2014.weights_share(n_modules)
    assert found.claim("work").expected == koutnik2014.work_share(n_modules)


def test_a_clockwork_rnn_saves_what_its_closed_forms_say() -> None:
    weights, work = koutnik2014._costs(32)
    np.testing.assert_allclose(weights, [1, 3 / 4, 5 / 8, 9 / 16])
    # Module i of g has 1/g of the rows, reads (g - i)/g and is active ceil(320 / 2^i) times.
    by_hand = [
        sum((g - i) / g**2 * math.ceil(320 / 2**i) / 320 for i in range(g)) for g in (1, 2, 4, 8)
    ]
    np.testing.assert_allclose(work, by_hand)
    for id, counted in (("parameters", weights[-1]), ("work", work[-1])):
        claim = paper("koutnik2014").claim(id)
        assert claim.verdict(counted, counted, counted) == "reproduced"
        assert claim.verdict(1.0, 1.0, 1.0) == "contradicted"  # a full RNN


def test_sizes_in_the_registry_are_those_that_run() -> None:
    found = paper("koutnik2014")
    for width in (1, *map(float, re.findall(r"--width ([\d.]+)", found.paper_sizes))):
        config = ReproduceConfig("koutnik2014", width=width)
        size = matched_sizes(config.scaled("width", 64, multiple_of=8, least=16))["clockwork"]
        count = sum(p.numel() for p in make_network("clockwork", size, seed=0).parameters())
        where = found.default if width == 1 else found.paper_sizes
        said = f"({count} parameters)" if width == 1 else f"`--width {width:g}` gives {count}"
        assert said in where


def test_figures_survive_the_run_folder() -> None:
    values = np.random.default_rng(1).normal(size=(5, 3))
    panel = Panel(
        "p",
        (curve("c", "measured", np.arange(3), values), line("l", "chance", np.array([0, 2]), 1.0)),
    )
    figure = Figure(
        "f", "t", "c", "x", "y", (panel,), claims=("a",), log="x", ticks=("i", "j", "k")
    )
    words, arrays = pack([figure])
    [again] = unpack(words, arrays)
    assert (again.id, again.claims, again.ticks) == ("f", ("a",), ("i", "j", "k"))
    [measured, level] = again.panels[0].series
    np.testing.assert_allclose(measured.y, values.mean(axis=0))
    assert level.low is None
    assert (measured.n, level.n) == (5, 0)
    assert (measured.low <= measured.y).all()
    with pytest.raises(UserError, match="figure 'f' are damaged"):
        unpack(words, {})


def test_cells_are_computed_once(tmp_path: Path) -> None:
    computed = []

    def compute(seed: int) -> dict[str, np.ndarray]:
        computed.append(seed)
        return {"x": np.array([seed, 2 * seed]), "single": np.array(seed)}

    kept: list[bool] = []

    def told(title: str, earlier: bool) -> None:
        kept.append(earlier)

    for _ in range(2):
        found = Cells(tmp_path, told).per_seed("a / b", range(3), compute)
        np.testing.assert_array_equal(found["x"], [[0, 0], [1, 2], [2, 4]])
    assert computed == [0, 1, 2]
    assert kept == [False] * 3 + [True] * 3
    next(tmp_path.glob("*seed 1*")).write_bytes(b"damaged")
    found = Cells(tmp_path, told).per_seed("a / b", range(3), compute)
    assert sorted(kept[6:]) == [False, True, True]
    np.testing.assert_array_equal(found["single"], [0, 1, 2])
    assert computed == [0, 1, 2, 1]


# ---------------------------------------------------------------- runs


def test_theorems_hold_and_what_was_not_run_is_said(finished: Reproduction) -> None:
    status = finished.claims.set_index("claim")["status"]
    # Of a trained model, at any size: what comes out is for `test_counter.py` to say.
    parts = ("scaled", "duplicated", "deleted", "head", "inverted")
    trained = {f"counter-{part}" for part in parts}
    assert not set(status[sorted(trained)]) & {"not measured", NOT_RUN}
    assert status.drop(sorted(trained)).to_dict() == {
        "theorem-1-inverse": "reproduced small",  # the run is
        "theorem-1": "reproduced small",
        "theorem-2": "reproduced small",
        "counter-head-tasks": "not measured",
        "counter-inverted-tasks": "not measured",
        "counter-given": "not measured",
        "counter-given-head": "not measured",
        "counter-given-inverted": "not measured",
        "length-generalisation": "not measured",
        "explicit-fail": "not measured",
        "like-t5": "not measured",
        "position-extrapolates": "not measured",
        "position-remains": "not measured",
        "dispersed": "not measured",
        "uniform-scale": "not measured",
        "head-scale": "not measured",
        "scratchpads": "not measured",
        "scratchpad-format": "not measured",
    }
    found = finished.claims.set_index("claim")
    ours = found["ours"]
    assert set(found.index[~ours]) == {
        *("theorem-1", "theorem-1-inverse", "theorem-2", "length-generalisation", "explicit-fail"),
        *("like-t5", "dispersed", "uniform-scale", "head-scale", "scratchpads"),
        "scratchpad-format",
    }
    counts = found["status"][ours].value_counts()
    words = get_args(Verdict)[1:]
    said = "".join(f", {counts[word]} {word}" for word in words if word in counts)
    assert finished.headline == (
        "0 of the paper's 11 claims reproduced, 3 reproduced small, 8 not measured; "
        f"0 of our own 12 reproduced{said}."
    )
    needs = "Not measured, needs --preset tiny, tiny-all, tiny-nope, small or paper: counter-head-"
    assert any(sentence.startswith(needs) for sentence in finished.sentences)


def test_a_page_names_what_the_kept_run_measured_too(finished: Reproduction) -> None:
    kept = {o.claim.id for o in kept_outcomes(paper("kazemnejad2023")) if o.found.n}
    more = kept - {outcome.claim.id for outcome in finished.outcomes if outcome.found.n}
    assert more
    assert finished.kept == (
        f"What is kept with the package has {len(more)} more of these claims. See them with "
        "nope-interp reproduce kazemnejad2023 --list."
    )
    assert html.escape(finished.kept) in finished.html()


def test_a_finished_run_is_read_and_not_computed_again(
    finished: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "import_module", None)
    again = reproduce(tiny("kazemnejad2023"), out=finished.folder.parent)
    assert again.folder == finished.folder
    assert isinstance(load_run(finished.folder), Reproduction)
    files = {path.name for path in finished.folder.iterdir()}
    assert files == {
        "config.json",
        "info.json",
        "measurements.parquet",
        "arrays.safetensors",
        "report.html",
        ".lock",
    }


def test_every_number_drawn_stands_in_the_table(finished: Reproduction) -> None:
    drawn = sum(len(s.x) for f in finished.figures for p in f.panels for s in p.series)
    claimed = finished.claims["value"].notna().sum()
    assert len(finished.measurements) == drawn + claimed
    # Over two draws of content, eight sequences each; nothing stands behind the theorem's line.
    counting = finished.measurements[finished.measurements["site"] == "counting"]
    assert set(counting.groupby("probe")["n"].unique().explode().items()) == {
        ("measured", 16),
        ("the theorem", 0),
    }


def test_one_unit_alone_has_no_interval() -> None:
    alone = curve("c", "measured", np.arange(3), np.array([[1.0, 2.0, 4.0]]))
    assert (alone.n, alone.low, alone.high) == (1, None, None)
    assert list(alone.y) == [1, 2, 4]


def test_the_listing_names_every_claim_and_the_newest_run(
    finished: Reproduction, tmp_path: Path
) -> None:
    table = listing(finished.folder.parent)
    assert list(zip(table["paper"], table["claim"], strict=True)) == [
        (found.name, claim.id) for found in PAPERS.values() for claim in found.claims
    ]
    run = table[table["paper"] == "kazemnejad2023"]
    assert set(run["run"]) == {str(finished.folder)}
    assert list(run["status"]) == list(finished.claims["status"])
    assert set(table[table["paper"] != "kazemnejad2023"]["status"]) == {NOT_RUN}
    assert set(listing(tmp_path / "absent")["status"]) == {NOT_RUN}


def test_a_run_kept_with_the_package_stands_where_there_is_none_of_yours(
    finished: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_module, "files", lambda package: tmp_path)
    (tmp_path / "kazemnejad2023").mkdir()
    record(finished.folder)
    (kept,) = recorded("kazemnejad2023")
    assert kept.config == finished.config
    assert [o.found for o in kept.outcomes if o.found.n] == [
        o.found for o in finished.outcomes if o.found.n
    ]
    assert [o.verdict for o in kept.outcomes] == [o.verdict for o in finished.outcomes]
    assert recorded("chi2023") == []
    # Kept once more, a number has the test that it was first judged by.
    file = tmp_path / "kazemnejad2023" / "recorded.json"
    (held,) = json.loads(file.read_text())
    held["tests"]["theorem-2"] = "another one"
    file.write_text(json.dumps([held]))
    record(finished.folder)
    (again,) = recorded("kazemnejad2023")
    assert again.tests == {**kept.tests, "theorem-2": "another one"}
    # What another run measured again stands in its place, and the rest stays; a run of the same
    # config is kept once.
    held["found"] = {id: number | {"value": 9.0} for id, number in held["found"].items()}
    held["found"]["dispersed"] = held["found"]["theorem-1"]
    held["config"]["n_seeds"], held["seconds"] = 3, 7200
    file.write_text(json.dumps([held]))
    for _ in range(2):
        record(finished.folder, beside=True)
    assert [run.config for run in recorded("kazemnejad2023")] == [
        finished.config,
        dataclasses.replace(finished.config, n_seeds=3),
    ]
    file.write_text(json.dumps([json.loads(file.read_text())[1], held]))
    record(finished.folder, beside=True)  # where it stands: the other one stays the last
    assert [run.config.n_seeds for run in recorded("kazemnejad2023")] == [3, 2]
    file.write_text(json.dumps([held, json.loads(file.read_text())[0]]))
    of_both = kept_outcomes(finished.paper)
    numbers = {o.claim.id: o.found.value for o in of_both if o.found.n}
    assert numbers == {o.claim.id: o.found.value for o in kept.outcomes if o.found.n} | {
        "dispersed": 9.0
    }
    # Each claim is listed with the time of the run that measured it.
    monkeypatch.setattr(list_module, "recorded", recorded)
    times = listing(tmp_path / "absent").set_index(["paper", "claim"])["cost"]["kazemnejad2023"]
    assert times["dispersed"] == "2.0 h"
    assert times["theorem-1"] != "2.0 h"
    record(finished.folder)
    alone = listing(tmp_path / "absent").set_index("paper")
    own = listing(finished.folder.parent).set_index("paper").loc["kazemnejad2023"]
    assert set(alone.loc["kazemnejad2023", "run"]) == {RECORDED}
    assert set(alone.loc["chi2023", "status"]) == {NOT_RUN}
    assert set(own["run"]) == {str(finished.folder)}
    columns = ["claim", "status", "sees", "size_needed", "bounds_set", "size"]
    pd.testing.assert_frame_equal(alone.loc["kazemnejad2023", columns], own[columns])


@pytest.mark.parametrize("name", [name for name in PAPERS if recorded(name)])
def test_what_is_kept_is_of_todays_claims(name: str) -> None:
    for kept in recorded(name):
        assert kept.config.name == name
        assert set(kept.found) <= {claim.id for claim in paper(name).claims}
        assert kept.config.model is None or Path(kept.config.model).name == kept.config.model
        for number in kept.found.values():
            assert number.ci_low <= number.value <= number.ci_high


def test_a_reduced_run_never_hides_a_whole_one(copied: Reproduction, tmp_path: Path) -> None:
    # The listing reads sizes, and no numbers: another run's stand for a larger one's.
    folder = shutil.copytree(copied.folder, tmp_path / "reproduce-kazemnejad2023-larger")
    info = json.loads(RunFolder(folder).info.read_text())
    info["config"] = ReproduceConfig("kazemnejad2023", length=0.5).to_dict()
    RunFolder(folder).info.write_text(json.dumps(info))
    whole = Reproduction.load(folder)
    assert not ReproduceConfig("kazemnejad2023").reduced
    assert whole.config.reduced
    os.utime(RunFolder(whole.folder).info, (0, 0))
    shown = listing(tmp_path).set_index(["paper", "claim"]).loc["kazemnejad2023"]
    assert set(shown["run"]) == {str(copied.folder)}
    # As if its config were what runs by default.
    info["config"]["length"] = 1.0
    RunFolder(whole.folder).info.write_text(json.dumps(info))
    os.utime(RunFolder(whole.folder).info, (0, 0))
    shown = listing(tmp_path).set_index(["paper", "claim"]).loc["kazemnejad2023"]
    assert set(shown["run"]) == {str(whole.folder)}
    assert set(shown["size"]) == {"--seeds 3"}


def test_words_that_are_no_figures_are_damage(copied: Reproduction) -> None:
    info = json.loads(RunFolder(copied.folder).info.read_text())
    info["figures"][0]["panels"] = 3
    RunFolder(copied.folder).info.write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"info\.json is damaged"):
        Reproduction.load(copied.folder).html()


def test_a_damaged_run_is_listed_as_none(copied: Reproduction, tmp_path: Path) -> None:
    assert set(listing(tmp_path)["status"]) != {NOT_RUN}
    info = RunFolder(copied.folder).info
    told = read_json(info)
    for seconds in ({"seconds": "x"}, {}):
        write_json(info, {k: v for k, v in told.items() if k != "seconds"} | seconds)
        assert set(listing(tmp_path)["status"]) == {NOT_RUN}
    write_json(info, told)
    RunFolder(copied.folder).measurements.write_bytes(b"damaged")
    assert set(listing(tmp_path)["status"]) == {NOT_RUN}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(PAPERS) - {"kazemnejad2023"}))
def test_every_paper_runs_and_shows_its_claims(name: str, runs: Path) -> None:
    found = tiny_run(name, runs)
    assert set(found.claims["claim"]) == {claim.id for claim in paper(name).claims}
    shown = {id for figure in found.figures for id in figure.claims}
    measured = found.claims[found.claims["value"].notna()]
    assert set(measured["claim"]) <= shown
    assert np.isfinite(measured[["value", "ci_low", "ci_high"]].to_numpy()).all()
    for figure in found.figures:
        for panel in figure.panels:
            for series in panel.series:
                assert len(series.x) == len(series.y) > 0
    Page((found.folder / "report.html").read_text()).assert_lets_only_its_own_scripts_run()


@pytest.mark.slow
def test_what_holds_at_any_size_is_reproduced_at_tiny_ones(runs: Path) -> None:
    """Exact statements, and controls that symmetry decides."""
    expected = {
        "barbero2024": ("diagonal", "previous-token", "top-frequency", "impossible"),
        "chi2023": ("bidirectional", "post-norm"),
        "zuo2025": ("first-layer",),
        "koutnik2014": ("parameters", "work", "rotary"),
        "kim2025": ("by-hand", "near"),
    }
    for name, ids in expected.items():
        status = tiny_run(name, runs).claims.set_index("claim")["status"]
        assert set(status[list(ids)]) == {"reproduced small"}, name


@pytest.mark.slow
def test_what_needs_no_training_is_read_in_more_models(runs: Path) -> None:
    found = tiny_run("gelberg2025", runs)
    n = found.claims.set_index("claim")["n"]
    assert n["gradient"] == 10
    # Hardly trained, models lose nothing where positions are dropped.
    left_out = ["recovers", "extends"]
    assert set(n.drop(["gradient", "needle", *left_out])) == {2}
    assert set(n[left_out]) == {0}
    assert any("recovers and extends are not measured" in note for note in found.info["notes"])


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chi2023_probes, "_errors", stopped)
        with pytest.raises(KeyboardInterrupt):
            tiny_run("chi2023", tmp_path)
    assert set(listing(tmp_path)["status"]) == {NOT_RUN}
    (spent,) = tmp_path.rglob("seconds.json")
    assert 0 < read_json(spent) < 1e6
    write_json(spent, 1e6)
    with monkeypatch.context() as patch:
        patch.setattr(chi2023, "_variances", stopped)
        resumed = tiny_run("chi2023", tmp_path)
    # Of all starts.
    assert 1e6 < resumed.info["seconds"] < 2e6
    whole = tiny_run("chi2023", runs)
    pd.testing.assert_frame_equal(resumed.measurements, whole.measurements)
    assert not RunFolder(resumed.folder).cells.exists()


@pytest.mark.parametrize(
    ("kept", "options"),
    [({}, "--seeds 3"), ({"training": 0.5, "model": "m.gguf"}, "--seeds 3 --training 0.5 --model")],
    ids=str,
)
def test_a_run_first_says_how_long_the_kept_one_took(
    kept: dict[str, Any],
    options: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    run = Recorded(ReproduceConfig("barbero2024", n_seeds=3, **kept), 700.0, {}, {})
    monkeypatch.setattr(run_module, "recorded", lambda name: [run])
    monkeypatch.setattr(kazemnejad2023, "_absolute", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(tiny("kazemnejad2023"), out=tmp_path)
    said = f"23 claims, 2 seeds; on our machine a run with {options} took 12 min."
    assert said in capsys.readouterr().err


def test_kept_parts_of_another_version_are_named(tmp_path: Path) -> None:
    """Arrays had other names there; what is missing in a run from scratch is our mistake."""
    config = tiny("kazemnejad2023")
    run = RunFolder.of(tmp_path, config).begin(config)
    for seed in config.seeds:
        write_arrays({"1/m": np.ones(3)}, run.cells / f"theorem 1, seed {seed}.safetensors")
    with pytest.raises(UserError, match=r"kept parts .*another version \('inverse' is missing\)"):
        reproduce(config, out=tmp_path)


# ---------------------------------------------------------------- the page


def test_the_page_holds_claims_and_curves(finished: Reproduction) -> None:
    text = finished.html()
    page = Page(text)
    page.assert_asks_nothing_of_the_network()
    page.assert_lets_only_its_own_scripts_run()
    assert "* plotly.js v" in page.libraries["plotly"]
    assert text.count('id="library-plotly"') == 1
    words = " ".join(" ".join(page.words).split())
    for claim in finished.paper.claims:
        assert claim.says in words
        assert claim.test in words
    assert [figure["id"] for figure in page.data["figures"]] == [f.id for f in finished.figures]
    series = page.data["figures"][0]["panels"][0]["series"][0]
    np.testing.assert_allclose(series["y"], 1 / np.arange(1, 17), rtol=1e-4)


def test_the_claims_are_drawn_for_a_paper(finished: Reproduction, tmp_path: Path) -> None:
    assert set(finished.pictures) == {"claims", *(figure.id for figure in finished.figures)}
    claims = finished.figure("claims")
    assert claims.save(tmp_path / "claims.pdf").read_bytes().startswith(b"%PDF")
    words = " ".join(ElementTree.parse(claims.save(tmp_path / "claims.svg")).getroot().itertext())
    for outcome in finished.outcomes:
        assert outcome.claim.id in words
        if outcome.verdict != "not measured":
            # What is exact has no interval.
            assert f"{outcome.found.value:.3g}{' [' if outcome.visible else ','}" in words


def test_hostile_strings_are_text(finished: Reproduction) -> None:
    info = finished.info | {"setting": HOSTILE, "notes": [IMAGE]}
    page = Page(dataclasses.replace(finished, info=info).html())
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert HOSTILE in " ".join(page.words)
    page.assert_lets_only_its_own_scripts_run()


def test_a_level_alone_has_a_scale(finished: Reproduction) -> None:
    """Where value, interval and bounds are one number, or none is finite, nothing divides by 0."""
    numbers = finished.measurements.copy()
    numbers.loc[numbers["probe"] == "claim", ["value", "ci_low", "ci_high"]] = 0.0
    assert "reproduced" in dataclasses.replace(finished, measurements=numbers).html()


# ---------------------------------------------------------------- the command


def test_a_paper_is_one_line_of_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its title as far as it fits, what came of its claims, and the run that says so."""
    monkeypatch.setattr(list_module, "recorded", recorded)
    for width in (80, 100, 250):
        lines = _printed(of_papers(listing(tmp_path)), width)
        assert len(lines) == len(PAPERS)
        assert all(len(line) <= width for line in lines)
        for told, found in zip(lines, PAPERS.values(), strict=True):
            own, title, *_ = re.split(r" {2,}", told)
            assert own == found.name
            assert title.endswith("…") or title == found.title
            assert found.title.startswith(title.removesuffix("…"))
    assert all(found.title in line for found, line in zip(PAPERS.values(), lines, strict=True))
    told = r"kazemnejad2023 .* 4 of 11 +5 of 12 \(-3\) +6\.0 h \(kept\)"
    assert re.search(told, lines[3])
    monkeypatch.setattr(list_module, "recorded", lambda name: [])
    first = _printed(of_papers(listing(tmp_path)), 100)[0]
    assert re.search(r"^chi2023 .* not run +not run +–$", first)


def _printed(table: Table, width: int) -> list[str]:
    """The rows of a table, without the line that names the columns and its rule."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return [line.strip() for line in captured.get().splitlines() if line.strip()][2:]


@pytest.mark.slow
def test_the_command_reproduces_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_module, "recorded", recorded)
    for module, constant, value in LESS["kazemnejad2023"]:
        monkeypatch.setattr(module, constant, value)
    sizes = ("kazemnejad2023", "--seeds", "2", "--length", "0.25")
    run = nope_interp("reproduce", *sizes, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert re.search(r"^ ?theorem-2 +reproduced small ", run.stdout, re.M)
    assert "report.html" in run.stdout
    listed = nope_interp("reproduce", "--list", cwd=tmp_path)
    # The kept runs measured more.
    assert re.search(r"^ kazemnejad2023 .* 4 of 11\* .* 6\.0 h \(kept\) *$", listed.stdout, re.M)
    monkeypatch.setattr(list_module, "recorded", lambda name: [])
    listed = nope_interp("reproduce", "--list", cwd=tmp_path)
    own = r"^ kazemnejad2023 .* 3 of 11\* .*\d of 12\*.* \d+ (s|min) *$"
    assert re.search(own, listed.stdout, re.M)
    monkeypatch.setenv("COLUMNS", "120")
    claims = nope_interp("reproduce", "kazemnejad2023", "--list", cwd=tmp_path)
    assert re.search(
        r"^ ?theorem-2 +reproduced small .*, no spread +0 / 1e-06 +after *$", claims.stdout, re.M
    )
    assert len(re.findall(r"^ ?[a-z0-9-]+ +not measured", claims.stdout, re.M)) == 15
    monkeypatch.setattr(list_module, "recorded", recorded)
    assert f"\nSizes by default: {paper('kazemnejad2023').default}.\n" in claims.stdout
    assert f"\ntheorem-2: {paper('kazemnejad2023').claim('theorem-2').says}\n" in claims.stdout
    late = re.findall(r"^ ?([a-z0-9-]+) .* (before|pilots|changed|after) *$", claims.stdout, re.M)
    assert {of for _, of in late} == {"before", "pilots", "changed", "after"}
    assert len(late) == len(paper("kazemnejad2023").claims)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = nope_interp("reproduce", "--list", cwd=tmp_path).stdout.splitlines()
    assert max(map(len, narrow[1:11])) == 80
    narrow = nope_interp("reproduce", "chi2023", "--list", cwd=tmp_path).stdout.splitlines()
    for claim in paper("chi2023").claims:
        row = next(line for line in narrow if line.split()[:1] == [claim.id])
        assert re.search(
            r" (reproduced( small)?|contradicted|not testable here|not measured) ", row
        ), row
        assert "…" not in row
        assert re.search(r" (before|pilots|changed|after) *$", row), row
    assert re.search(
        r"^Run of \d+ claims: --seeds 2 --length 0.25, \d+ (s|min), runs/", claims.stdout, re.M
    )
    claims = nope_interp("reproduce", "kazemnejad2023", "--list", cwd=tmp_path)
    kept = "--preset tiny-all --seeds 3 --model [a-z.]+, .*, kept with the package"
    assert re.search(rf"^Run of \d+ claims: {kept}$", claims.stdout, re.M)
    # Which this run was not asked for, and the kept one was.
    kept = r"^ ?counter-given +reproduced +0\.\d+ +0\.\d+ / .*\n.*\n.*, 384 *\n +sequences "
    assert re.search(kept, claims.stdout, re.M)
    for wrong, sentence in (
        (("reproduce",), "takes one paper's name, or --list"),
        (("reproduce", "kazemnejat"), "did you mean 'kazemnejad2023'"),
        (("reproduce", "chi2023", "--seeds", "1"), "--seeds is 1"),
    ):
        refused = nope_interp(*wrong, cwd=tmp_path)
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr


def test_series_are_drawn_in_their_kind() -> None:
    """The page's script knows every kind."""
    script = Path(run_module.__file__).parents[1] / "report" / "templates" / "findings.js"
    for kind in Series.__annotations__["kind"].__args__:
        assert f'"{kind}"' in script.read_text() or f"{kind}:" in script.read_text()
