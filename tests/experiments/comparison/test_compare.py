"""The main job end to end, on models small enough to train here."""

import dataclasses
import inspect
import json
import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments import Comparison, compare
from experiments.comparison import cells as parts
from experiments.comparison import compare as hypotheses
from experiments.comparison.config import CompareConfig, left_out
from experiments.probing.shards import read_once
from experiments.probing.split import Split
from experiments.results.measurements import intact_readings, read_arrays, write_arrays
from experiments.runs.folder import RunFolder, fingerprint
from experiments.sweeps.registry import EXPERIMENTS, experiment
from experiments.sweeps.sweep import Sweep, SweepCell
from experiments.variants.train import train as train_one
from experiments.variants.words import expanded
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.tasks.registry import make_answer_task
from nope_interp.tasks.sources import TextSource
from nope_interp.training.config import TrainingConfig
from tests.experiments.runs.sharing import PicklingPool, assert_same_bits, with_weights_of
from tests.huggingface import plain_model, save_folder, tiny_gemma3, words

CONFIG = CompareConfig(
    transformer=TransformerConfig(n_layers=2, d_model=32, n_heads=2, d_vocab=257, n_ctx=24),
    training=TrainingConfig(steps=6, batch_size=4, seq_len=24, warmup=2, checkpoint_every=3),
    seq_len=24,
    n_fit=64,
    n_held_out=48,
    layers=(0,),
    batch_size=64,
)
# Few sequences, where what is read of them is not looked at.
FEW: dict[str, Any] = {"n_fit": 16, "n_held_out": 8}
# Of the model alone, at as few places as there can be.
BRIEF = FEW | {"sites": ("resid_post",)}
ALONE = BRIEF | {"variants": False, "uses": "stream"}
N_PLACES = 1 + 2  # the embedding, and two sites in the layer


def run(out: Path, **changes: Any) -> Comparison:
    return compare(dataclasses.replace(CONFIG, **changes), out=out, show_progress=False)


def weights(found: Comparison) -> Path:
    """The model that was trained for a comparison."""
    return found.folder.parent / found.info["trained_model"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The model alone, its codes removed through the whole stream."""
    return run(tmp_path_factory.mktemp("alone"), **ALONE)


def test_every_unmasked_is_read_under_every_condition(comparison: Comparison) -> None:
    measurements = intact_readings(comparison.measurements)
    conditions = measurements.groupby(["variant", "tokens", "begin_token"]).size()
    assert len(conditions) == 3 * 2 * 2
    assert conditions.nunique() == 1  # the same rows for each
    assert measurements.groupby(["layer", "site"]).ngroups == N_PLACES
    assert set(measurements["n"]) <= {48, 32}  # similarity scores at most 32 sequences
    assert (measurements["ci_low"] <= measurements["value"]).all()
    assert (measurements["value"] <= measurements["ci_high"]).all()
    keys = [name for name in measurements.columns if name not in ("value", "ci_low", "ci_high")]
    assert not measurements.duplicated(keys).any()


def test_every_score_has_its_control(comparison: Comparison) -> None:
    scored = intact_readings(comparison.measurements)
    counts = scored.groupby(["probe", "metric"])["control"].value_counts().unstack()
    assert set(counts.columns) == {"", "shuffled positions"}
    assert (counts[""] == counts["shuffled positions"]).all()


def test_the_causal_mask_is_what_makes_position_readable(comparison: Comparison) -> None:
    """The attention output of a random causal layer is nearly ordered by cosine; without mask: not.

    Read on random tokens, whose contents cannot tell positions (papers: Zuo et al. 2025).
    """
    chosen = comparison.measurements.query(
        "positions == 'intact' and probe == 'similarity' and metric == 'adjacency_a' and "
        "control == '' and "
        "site == 'attn_out' and layer == 0 and tokens == 'random' and not begin_token"
    ).set_index("variant")
    assert chosen.loc["random-init", "ci_low"] > 0.8
    unmasked = chosen.loc["bidirectional"]
    assert unmasked["ci_low"] < 0.5 < unmasked["ci_high"]


def test_embedding_of_random_tokens_is_at_chance(comparison: Comparison) -> None:
    chosen = comparison.measurements.query(
        "metric == 'mae' and control == '' and site == 'resid_pre' and tokens == 'random'"
    )
    assert set(chosen["probe"]) >= {"linear", "variance", "similarity", "two_layer"}
    # Within 5% of chance: 48 held-out sequences of 23 positions scatter by about 2%.
    assert (chosen["value"] > 0.95 * chosen["chance"]).all()


def test_codes_are_taken_away_from_the_model_in_question(comparison: Comparison) -> None:
    losses = comparison.measurements.query("probe == 'loss'")
    assert set(losses["variant"]) == {"trained"}
    (verdict,) = comparison.uses
    sites = {(use.layer, use.site) for use in verdict.uses}
    assert len(sites) == N_PLACES + 1  # and the whole stream
    assert comparison.answer.score is not None
    assert comparison.answer.score.value == verdict.intact
    assert comparison.headline == comparison.answer.sentence
    # Six steps of training leave the model a guesser by frequencies, or worse.
    assert verdict.intact[0] > 0.9 * verdict.chance


def assert_taken_away(found: Comparison, layers: set[int]) -> None:
    """Codes were taken away there, -1 being the whole stream, and nowhere else."""
    losses = found.measurements.query("probe == 'loss'")
    assert set(losses["layer"]) == layers
    assert len(found.uses) == bool(layers)


def test_how_far_codes_are_taken_away_can_be_chosen(alone: Comparison) -> None:
    assert set(intact_readings(alone.measurements)["layer"]) == {0}  # there is a place to do it at
    assert_taken_away(alone, {-1})


def test_without_variants_nothing_is_taken_away_unless_it_is_asked_for() -> None:
    alone = dataclasses.replace(CONFIG, variants=False)
    assert (alone.code_ablation, alone.command_name) == ("no", "probe")
    asked = dataclasses.replace(alone, uses="stream")
    assert (asked.code_ablation, asked.command_name) == ("stream", "compare")
    assert dataclasses.replace(CONFIG, model="gpt2").code_ablation == "stream"
    with pytest.raises(UserError, match=r"unknown choice of uses 'site'.*'sites'"):
        dataclasses.replace(CONFIG, uses="site")


def test_positions_are_taken_away_before_anything_is_read(tmp_path: Path) -> None:
    """What is left of a rotary model is one without positions: its variant without a mask reads
    nothing on random tokens."""
    rotary = dataclasses.replace(CONFIG.transformer, positions="rotary", rotary_base=100.0)
    small: dict[str, Any] = {
        "transformer": rotary,
        "uses": "no",
        "n_fit": 16,
        "n_held_out": 32,
        "layers": (1,),
    }
    small["sites"] = ("attn_out",)
    found = {how: run(tmp_path, ablate=how, **small) for how in (None, "rotary")}
    for comparison in found.values():
        assert_taken_away(comparison, set())
    assert found[None].info["positions"] == "rotary"
    assert found["rotary"].info["positions"] == "rotary:none"
    assert "rotary:none" in found["rotary"].info["model"]
    adjacency = {
        how: comparison.measurements.query(
            "variant == 'bidirectional' and tokens == 'random' and not begin_token and "
            "metric == 'adjacency_c' and control == '' and site == 'attn_out' and layer == 1"
        )["value"].item()
        for how, comparison in found.items()
    }
    assert adjacency["rotary"] == pytest.approx(0.5, abs=0.03)
    assert adjacency[None] != adjacency["rotary"]


@pytest.mark.parametrize(
    ("ablate", "said"),
    [("rotary", "no positional encoding"), ("rotery", "'rotary'")],
)
def test_what_cannot_be_ablated_is_refused_before_it_is_trained(
    tmp_path: Path, ablate: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, ablate=ablate)
    assert not list(tmp_path.iterdir())


def test_too_few_sequences_for_taking_codes_away_are_refused_before_training(
    tmp_path: Path,
) -> None:
    narrow = dataclasses.replace(CONFIG.transformer, d_model=2, n_heads=1)
    with pytest.raises(UserError, match="at 23 positions of width 2: fit on 13 at least"):
        run(tmp_path, transformer=narrow, n_fit=12)
    assert not list(tmp_path.iterdir())


def test_what_holds_of_every_variant_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(words(3000))
    folder = save_folder(tiny_gemma3(), tmp_path / "gemma")  # with windows of 16 tokens
    found = run(
        tmp_path,
        model=str(folder),
        text=str(tmp_path / "text.txt"),
        ablate="all",
        uses="no",
        layers=(0,),
        **BRIEF,
    )
    assert set(found.measurements["variant"]) == {"pretrained", "random-init"}
    (said,) = (note for note in found.info["notes"] if "window" in note)
    assert "longer than the attention window of 16 tokens" in said


def test_a_pretrained_model_without_positions_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(words(3000))
    model = str(save_folder(plain_model("llama"), tmp_path / "llama-nope"))
    asked = {"model": model, "text": str(tmp_path / "text.txt"), "layers": (0,), "uses": "no"}
    asked |= BRIEF | {"variants": True}
    with pytest.raises(UserError, match="give positions none or rotary"):
        run(tmp_path, **asked)
    found = run(tmp_path, **asked, positions="none")
    assert found.info["positions"] == "none"
    notes = " ".join(found.info["notes"])
    assert "what transformers gives a llama model is switched off" in notes
    assert "what is read here comes from the causal mask" in notes
    assert "has a positional encoding" not in notes
    (row,) = found.info["layer_positions"]
    assert (row["layers"], row["positions"]) == ("0-1", "none")
    assert row["order"][1] < 1e-4
    page = found.html()
    assert '<th scope="row">0-1</th><td>none</td>' in page
    rotated = run(tmp_path, **asked, positions="rotary")
    assert '<th scope="row">0-1</th><td>rotary</td><td class="num">10,000</td>' in rotated.html()
    assert rotated.info["positions"] == "rotary"
    assert "This model has a positional encoding in every layer" in " ".join(rotated.info["notes"])
    assert found.folder != rotated.folder


@pytest.mark.parametrize("variants", [False, True], ids=["probe", "compare"])
def test_a_hybrid_is_read_and_shows_the_attention_that_it_has(
    variants: bool, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(words(3000))
    model = str(save_folder(plain_model("olmo_hybrid"), tmp_path / "hybrid"))
    asked = {"model": model, "text": str(tmp_path / "text.txt"), "layers": (0, 3), "uses": "no"}
    asked |= BRIEF | {"variants": variants}
    found = run(tmp_path, **asked)
    page = found.html()
    assert '<th scope="row">0-2</th><td>recurrence</td>' in page
    assert '<th scope="row">3</th><td>rotary</td>' in page
    patterns = {name.split("/")[-1] for name in found.arrays if "/pattern/" in name}
    assert patterns == {"3"}
    assert set(found.measurements["layer"]) == {0, 3}


def test_arrays_and_example_fit_the_run(comparison: Comparison) -> None:
    curve = comparison.arrays["trained/text/nobegin/0/resid_post/variance/curve"]
    cosine = comparison.arrays["trained/text/nobegin/0/resid_post/similarity/cosine"]
    assert curve.shape == (23,)
    assert cosine.shape == (23, 23)
    np.testing.assert_allclose(np.diagonal(cosine), 1, atol=1e-6)
    pattern = comparison.arrays["example/random-init/pattern/1"]
    assert pattern.shape == (2, 24, 24)
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
    assert len(comparison.info["example_tokens"]) == 24
    assert comparison.arrays["example/bidirectional/prediction/embedding"].shape == (23,)


def test_a_sweep_tells_the_words_of_its_comparisons(comparison: Comparison) -> None:
    cells = [
        SweepCell(number, {"seed": number}, {}, folder)
        for number, folder in ((1, comparison.folder), (2, comparison.folder / "none"))
    ]
    sweep = Sweep(comparison.folder.parent, experiment("compare"), tuple(cells))
    found = sweep.verdicts()
    said = {code.code: str(code.word) for code in comparison.answer.codes if code.word}
    assert said
    assert dict(zip(found["code"], found["word"], strict=True)) == said
    assert set(found["cell.seed"]) == {1}  # the other one is not finished
    assert sweep.agreement()["words"].tolist() == [f"{word} 1" for word in said.values()]


def test_info_says_how_it_was_run(comparison: Comparison) -> None:
    info = json.loads((comparison.folder / "info.json").read_text())
    assert CompareConfig.from_dict(info["config"]) == CONFIG
    assert info["environment"]["torch"]
    assert info["device"] == "cpu"
    assert info["seconds"] > 0


@pytest.mark.parametrize(("variants", "command"), [(True, "compare"), (False, "probe")], ids=str)
def test_steps_have_the_name_of_the_command(
    variants: bool, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reader(config: CompareConfig, *how: Any) -> Any:
        how[-1].say("2 steps")
        raise KeyboardInterrupt

    asked = dataclasses.replace(CONFIG, variants=variants)
    how = {"n": 1, "ray": None, "device": "cpu", "show_progress": True}
    with pytest.raises(KeyboardInterrupt):
        read_once(Comparison, reader, asked, out=tmp_path, **how)
    assert f"{command}: 2 steps." in capsys.readouterr().err


def stopped_at(monkeypatch: pytest.MonkeyPatch, last: int) -> list[int]:
    """Makes the reading of one condition a kill; how many were begun."""
    real, begun = parts.measure, []

    def killed(*args: Any, **kwargs: Any) -> Any:
        begun.append(1)
        if len(begun) == last:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(parts, "measure", killed)
    return begun


def cells_of(out: Path) -> list[Path]:
    """The kept cells of an unfinished run."""
    (folder,) = (path.parent for path in out.glob("none-*/cells"))
    assert not RunFolder(folder).finished
    with pytest.raises(UserError, match="no finished run"):
        Comparison.load(folder)
    return sorted(folder.rglob("cells/**/*.safetensors"))


def test_a_killed_and_damaged_run_goes_on_and_ends_in_the_same_bytes(
    alone: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same seed gives the same numbers, and cells are gathered in the order that is declared,
    not in that of their files' times."""
    begun = stopped_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **ALONE)
    cells = cells_of(tmp_path)
    # Four conditions, what the model uses, and one condition's two-layer probes.
    assert len(cells) == 6
    next(path for path in cells if path.stem == "codes removed-stream").unlink()
    damaged = next(path for path in cells if "text-nobegin" in path.stem)
    damaged.write_bytes(damaged.read_bytes()[:50])
    resumed = run(tmp_path, **ALONE)
    assert len(begun) == 6 + 4  # of the eight readings four were whole
    for name in ("measurements.parquet", "arrays.safetensors"):
        assert (resumed.folder / name).read_bytes() == (alone.folder / name).read_bytes()
    assert resumed.headline == alone.headline
    assert not (resumed.folder / "cells").exists()
    before = len(begun)
    run(tmp_path, **ALONE)
    assert len(begun) == before  # finished: nothing is measured at all


def test_the_page_is_there_before_the_run_is_finished(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing, and the finished page does not."""
    missing = "codes removed through the whole stream, codes removed site by site, two-layer probes"

    def killed(self: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts.TakeAway, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **ALONE | {"uses": "sites"})
    (page,) = (path.read_text() for path in tmp_path.glob("*/report.html"))
    assert f"Still to come: {missing}." in page
    finished = (comparison.folder / "report.html").read_text()
    assert "Still to come" not in finished
    # What is there stands in both.
    verdict = comparison.verdicts[0]
    assert verdict.sentence in finished
    assert verdict.hypothesis in page


def test_cells_side_by_side_are_those_of_one_process(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypotheses, "one_thread_each", lambda: PicklingPool(at_once=2))
    assert_same_bits(run(with_weights_of(comparison, tmp_path)), comparison)


def test_a_quick_run_says_what_it_leaves_out(alone: Comparison) -> None:
    asked = {"n_fit": 128, "n_held_out": 48, "seq_len": 64, "uses": "stream"}
    assert CompareConfig.from_dict(expanded(CompareConfig, {"quick": True})) == CompareConfig(
        **asked
    )
    assert expanded(CompareConfig, {"quick": False}) == {}
    # What is said beside it wins.
    assert expanded(CompareConfig, {"quick": True, "n_fit": 8})["n_fit"] == 8
    # "no" is no False, and would be a quick run unasked.
    for wrong in ("no", 1, None):
        with pytest.raises(UserError, match=r"quick is .*: give True or False"):
            expanded(CompareConfig, {"quick": wrong})
    assert left_out(CompareConfig()) == []
    sequences, tokens, sites = left_out(CompareConfig(**asked))
    assert "176 sequences under each condition; 768 are the default" in sequences
    assert "Sequences have 64 tokens; 128 are the default" in tokens
    assert "at single sites" in sites
    assert alone.info["notes"][0] == left_out(dataclasses.replace(CONFIG, **ALONE))[0]


def test_a_flipped_table_in_a_cell_is_measured_again(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = stopped_at(monkeypatch, 3)
    model = str(weights(comparison))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, model=model, variants=False, **FEW)
    (path, *_) = sorted(tmp_path.rglob("cells/**/*.safetensors"))
    arrays = read_arrays(path)
    write_arrays(arrays | {"rows.parquet": arrays["rows.parquet"][:-8]}, path)
    run(tmp_path, model=model, variants=False, **FEW)
    assert len(begun) == 3 + 7  # of the eight readings one was whole


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"positions": 1}'])
def test_damaged_info_says_what_to_delete(
    comparison: Comparison, tmp_path: Path, content: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(comparison.folder, folder)
    (folder / "info.json").write_text(content)
    with pytest.raises(UserError, match=r"delete .*info\.json' and run the command again"):
        Comparison.load(folder)


def test_cut_short_report_is_drawn_again(comparison: Comparison, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / comparison.folder.name
    shutil.copytree(comparison.folder, copy)
    whole = (copy / "report.html").read_text()
    (copy / "report.html").write_text(whole[:1000])
    compare(CONFIG, out=tmp_path / "runs", show_progress=False)
    assert (copy / "report.html").read_text() == whole


def test_changed_text_is_a_new_run(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    folders = set()
    for repeated in ("one two three ", "four five six "):
        text.write_text(repeated * 1000)
        path = train_one(
            dataclasses.replace(CONFIG, text=str(text)), out=tmp_path / "runs", show_progress=False
        )
        folders.add(path.parent)
    assert len(folders) == 2


def test_a_run_folder_is_worked_in_by_one_process_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.of(tmp_path, CONFIG).begin(CONFIG)
    waits, order = threading.Event(), []
    emit = caplog.handler.emit

    def heard(record: logging.LogRecord) -> None:
        emit(record)
        waits.set()

    def enter() -> None:
        with folder.locked():
            order.append("second")

    monkeypatch.setattr(caplog.handler, "emit", heard)
    with folder.locked():
        assert not caplog.messages
        thread = threading.Thread(target=enter)
        thread.start()
        waits.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert caplog.messages == [f"another process makes {folder.path}: waiting for it."]


def test_wrong_arguments_of_the_api_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a CompareConfig"):
        # Without the checks of annotations that only tests have.
        inspect.unwrap(compare)({"seed": 1}, out=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="device 'zzz' cannot be used"):
        compare(CONFIG, out=tmp_path, device="zzz")
    assert dataclasses.replace(CONFIG, layers=[0]).layers == (0,)  # type: ignore[arg-type]


def test_other_configs_have_other_folders(tmp_path: Path) -> None:
    folders = {
        RunFolder.of(tmp_path, config).path
        for config in (CONFIG, CONFIG, dataclasses.replace(CONFIG, seed=1))
    }
    assert len(folders) == 2
    path = tmp_path / "weights"
    path.write_text("a")
    before = fingerprint(path)
    path.write_text("ab")
    assert fingerprint(path) != before


def test_one_model_alone_at_chosen_layers(comparison: Comparison, tmp_path: Path) -> None:
    model = str(weights(comparison))
    found = run(tmp_path, model=model, variants=False, layers=(1,), **FEW).measurements
    assert set(found["variant"]) == {"trained"}
    assert set(found["layer"]) == {0, 1}
    assert set(found.query("layer == 0")["site"]) == {"resid_pre"}
    with pytest.raises(UserError, match="no layer 2: choose from layers 0 to 1"):
        run(tmp_path, model=model, layers=(2,))


def test_a_layer_that_a_model_lacks_is_told_before_anything_is_measured(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypotheses, "seconds_a_sequence", None)
    asked = dataclasses.replace(CONFIG, model=str(weights(comparison)), layers=(30,))
    with pytest.raises(UserError, match="no layer 30: choose from layers 0 to 1"):
        compare(asked, out=tmp_path, show_progress=True)


def test_a_quick_probe_intervenes_no_more_than_a_slow_one() -> None:
    asked = expanded(CompareConfig, {"quick": True})
    config = EXPERIMENTS["probe"].read(asked)
    assert isinstance(config, CompareConfig)
    assert (config.code_ablation, config.command_name) == ("no", "probe")
    assert config.n_fit == asked["n_fit"]


def test_reversal_is_read_too(tmp_path: Path) -> None:
    comparison = run(tmp_path, task="reversal", variants=False, **FEW)
    assert set(comparison.measurements["tokens"]) == {"reversal", "random"}


def test_our_own_checkpoint_is_read(comparison: Comparison, tmp_path: Path) -> None:
    path = str(weights(comparison))
    again = run(tmp_path, model=path, uses="no")
    numbers = ["layer", "site", "probe", "metric", "control", "value"]
    read = intact_readings(comparison.measurements)
    pd.testing.assert_frame_equal(
        intact_readings(again.measurements)[numbers].reset_index(drop=True),
        read[numbers].reset_index(drop=True),
        check_exact=True,
    )
    with pytest.raises(UserError, match="add --task text"):
        run(tmp_path, model=path, task="reversal")


def test_notebook_shows_the_report_in_a_frame(comparison: Comparison) -> None:
    html = comparison._repr_html_()
    assert html.startswith("<iframe srcdoc=")
    assert "<script" not in html  # escaped: nothing leaks out of the frame
    page = comparison.write_report().read_text()
    assert comparison.headline.split(".")[0] in page


def test_a_task_of_one_held_out_prompt_is_refused() -> None:
    """Of parity's four prompts of two digits training never saw one."""
    source = make_answer_task("parity", training_lengths=[2], test_lengths=()).source()
    text = TextSource(torch.zeros(4000, dtype=torch.long), None)
    with pytest.raises(UserError, match=r"give a text that varies \(--text\)"):
        Split.of(text, 8, 8, seq_len=16, begin_token=False, seed=0)
    with pytest.raises(UserError, match="all 30 held-out sequences of parity are the same"):
        Split.of(source, 60, 30, seq_len=8, begin_token=True, seed=0)
