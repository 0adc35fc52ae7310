"""Methods judged by models whose truth is known: small ones, one seed."""

import copy
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.benchmark import judge as module
from experiments.benchmark.das import das
from experiments.benchmark.erasure import erasure, leace
from experiments.benchmark.interchange import interchange
from experiments.benchmark.judge import judge_methods
from experiments.benchmark.methods import METHODS, ON_TEXT, of_yours
from experiments.benchmark.on_text import interchange_on_text, task_on_text
from experiments.benchmark.probing import probing
from experiments.benchmark.result import Benchmark
from experiments.benchmark.task import context, site_of, task_of
from experiments.codes.counterfactual import Counterfactual
from experiments.codes.in_depth import Place, statistics_at, stream_sites
from experiments.codes.interchange import interchange_rows
from experiments.codes.text_moves import TextMoves
from experiments.probing.sites import Site
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.interchange import NET, THIS_ORDER, followed
from experiments.results.measurements import table
from experiments.runs.workers import HERE
from experiments.sweeps.runs import load_run
from nope_interp.constructions.planted import (
    N_CTX,
    Planted,
    PlantedLanguage,
    plant,
    plant_language,
)
from nope_interp.errors import UserError
from nope_interp.fields import LARGEST_SEED
from nope_interp.sites import ATTENTION_INPUT
from nope_interp.tasks.sources import TextSource
from probes.code_names import CODES, SIMILARITY
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.report.parsed_page import Page
from tests.paths import ROOT

KINDS = ("few dimensions", "one after the other")
SITE = Site(0, "resid_post")


def of_the_truth(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """A method that knows, of two codes and single sites alone."""
    if place is None:
        return {}
    there = planted.sites[place.name]
    return {code: there[code] for code in ("smooth trend", "irregular part")}


WORD = "used"


def by_a_global_word(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """A method whose word stands elsewhere, and is read within a comprehension."""
    return {code: WORD.lower() for code in ("smooth trend",)}


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """All is judged in this process, which knows the methods of these tests."""
    patch.setattr(module, "one_thread_each", lambda: HERE)
    patch.setitem(METHODS, "truth", of_the_truth)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    config = {"seeds": 2, "kinds": KINDS, "methods": ["probing", "truth"]}
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        patch.setattr("experiments.benchmark.task.N_FIT", 60)
        return judge_methods(**config, out=tmp_path_factory.mktemp("run"), show_progress=False)


def test_a_method_of_ones_own_is_judged_beside_the_others(found: Benchmark) -> None:
    methods = found.methods.set_index(["method", "place"])
    # One kind has one site, the other two.
    row = methods.loc["truth", "single sites"]
    assert (row["right"], row["n"], row["codes"]) == (1, 6, "smooth trend, irregular part")
    assert ("truth", "whole stream") not in methods.index
    assert methods.loc[("probing", "whole stream"), "n"] == 4
    truths = found.measurements[found.measurements["layer"] == 0]
    of_first = truths[(truths["model"] == KINDS[1]) & (truths["site"] == "resid_pre")]
    assert set(of_first[of_first["metric"] == "smooth trend"]["variant"]) == {"not used"}


def test_a_finished_run_is_read_back_and_drawn(found: Benchmark) -> None:
    loaded = load_run(found.folder)
    assert isinstance(loaded, Benchmark)
    pd.testing.assert_frame_equal(loaded.methods, found.methods)
    page = Page((found.folder / "report.html").read_text(encoding="utf-8"))
    text = " ".join(" ".join(page.words).split())
    right = found.methods.set_index("method").loc["truth", "right_low"]
    assert f"100% [{right:.0%}, 100%]" in text
    assert "probing" in text
    assert found.headline in text
    titles = {column["name"]: column["title"] for column in page.data["table"]["columns"]}
    assert (titles["variant"], titles["control"], titles["value"]) == ("truth", "word", "value")
    assert "2 kinds of planted models, 2 of each" in repr(found)


def test_a_killed_run_goes_on_with_the_models_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def dies(kind: str, seed: int) -> Planted:
        made.append(seed)
        if seed == 2 and made.count(2) == 1:
            raise KeyboardInterrupt
        return plant(kind, seed)

    monkeypatch.setattr(module, "plant", dies)
    monkeypatch.setitem(METHODS, "mine", lambda planted, place, seed: {"smooth trend": "not used"})
    config = {"seeds": 3, "kinds": KINDS[:1], "methods": ["mine"], "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        judge_methods(**config, show_progress=False)
    assert made == [0, 1, 2]
    found = judge_methods(**config, show_progress=False)
    # The third model alone; the first two were kept.
    assert made == [0, 1, 2, 2]
    assert found.methods["n"].to_list() == [3, 3]


def test_a_method_that_fails_says_on_what_also_in_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
        return {"smooth trend": {None: "used"}[place]} if seed == 1 else {"variance": "used"}

    monkeypatch.setitem(METHODS, "mine", lacks)
    for n_kept in (0, 1):
        assert len([*tmp_path.rglob("cells/*.safetensors")]) == n_kept
        told = r"'mine' fails on 'counting', seed 1, at layer 0, resid_post \(KeyError\(Site"
        with pytest.raises(UserError, match=told) as caught:
            judge_methods(
                seeds=2, kinds=["counting"], methods=["mine"], out=tmp_path, show_progress=False
            )
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_method_that_fails_on_text_says_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(planted: PlantedLanguage, seed: int) -> dict[str, str]:
        raise IndexError

    monkeypatch.setitem(ON_TEXT, "truth", fails)
    with pytest.raises(UserError, match="'truth' fails on 'distance', seed 3, in the whole stream"):
        judge_methods(
            seeds=1,
            seed=3,
            kinds=["distance"],
            methods=["truth"],
            out=tmp_path,
            show_progress=False,
        )


def test_a_method_that_takes_something_else_is_refused_before_any_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "mine", lambda planted, place: {})
    with pytest.raises(UserError, match=r"'mine' cannot be called .*: give one of a planted"):
        judge_methods(seeds=1, methods=["probing", "mine"], out=tmp_path)
    monkeypatch.setitem(METHODS, "mine", lambda planted, place, seed: {})
    monkeypatch.setitem(ON_TEXT, "mine", lambda planted, place, seed: {})
    with pytest.raises(UserError, match="give one of a planted language model and a seed"):
        judge_methods(seeds=1, methods=["probing", "mine"], out=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_method_that_was_mended_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"seeds": 1, "kinds": ["counting"], "methods": ["mine"], "out": tmp_path}

    def wrong(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
        return {"smooth trend": "not used"}

    def right(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
        return {"smooth trend": "contributes"}  # the truth, "used", does not tell how far

    shares = []
    for mine in (wrong, right, wrong):
        monkeypatch.setitem(METHODS, "mine", mine)
        found = judge_methods(**words, show_progress=False)
        shares.append(found.methods["right"].to_list())
    assert shares == [[0, 0], [1, 1], [0, 0]]
    assert len(list(tmp_path.iterdir())) == 2
    # No command line knows it.
    command = shlex.split(found.info["command"], comments=True)
    assert command[:2] == ["nope-interp", "benchmark"]
    assert found.info["command"].endswith("# from Python, with mine in METHODS")


def test_a_method_whose_global_value_changed_is_judged_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "mine", by_a_global_word)
    shares = []
    for word in ("not used", "used"):
        monkeypatch.setattr(sys.modules[__name__], "WORD", word)
        found = judge_methods(
            seeds=1, kinds=["counting"], methods=["mine"], out=tmp_path, show_progress=False
        )
        shares.append(found.methods["right"].to_list())
    assert shares == [[0, 0], [1, 1]]


def told(method: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "mine", method)
        return of_yours(["mine"])["mine"]


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (np.arange(5000), np.arange(5000) % 2500),  # their repr shows the first and last three
        (torch.arange(5000), torch.arange(5000) % 2500),
        (torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(3, 2, dtype=torch.bfloat16)),
        (np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.float64)),
        ({"bounds": [torch.tensor(0.1)]}, {"bounds": [torch.tensor(0.2)]}),
        (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)),
        ({1, 2}, {1, 3}),
    ],
)
def test_a_method_is_told_by_the_whole_of_what_it_reads(value: object, other: object) -> None:
    def closing_over(read: object) -> Any:
        return lambda planted, place, seed: read

    def by_default(read: object) -> Any:
        return lambda planted, place, seed, of=read: of

    def by_another_that_closes_over(read: object) -> Any:
        other = closing_over(read)
        return lambda planted, place, seed: other(planted, place, seed)

    for making in (closing_over, by_default, by_another_that_closes_over):
        found = told(making(value))
        assert found == told(making(copy.deepcopy(value)))
        assert found != told(making(other))
        # Not what a decorator made of it alone.
        assert told(torch.no_grad()(making(value))) != told(torch.no_grad()(making(other)))


def test_a_method_that_was_typed_without_a_file_is_told_by_its_code() -> None:
    def typed(read: str) -> Any:
        names: dict[str, Any] = {}
        exec(f"def mine(planted, place, seed): return [planted.{read} for _ in 'a']", names)
        return names["mine"]

    assert told(typed("loss")) == told(typed("loss"))
    assert told(typed("loss")) != told(typed("accuracy"))


def test_a_method_is_told_alike_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from experiments.benchmark.methods import METHODS, of_yours\n"
        "KNOWN, VECTOR, SCALE = {'one', 'two', 'three'}, torch.arange(9.0), lambda x: 2 * x\n"
        "class Bound: pass\n"
        "BOUND = Bound()\n"
        "def again(planted, place, seed): return again, KNOWN, VECTOR, BOUND, SCALE\n"
        "def made(scale): return lambda planted, place, seed: again(scale, VECTOR, seed)\n"
        "METHODS |= {'first': again, 'second': made(SCALE)}\n"
        "print(of_yours(['first', 'second']))\n"
    )
    found = [
        subprocess.run(
            [sys.executable, tmp_path / "mine.py"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert "second" in found[0]


def test_a_method_that_reads_what_nothing_tells_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(UserError, match="'mine' reads 'lock', a lock, whose content cannot"):
        told(lambda planted, place, seed: lock)


def test_others_words_and_names_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "wild", lambda planted, place, seed: {"smooth trend": "perhaps"})
    with pytest.raises(UserError, match="'wild' says 'perhaps' of smooth trend: give one of used"):
        judge_methods(seeds=1, kinds=KINDS[:1], methods=["wild"], out=tmp_path, show_progress=False)
    for said, message in (
        (
            {"smooth-trend": "used"},
            "unknown code of the method 'wild' 'smooth-trend': did you mean",
        ),
        (None, "'wild' gives None: give a word for each code"),
        ({}, "the method says nothing of any code of these models"),
    ):
        monkeypatch.setitem(METHODS, "wild", lambda planted, place, seed, said=said: said)
        with pytest.raises(UserError, match=message):
            judge_methods(
                seeds=1,
                kinds=KINDS[:1],
                methods=["wild"],
                out=tmp_path,
                show_progress=False,
            )
    monkeypatch.setitem(METHODS, "wild", partial(of_the_truth, seed=0))
    with pytest.raises(UserError, match=f"for 1000 seeds give at most {LARGEST_SEED - 1000}"):
        judge_methods(seeds=1000, seed=LARGEST_SEED - 999, out=tmp_path)
    with pytest.raises(UserError, match="no plain function: give one of a planted model"):
        judge_methods(seeds=1, methods=["wild"], out=tmp_path)
    run = nope_interp("benchmark", "--method", "probin", cwd=tmp_path)
    assert_one_sentence(run, "did you mean 'probing'?")
    run = nope_interp("benchmark", "--kind", "count amid contents", cwd=tmp_path)
    assert_one_sentence(run, "did you mean 'count amid content'?")
    for arguments in (("--seeds", "0"), ("--method", "DAS", "--method", "DAS")):
        assert_one_sentence(nope_interp("benchmark", *arguments, cwd=tmp_path))
    with pytest.raises(UserError, match="runs on the CPU"):
        judge_methods(device="cuda", out=tmp_path)


def test_the_command_line_prints_the_table(tmp_path: Path) -> None:
    words = ["--seeds", "1", "--kind", KINDS[0], "--method", "truth", "--out", ".", "--json"]
    run = nope_interp("benchmark", *words, "--quiet", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    value = json.loads(run.stdout)
    (row,) = value["methods"]
    assert (row["method"], row["place"], row["right"]) == ("truth", "single sites", 1)
    assert Path(tmp_path / value["report"]).is_file()


def test_a_site_is_found_by_its_name() -> None:
    assert site_of("blocks.1.hook_resid_mid") == Site(1, "resid_mid")


# ---------------------------------------------------------------- methods


def test_a_probe_takes_what_can_be_read_for_what_is_used() -> None:
    planted = plant("unread counting")
    assert probing(planted, SITE, 0)["smooth trend"] == "used"
    assert planted.truth["smooth trend"] == "not used"


def test_erasure_tells_a_code_that_is_read_from_one_that_is_not() -> None:
    truth = plant("few dimensions").truth
    for place in (None, SITE):
        assert erasure(plant("few dimensions"), place, 0) == truth


def test_leace_tells_the_codes_that_maps_can_read() -> None:
    assert leace(plant("counting"), SITE, 0) == {
        "smooth trend": "used",
        "irregular part": "not used",
    }
    assert leace(plant("positional vectors"), None, 0)["irregular part"] == "used"


def test_das_finds_one_direction_where_there_is_one() -> None:
    assert das(plant("counting"), SITE, 0) == {"smooth trend": "used"}
    assert das(plant("positional vectors"), SITE, 0) == {"smooth trend": "not used"}
    assert das(plant("counting"), None, 0) == {}


def test_das_holds_what_follows_against_right_answers_at_the_same_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Less than a tenth of the 28% that are right, more than one of 24% at held-out positions."""
    planted = plant("variance")
    follows = {True: np.full(4, 0.0265), False: np.zeros(4)}
    monkeypatch.setattr(
        "experiments.benchmark.das._followed",
        lambda _planted, model, _site, _seed: follows[model is planted.model],
    )
    assert das(planted, SITE, 0) == {"smooth trend": "used"}


def test_interchange_follows_the_code_that_is_used() -> None:
    planted = plant("few dimensions")
    for place in (None, SITE):
        words = interchange(planted, place, 0)
        told = {code: word for code, word in words.items() if code in CODES}
        assert told == {code: planted.truth[code] for code in told}
        assert set(told) == set(CODES) - {"similarity"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_smooth_trend_of_few_positions_is_held_against_random_functions(seed: int) -> None:
    """Two functions tell eight positions apart in part, whichever they are. This model reads a
    vector for each position: its smooth trend is the part of them that t and 1/m happen to explain.
    """
    planted = plant("few dimensions", seed)
    task, among = task_of(planted, seed), torch.arange(4, 12)
    order = torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))
    sources = torch.empty_like(order).scatter_(0, order, order.roll(1))
    told = torch.arange(1, N_CTX)
    told[among - 1] = among[sources]
    tokens = task.split.held_out
    own, other, asked = (torch.zeros_like(tokens) for _ in range(3))
    own[:, 1:], other[:, 1:] = planted.answered(tokens), planted.answered(tokens, told)
    asked[:, among] = 1
    some = Counterfactual(
        moved="positions",
        among=among,
        sources=sources,
        origins=torch.arange(len(among)),
        own=own,
        other=other,
        counted=asked.bool() & (own != other),
        asked=asked.bool(),
    )
    rows = interchange_rows(task, {}, [some], context=context(planted, seed))
    found = followed(table(rows)).set_index("code")
    assert found.loc[["mean residual", "irregular part"], "word"].tolist() == ["used"] * 2
    # It alone restores answers, as any two functions do; beyond these it does not.
    trend = found.loc["smooth trend"]
    assert trend["restored"] - max(trend["destroyed"], trend["restored_size_matched"]) > 0.2
    assert trend["restored_net_high"] < 0.1
    assert trend["word"] in ("not used", "undecided")


# ---------------------------------------------------------------- language models


def test_language_models_are_a_place_of_their_own(tmp_path: Path) -> None:
    kinds = (KINDS[0], "looked up", "distance")
    found = judge_methods(
        seeds=1, kinds=kinds, methods=["probing", "interchange"], out=tmp_path, show_progress=False
    )
    on_text = found.methods[found.methods["place"] == "whole stream, on text"]
    # Of the others no method speaks.
    assert on_text["method"].tolist() == ["interchange"]
    assert on_text[["n", "right", "false positive", "missed"]].iloc[0].tolist() == [2, 1, 0, 0]
    rows = found.measurements[found.measurements["tokens"] == "text"]
    words = rows.set_index(["model", "metric"])["control"]
    used = {of for of, word in words.items() if word == "used"}
    assert used == {("looked up", "mean residual"), ("looked up", "irregular part")}
    assert len(words) == 2 * 5
    assert "3 kinds of planted models, 1 of each" in repr(found)
    assert found.headline.startswith("Through the whole stream interchange judges")
    page = (found.folder / "report.html").read_text(encoding="utf-8")
    assert "On text interchange judges 100%" in page


def test_a_method_of_ones_own_judges_language_models_and_is_judged_anew_once_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
        return {}

    def wrong(planted: PlantedLanguage, seed: int) -> dict[str, str]:
        return {"variance": "used"}

    def right(planted: PlantedLanguage, seed: int) -> dict[str, str]:
        return {"variance": planted.truth["variance"]}

    monkeypatch.setitem(METHODS, "mine", silent)
    words = {"seeds": 1, "kinds": ["distance"], "methods": ["mine"], "out": tmp_path}
    with pytest.raises(UserError, match="the method says nothing of any code of these models"):
        judge_methods(**words, show_progress=False)
    for mine, share in ((wrong, 0), (right, 1)):
        monkeypatch.setitem(ON_TEXT, "mine", mine)
        assert judge_methods(**words, show_progress=False).methods["right"].to_list() == [share]


def test_a_language_model_without_order_gets_no_word() -> None:
    """It tells how often tokens came and not where they stood: its head looks nothing up."""
    planted = plant_language("distance, pooling")
    with torch.no_grad():
        planted.model.blocks[1].attn.W_V.zero_()
    words = interchange_on_text(planted, 0)
    assert set(words) == set(planted.truth)
    assert set(words.values()) == {"has not learned order"}


@pytest.mark.parametrize(
    ("kind", "used", "unread"),
    [
        ("latest by similarity", "similarity", "variance"),
        ("latest by similarity amid content", "similarity", "variance"),
        ("latest by variance", "variance", "similarity"),
        ("latest by variance amid content", "variance", "similarity"),
        ("latest by a count, unread similarity", "smooth trend", "similarity"),
    ],
)
def test_predictions_follow_the_code_that_is_read_and_not_one_beside_it(
    kind: str, used: str, unread: str
) -> None:
    """Moved alone: what is put back, ranks and words take too long here. Their table is a run's."""
    planted = plant_language(kind)
    task = task_on_text(planted, TextSource(planted.text(0), planted.begin_token), 0)
    stream = stream_sites(task)
    reads = [Site(layer, ATTENTION_INPUT) for layer in range(task.model.cfg.n_layers)]
    moves = TextMoves(task, statistics_at(task, [*stream, *reads]), stream)

    def shares(code: str) -> pd.DataFrame:
        place = Place(EVERYWHERE, STREAM, tuple(reads if code == SIMILARITY else stream))
        trial = dataclasses.replace(moves.disordering(place, code), doses=(1.0,))
        rows = pd.DataFrame(trial.rows({}))
        return rows[rows["metric"].isin([NET, THIS_ORDER])].set_index("metric")

    of_used, of_unread = shares(used), shares(unread)
    for metric in (NET, THIS_ORDER):
        own, other = of_used.loc[metric], of_unread.loc[metric]
        # A tenth surely is what a verdict asks for, of both.
        assert own["ci_low"] > max(0.1, other["ci_high"])
        assert other["ci_low"] < 0.1
