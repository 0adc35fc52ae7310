"""The classification of heads end to end, on models small enough to train here and on Gemma."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from einops import rearrange

import nope_interp as ni
from experiments import HeadClassification, HeadsConfig, classify_heads
from experiments.heads import classify as heads
from experiments.heads import reading as head_cells
from experiments.heads.cell import HeadCell
from experiments.heads.notes import out_of_sight, recurring
from experiments.heads.tokens import HeadTokens
from experiments.results import heads as tables
from experiments.results.measurements import write_arrays, write_table
from experiments.sweeps.runs import load_run
from experiments.variants.ablation import Ablation
from experiments.variants.lengths import beyond_context
from nope_interp import streams
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models import attention
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.streams import run_trunk
from nope_interp.tasks.registry import make_task
from nope_interp.tasks.sources import CopiesSource, RepeatedSource, UniformSource
from nope_interp.training.config import TrainingConfig
from probes.head_rules import FEEDS
from probes.heads._attention import FIRST_QUERY
from probes.heads.labels import label_heads
from tests.huggingface import (
    FAMILIES,
    bridged_model,
    plain_model,
    save_folder,
    tiny_gemma3,
    words,
)

CONFIG = HeadsConfig(
    transformer=TransformerConfig(2, 32, 4, d_vocab=257, n_ctx=40, positions="rotary"),
    training=TrainingConfig(steps=4, batch_size=4, seq_len=40, warmup=2, checkpoint_every=2),
    ablate="rotary",
    seq_len=40,
    n_sequences=16,
    batch_size=8,
)
N_HEADS = 2 * 4


def run(out: Path, **changes: Any) -> HeadClassification:
    return classify_heads(dataclasses.replace(CONFIG, **changes), out=out, show_progress=False)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> HeadClassification:
    return run(tmp_path_factory.mktemp("runs"))


def test_every_head_has_every_score_in_every_cell(found: HeadClassification) -> None:
    scores = found.measurements[found.measurements["probe"] == "heads"]
    cells = scores.groupby(["variant", "positions"])
    assert set(cells.groups) == {
        ("trained", "intact"),
        ("trained", "rotary:none"),
        ("random-init", "intact"),
        ("random-init", "rotary:none"),
    }
    assert cells.size().unique().tolist() == [N_HEADS * 11]
    assert scores["value"].notna().all()
    assert (scores["ci_low"] <= scores["value"] + 1e-12).all()
    assert (scores["value"] <= scores["ci_high"] + 1e-12).all()
    chances = scores.groupby("metric")["chance"].apply(lambda column: column.notna().all())
    assert not chances[["uniform", "entropy"]].any()
    assert chances.drop(["uniform", "entropy"]).all()


def test_the_table_of_heads_comes_from_the_measurements(found: HeadClassification) -> None:
    table, rows = found.heads, found.measurements
    assert len(table) == N_HEADS
    assert not table.duplicated(["layer", "head"]).any()
    for _, head in table.iterrows():
        here = rows[
            (rows["layer"] == head["layer"])
            & (rows["head"] == head["head"])
            & (rows["variant"] == "trained")
        ]
        for positions, suffix in (("intact", ""), ("rotary:none", "_ablated")):
            value = here[(here["positions"] == positions) & (here["metric"] == "previous_token")]
            assert (
                value[value["probe"] == "heads"]["value"].item() == head[f"previous_token{suffix}"]
            )
        label = here[(here["positions"] == "intact") & (here["probe"] == "label")]
        assert label["metric"].item() == head["label"]
        assert label["value"].item() == head["confidence"]
    assert table["q_value"].between(0, 1).all()


def test_losses_stand_beside_every_condition(found: HeadClassification) -> None:
    losses = found.measurements[found.measurements["probe"] == "loss"]
    assert losses["positions"].tolist() == ["intact", "rotary:none"]
    assert set(losses["variant"]) == {"trained"}
    # The model is hardly trained: worse than knowing how often each byte occurs.
    assert losses["chance"].nunique() == 1
    assert losses["chance"].between(3, 4).all()
    assert losses["value"].between(4, 6).all()
    value = losses["value"].iloc[:2].tolist()
    assert all(f"{number:#.3g} [" in found.measured_on for number in value)
    assert "nats per token" in found.measured_on


def test_a_model_of_a_task_is_not_called_broken_for_its_prompts(
    found: HeadClassification, tmp_path: Path
) -> None:
    shipped = Path(__file__).parents[3] / "examples" / "copy-rsc.safetensors"
    asked = HeadsConfig(
        model=str(shipped), task="copy-rsc", lengths=(2, 8), seq_len=36, n_sequences=16, quick=True
    )
    of_task = classify_heads(asked, out=tmp_path, show_progress=False)
    assert of_task.measured_on.startswith("Read on copy-rsc with a begin token.")
    for run, broken in ((of_task, False), (found, True)):
        page = run.write_report().read_text(encoding="utf-8")
        assert ("comes near chance is broken" in page) == broken
        assert (tables.OF_PROMPTS_TOO in page) == (not broken)
        assert (tables.OF_PROMPTS_TOO in run.measured_on) == (not broken)
    assert "Loss with prompts" in of_task.write_report().read_text(encoding="utf-8")


def test_a_prompt_that_is_drawn_again_counts_once(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[3] / "examples" / "copy-rsc.safetensors"
    lengths: dict[str, Any] = {"lengths": (2, 8)}
    asked = HeadsConfig(
        model=str(shipped), task="copy-rsc", seq_len=36, n_sequences=256, quick=True, **lengths
    )
    source = make_task("copy-rsc", **lengths).source()
    drawn = source.sequences(64, 36, begin_token=True, split="held_out", seed=0).tolist()
    n = len({tuple(tokens) for tokens in drawn})
    assert n < 64
    rows = classify_heads(asked, out=tmp_path, show_progress=False).measurements
    assert set(rows.loc[rows["probe"] == "loss", "n"]) == {n}
    with pytest.raises(UserError, match=f"32 shards are too many for {n} sequences"):
        classify_heads(asked, out=tmp_path / "shared", shards=32, show_progress=False)


def test_one_sentence_says_how_many_heads_have_a_label(found: HeadClassification) -> None:
    labelled = found.heads[found.heads["label"] != "none"]
    wanted = "None of the" if labelled.empty else f"{len(labelled)} of {N_HEADS} heads"
    assert found.headline.startswith(wanted)
    assert labelled.empty or "; " in found.headline
    assert len(found.headline.split()) <= 25


def test_a_quick_run_says_what_it_leaves_out(found: HeadClassification, tmp_path: Path) -> None:
    out = shutil.copytree(found.folder.parent, tmp_path / "runs")
    quick = run(out, n_sequences=96, quick=True)
    rows = quick.measurements
    assert quick.folder.name != found.folder.name
    assert set(rows["variant"]) == {"trained"}
    assert set(rows[(rows["probe"] == "heads") & (rows["tokens"] == "text")]["n"]) == {24}
    assert rows[rows["probe"] == "p of label, random-init"]["value"].isna().all()
    assert "24 of 96 sequences were read, and no random-init variant" in quick.measured_on
    assert quick.info["left_out"] in quick.write_report().read_text(encoding="utf-8")
    # Few sequences stay enough to resample, and a whole run leaves nothing out.
    assert dataclasses.replace(CONFIG, quick=True).n_shareable == 16
    assert "Quick" not in found.measured_on
    assert "quick" not in CONFIG.to_dict()


def test_its_figures_are_saved_by_name(found: HeadClassification, tmp_path: Path) -> None:
    assert found.figure("labels").save(tmp_path / "labels.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UserError, match=r"figure 'lables'.*did you mean 'labels'"):
        found.figure("lables")
    with pytest.raises(UserError, match="'labels' is of all heads: leave the head out"):
        found.figure("labels", "L0H1")
    found.figure("profile", "L0H1").save(tmp_path / "profile.svg")
    kept = {name: array for name, array in found.arrays.items() if "pattern" not in name}
    with pytest.raises(UserError, match="do not belong together"):
        dataclasses.replace(found, arrays=kept).figure("attention")


def test_the_heads_that_need_positions_are_named() -> None:
    heads = pd.DataFrame(
        {"layer": range(14), "head": 1, "dependence": ["positional"] * 13 + ["content"]}
    )
    said = tables.positional_heads(heads, "rotary:none")
    assert said.startswith(
        "13 heads need positions in their own layer (rotary:none takes them away): L0H1, "
    )
    assert said.endswith("L11H1 and 1 more.")
    assert tables.positional_heads(heads[13:], "rotary:none") == ""
    added = tables.positional_heads(heads[:2], "learned:none", each_layer_alone=False)
    assert added == "2 heads need the model's positions (learned:none takes them away): L0H1, L1H1."
    one = tables.positional_heads(heads[:1], "rotary:none")
    assert one == "1 head needs positions in its own layer (rotary:none takes them away): L0H1."


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({}, ""),
        ({"ablate_layers": (0,)}, " in layer 0"),
        ({"ablate_heads": (1, 3)}, " in heads 1, 3"),
    ],
)
def test_nothing_is_said_of_a_head_that_keeps_all_its_positions(
    where: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Every head looks at itself, by the rotation of constant queries and keys alone."""
    model = HookedTransformer(CONFIG.transformer)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:64] = 0
            block.attn.qkv.bias[:64] = 3.0
    file = save_model(model, tmp_path / "model.safetensors", task="text")
    asked = HeadsConfig(
        model=str(file), ablate="rotary", seq_len=40, n_sequences=16, quick=True, **where
    )
    done = classify_heads(asked, out=tmp_path, show_progress=False)
    rows = done.heads
    assert set(rows["label"]) == {"diagonal"}
    kept = rows["layer"] != 0 if "ablate_layers" in where else rows["layer"] < 0
    if "ablate_heads" in where:
        kept = ~rows["head"].isin(where["ablate_heads"])
    assert set(rows.loc[~kept, "dependence"]) == {"positional"}
    assert rows.loc[kept, "dependence"].isna().all()
    assert rows.loc[kept, "retention"].isna().all()
    assert f"(rotary:none{words} takes them away)" in done.needing
    assert f"when positions are taken away (rotary:none{words})." in done.headline
    page = done.write_report().read_text(encoding="utf-8")
    assert f"those of the model under rotary:none{words}." in page


def test_a_vocabulary_in_which_tokens_recur_too_often_is_told() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(10, (2, 20), generator=generator)
    repeated = torch.cat((torch.zeros(2, 1, dtype=torch.long), half, half), dim=1)
    empty = dict.fromkeys(("text", "text_before", "copies"), repeated)
    empty |= dict.fromkeys(("alphabet_fit", "alphabet_held_out"), repeated)
    tokens = HeadTokens(repeated=repeated, start=1, period=20, **empty)
    shares: dict[str, list[float]] = {"induction": [], "duplicate_token": []}
    for row in repeated.tolist():
        for at in range(21, 41):
            same = [key for key in range(at + 1) if row[key] == row[at]]
            after = [key + 1 for key in same if key + 1 <= at]
            assert at - 20 in same
            assert at - 19 in after
            shares["induction"].append(1 / len(after))
            shares["duplicate_token"].append(1 / len(same))
    wanted = {name: sum(of) / len(of) for name, of in shares.items()}
    assert tokens.perfect() == pytest.approx(wanted)
    _, note = recurring(tokens)
    assert f"a perfect duplicate-token head scores {wanted['duplicate_token']:.2f} here" in note
    many = torch.arange(20).repeat(2, 2)
    assert recurring(dataclasses.replace(tokens, repeated=many, start=0)) == []


@pytest.mark.parametrize(
    ("reach", "hidden"),
    [
        (19, ["induction", "duplicate-token", "first-token"]),
        (20, ["duplicate-token", "first-token"]),
        (21, ["first-token"]),
        (23, ["first-token"]),
        (24, []),
        (13, ["induction", "duplicate-token", "local", "first-token"]),
        (14, ["induction", "duplicate-token", "first-token"]),
    ],
)
def test_labels_out_of_a_windows_sight_are_named(reach: int, hidden: list[str]) -> None:
    """Of heads that look as far as the window lets them."""
    period, length = 20, 40
    query, key = torch.arange(length)[:, None], torch.arange(length)
    seen = (key <= query) & (key > query - reach)
    wanted = {"induction": query - period + 1, "duplicate-token": query - period, "first-token": 0}
    found = {name: ((key == at) & seen).any(dim=1).float() for name, at in wanted.items()}
    # A first-token head has to give half of its attention there, over the queries that count.
    assert (found["first-token"][FIRST_QUERY:].mean() < 0.5) == ("first-token" in hidden)
    for name in ("induction", "duplicate-token"):
        assert bool(found[name][period:].any()) != (name in hidden)
    # Of equal weights more than the label's bound may be near.
    near = (seen & (key > query - 8)).sum(dim=1) / seen.sum(dim=1)
    assert (near[FIRST_QUERY:].mean() > 0.6) == ("local" in hidden)
    kinds = ("text", "text_before", "repeated", "copies", "alphabet_fit", "alphabet_held_out")
    any_tokens = dict.fromkeys(kinds, torch.zeros(1, length, dtype=torch.long))
    tokens = HeadTokens(start=0, period=period, **any_tokens)
    layers = [LayerPositions(0, "rotary", window=reach), LayerPositions(1, "none")]
    notes = out_of_sight(tokens, layers)
    assert len(notes) == bool(set(hidden) - {"local"}) + ("local" in hidden)
    for label in (*wanted, "local"):
        assert (label in "".join(notes)) == (label in hidden)


def test_positions_added_to_the_embedding_are_taken_from_the_model(tmp_path: Path) -> None:
    learned = dataclasses.replace(CONFIG.transformer, positions="learned")
    asked = dataclasses.replace(CONFIG, transformer=learned, ablate="learned", quick=True)
    done = classify_heads(asked, out=tmp_path, show_progress=False)
    assert done.info["each_layer_alone"] is False
    assert "added to the embedding, and so are taken from the whole" in " ".join(done.info["notes"])


def test_the_model_is_the_same_again_after_the_ablation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    real = heads.read_cell

    def keep(model: Any, **options: Any) -> Any:
        before = model(tokens)
        with options["condition"](model):
            under = model(tokens)
        cell = real(model, **options)
        models.append((model, before, under))
        return cell

    tokens = torch.randint(256, (2, 20))
    monkeypatch.setattr(heads, "read_cell", keep)
    run(tmp_path)
    (intact, before, still), (ablated, again, under), *_ = models
    assert intact is ablated
    assert torch.equal(before, still)
    assert not torch.equal(before, under)
    assert torch.equal(before, again)
    assert torch.equal(intact(tokens), before)


def test_same_seed_same_numbers(found: HeadClassification, tmp_path: Path) -> None:
    again = run(tmp_path)
    pd.testing.assert_frame_equal(again.measurements, found.measurements)
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_killed_run_goes_on_and_ends_in_the_same_numbers(
    found: HeadClassification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = heads.read_cell, []

    def dying(model: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["description"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(model, **kwargs)

    monkeypatch.setattr(heads, "read_cell", dying)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    resumed = run(tmp_path)
    assert len(calls) == 2 + 3  # the first of four cells was kept
    pd.testing.assert_frame_equal(resumed.measurements, found.measurements)
    assert not (resumed.folder / "cells").exists()


def test_damaged_cells_are_read_again(
    found: HeadClassification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = heads.read_cell, []

    def dying(model: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(model, **options)

    monkeypatch.setattr(heads, "read_cell", dying)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    first, *_ = sorted(tmp_path.rglob("cells/**/*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
    first.write_bytes(first.read_bytes()[:100])
    resumed = run(tmp_path)
    assert len(calls) == 4 + 2
    assert (resumed.folder / "measurements.parquet").read_bytes() == (
        found.folder / "measurements.parquet"
    ).read_bytes()


def test_a_cell_comes_back_from_its_arrays(found: HeadClassification) -> None:
    model = HookedTransformer(CONFIG.transformer).eval()
    cell = head_cells.read_cell(
        model,
        random_tokens(257),
        layer_positions(model),
        [torch.arange(5)],
        seed=0,
        batch_size=4,
        description=None,
    )
    again = HeadCell.of_arrays(cell.arrays())
    assert again.loss == cell.loss
    assert again.arrays().keys() == cell.arrays().keys()
    for name, array in cell.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    assert again.n_layers == cell.n_layers == 2
    assert [*again.scores] == [*cell.scores] == [0, 1]
    for layer, one in again.scores.items():
        assert one.metrics == cell.scores[layer].metrics


def test_what_cannot_be_ablated_is_known_before_anything_is_written(tmp_path: Path) -> None:
    for changes in ({"ablate": "rotery"}, {"ablate": "alibi"}, {"ablate_layers": (7,)}):
        with pytest.raises(UserError):
            run(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_measurements_of_another_kind_of_run_are_one_sentence(
    found: HeadClassification, tmp_path: Path
) -> None:
    copied = shutil.copytree(found.folder, tmp_path / found.folder.name)
    other = found.measurements[found.measurements["probe"] == "heads"]  # without any labels
    write_table(other, copied / "measurements.parquet")
    with pytest.raises(UserError, match=r"do not belong together .*: delete the run folder"):
        load_run(copied).write_report()


def test_files_of_another_run_are_one_sentence(found: HeadClassification, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(found.folder, tmp_path / "copy"))
    write_arrays({"other": np.zeros(3)}, copy / "arrays.safetensors")
    with pytest.raises(UserError, match="do not belong together"):
        load_run(copy).write_report()


@pytest.mark.parametrize("name", ["model", "ablation", "notes", "prompts", "own_rules", "config"])
def test_an_info_with_values_of_other_types_is_one_sentence(
    name: str, found: HeadClassification, tmp_path: Path
) -> None:
    copied = shutil.copytree(found.folder, tmp_path / found.folder.name)
    info = json.loads((copied / "info.json").read_text())
    (copied / "info.json").write_text(json.dumps(info | {name: 3}))
    with pytest.raises(UserError, match=rf"info\.json is damaged at '{name}': delete .*info\.json"):
        load_run(copied)


def test_finished_runs_are_read_back(found: HeadClassification, tmp_path: Path) -> None:
    again = load_run(found.folder)
    assert isinstance(again, HeadClassification)
    assert again.headline == found.headline
    pd.testing.assert_frame_equal(again.heads, found.heads)
    with pytest.raises(UserError, match="holds no finished run"):
        load_run(tmp_path)
    copy = Path(shutil.copytree(found.folder, tmp_path / "copy"))
    info = json.loads((copy / "info.json").read_text())
    (copy / "info.json").write_text(json.dumps(info | {"experiment": "haeds"}))
    with pytest.raises(UserError, match="did you mean 'heads'"):
        load_run(copy)


def test_the_page_and_the_plain_table(found: HeadClassification) -> None:
    page = found.write_report().read_text()
    assert "need positions?</h1>" in page
    assert found._repr_html_().startswith("<iframe")
    lines = found.markdown().splitlines()
    assert len(lines) == 2 + N_HEADS
    assert lines[0].startswith("| layer | head | label |")


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "alibi", "t5"])
def test_every_encoding_of_ours_is_classified_and_ablated(positions: str, tmp_path: Path) -> None:
    transformer = dataclasses.replace(CONFIG.transformer, positions=positions)
    found = run(tmp_path, transformer=transformer, ablate="all", prompts=("one two", "three"))
    assert found.info["ablation"] == "all:none"
    assert found.heads["ablated_label"].notna().all()
    assert found.arrays["pattern/intact/0"].shape == (2, 4, 8, 8)  # a begin token and 7 bytes
    assert "frequency/query_norm" not in found.arrays


def test_a_model_without_positions_is_classified_as_it_is(tmp_path: Path) -> None:
    transformer = dataclasses.replace(CONFIG.transformer, positions="none")
    plain = run(tmp_path, transformer=transformer, ablate=None, random_init=True)
    assert plain.info["ablation"] is None
    scores = plain.measurements[plain.measurements["probe"] == "heads"]
    # Two draws of untrained weights: the random-init variant is another one.
    assert set(scores["variant"]) == {"random-init", "random-init, draw 1"}
    by_variant = scores.pivot_table("value", ["layer", "head", "metric"], "variant")
    assert (by_variant["random-init"] != by_variant["random-init, draw 1"]).mean() > 0.8
    np.testing.assert_array_equal(
        plain.heads.set_index(["layer", "head"])["previous_token"],
        by_variant.xs("previous_token", level="metric")["random-init"],
    )
    copies = by_variant.xs("repeated_token", level="metric")
    # Copies of one token look alike to a first layer without positions.
    assert (copies.loc[0] < 1e-6).all().all()
    with pytest.raises(UserError, match="no positional encoding: there is nothing to take away"):
        run(tmp_path, transformer=transformer, ablate="all")


def test_a_single_head_is_held_against_no_untrained_one(tmp_path: Path) -> None:
    transformer = dataclasses.replace(CONFIG.transformer, n_layers=1, n_heads=1)
    alone = run(tmp_path, transformer=transformer)
    assert len(alone.heads) == 1
    assert alone.heads["p_random_init"].isna().all()
    assert "The model has one head, which has no spread" in alone.info["notes"][0]


def test_a_pretrained_model(tmp_path: Path) -> None:
    folder = save_folder(tiny_gemma3(), tmp_path / "gemma")
    text = tmp_path / "text.txt"
    text.write_text(words(3000))
    found = run(tmp_path, model=str(folder), text=str(text), ablate="rotary", lift_window=True)
    assert "base" in found.info["positions"]
    assert len(found.heads) == 3 * 4
    radians = found.arrays["frequency/radians_per_token"]
    assert radians.shape == (3, 4)
    assert (np.diff(radians, axis=1) < 0).all()  # highest first
    high = found.measurements[found.measurements["metric"] == "high_frequency_share"]
    assert len(high) == 12 * 4
    with pytest.raises(UserError, match="has no learned positions: give rotary, which it has"):
        run(tmp_path, model=str(folder), text=str(text), ablate="learned")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ablate": "rotery"}, "did you mean 'rotary'"),
        ({"ablate_layers": (5,)}, "no layer 5"),
        ({"ablate_heads": (9,)}, "no head 9"),
        ({"prompts": ("x" * 50,)}, "has 51 tokens: write one of 2 to 40"),
        ({"prompts": ("",)}, "each of a letter or more"),
        ({"prompts": ("\udcff bad",)}, "not valid Unicode"),
        ({"dtype": "float16"}, "for pretrained models"),
        ({"dtype": "flaot32"}, "did you mean 'float32'"),
        ({"ablate": None, "lift_window": True}, "without ablate"),
        ({"n_sequences": 8}, "use at least 16"),
        ({"seq_len": 12}, "use at least 24"),
        ({"seq_len": 400}, "with a context of 40 tokens: add --seq-len 40"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    found: HeadClassification, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(
            tmp_path, **{"model": str(found.folder.parent / found.info["trained_model"]), **changes}
        )


def random_tokens(vocabulary: int) -> HeadTokens:
    """Every kind of tokens, for a model that has no tokenizer."""
    ids = torch.arange(vocabulary)
    uniform, repeated, copies = (
        kind(ids, None) for kind in (UniformSource, RepeatedSource, CopiesSource)
    )

    def draw(source: UniformSource, n: int, seed: int) -> torch.Tensor:
        return source.sequences(n, 24, begin_token=False, split="fit", seed=seed)

    return HeadTokens(
        text=draw(uniform, 4, 0),
        text_before=draw(uniform, 4, 5),
        repeated=draw(repeated, 4, 1),
        copies=draw(copies, 4, 2),
        alphabet_fit=draw(uniform, 4, 3),
        alphabet_held_out=draw(uniform, 4, 4),
        start=0,
        period=12,
    )


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        *((family, False) for family in ("rotary", "alibi", "llama", "gptj", "t5", "bloom")),
        *(("falcon_alibi", False), ("gemma3", True), ("smollm3", False)),
    ],
)
def test_a_layer_is_judged_with_it_alone_ablated(family: str, windows: bool) -> None:
    if family in ("rotary", "alibi"):
        own = dataclasses.replace(CONFIG.transformer, init_scale=0.3, positions=family)
        model: HookedModel = HookedTransformer(own)
    else:
        model = bridged_model(family)
    positions, tokens = layer_positions(model), random_tokens(model.cfg.d_vocab)
    read = partial(head_cells.read_cell, model, tokens, seed=0, batch_size=3, losses=False)
    ablation = Ablation("all", lift_window=windows)
    undisturbed, cell = read(positions), read(positions, alone=ablation)
    text = [cell.scores[0].column(of) for of in (*FEEDS["text"], *FEEDS["repeated"])]
    changed = False
    for at, intact, again, found in zip(
        positions,
        undisturbed.scores.values(),
        cell.scores.values(),
        cell.alone.values(),
        strict=True,
    ):
        np.testing.assert_array_equal(again.value, intact.value)
        expected = intact
        if at.encoding != "none":
            lift = windows and at.window is not None
            seen = [dataclasses.replace(o, window=None) if lift else o for o in positions]
            with ablate_positions(model, "all", layers=[at.layer], lift_window=lift):
                # A whole pass of its own for each layer.
                expected = read(seen).scores[at.layer]
            changed |= bool(np.abs(expected.value - intact.value)[:, text].max() > 1e-5)
        np.testing.assert_array_equal(found.value[:, text], expected.value[:, text])
    assert changed


def test_the_ablation_of_a_layer_alone_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HookedTransformer(CONFIG.transformer)
    positions, tokens = layer_positions(model), random_tokens(257)
    monkeypatch.setattr(attention, "_hooked", lambda point, shared: shared)
    with pytest.raises(UserError, match=r"never reached blocks\.0\.attn\.hook_cos"):
        head_cells.read_cell(
            model, tokens, positions, seed=0, batch_size=4, alone=Ablation("rotary")
        )


@pytest.mark.parametrize("family", ["rotary", "gemma3", "gpt2"])
def test_labels_of_blocks_of_queries_are_those_of_whole_maps(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = dataclasses.replace(CONFIG.transformer, init_scale=0.3)
    model: HookedModel = HookedTransformer(own) if family == "rotary" else bridged_model(family)
    tokens, sizes = random_tokens(model.cfg.d_vocab), []

    def read(size: int | None) -> HeadCell:
        def block_size(*of: object) -> int | None:
            sizes.append(size)
            return size

        monkeypatch.setattr(streams, "block_size", block_size)
        positions = layer_positions(model)
        how: dict[str, Any] = {"prompts": [torch.arange(9)], "seed": 0, "batch_size": 3}
        return head_cells.read_cell(model, tokens, positions, alone=Ablation("all"), **how)

    whole, some = read(None), read(7)
    assert sizes.count(None) == sizes.count(7) > 0
    assert whole.arrays().keys() == some.arrays().keys()
    for name, array in whole.arrays().items():
        np.testing.assert_allclose(some.arrays()[name], array, atol=1e-4, err_msg=name)
    labels = [[found.label for found in label_heads(of.scores)] for of in (whole, some)]
    assert labels[0] == labels[1]


def test_tokens_beyond_the_context_are_said_or_refused() -> None:
    llama = bridged_model("llama")
    assert beyond_context(llama, 64) == ()
    (sentence,) = beyond_context(llama, 65)
    assert "65 tokens are longer than the context of 64 tokens" in sentence
    for family, context in (("gpt_neo", 64), ("opt", 64), ("gptj", 64), ("mpt", 2048)):
        told = rf"context of {context}, and it has no positions beyond"
        with pytest.raises(UserError, match=told):
            beyond_context(bridged_model(family), context + 1)


# Weights of a model with sinks sum to less than one, which has no labels.
WITHOUT_SINKS = [family for family in FAMILIES if family != "gpt_oss"]


@pytest.mark.parametrize("family", WITHOUT_SINKS)
def test_the_scores_that_are_read_make_the_pattern(family: str) -> None:
    model = bridged_model(family)
    tokens = torch.randint(4, model.cfg.d_vocab, (2, 12))
    site = head_cells._scores_site(model, tokens)
    assert (site == "hook_pattern") == (
        family in ("opt", "gpt_neo", "gptj", "llama4", "afmoe", "nanochat", "gemma4")
    )
    seen: dict[str, torch.Tensor] = {}

    def keep(activations: torch.Tensor, hook: Any, name: str) -> None:
        seen[name] = activations

    names = (f"blocks.0.attn.{site}", "blocks.0.attn.hook_pattern")
    with torch.no_grad(), model.hooks([(name, partial(keep, name=name)) for name in names]):
        run_trunk(model, tokens)
    scores, pattern = (seen[name] for name in names)
    # Some bridges show the scores before the mask.
    visible = torch.ones(12, 12).tril().bool()
    made = scores if site == "hook_pattern" else scores.where(visible, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(made, pattern, atol=1e-6, rtol=1e-4)


def test_scores_are_not_read_from_weights_that_float16_rounds_to_zero() -> None:
    model = bridged_model("gptj")
    model.original_model.half()
    tokens, layers = random_tokens(model.cfg.d_vocab), layer_positions(model)
    with pytest.raises(UserError, match=r"in float16 .*: read it in float32 or bfloat16"):
        head_cells.read_cell(model, tokens, layers, [], seed=0, batch_size=4)


@pytest.mark.parametrize("family", WITHOUT_SINKS)
def test_heads_of_every_family_can_be_read(family: str) -> None:
    model = bridged_model(family)
    positions = layer_positions(model)
    cell = head_cells.read_cell(
        model,
        random_tokens(model.cfg.d_vocab),
        positions,
        [],
        seed=0,
        batch_size=4,
        description=None,
    )
    for layer in cell.scores.values():
        assert np.isfinite(layer.value).all()
        assert layer.n.min() == 4
    rotary = [layer.layer for layer in positions if layer.encoding == "rotary"]
    assert bool(cell.frequencies) == bool(rotary)
    if rotary:
        read = np.isfinite(cell.frequencies["query_norm"])
        for layer in positions:
            n = (layer.rotary_dims or 0) // 2
            assert read[layer.layer, :, :n].all()
            assert not read[layer.layer, :, n:].any()


@pytest.mark.parametrize(
    ("family", "turned"),
    [
        *(("llama", (0, 4)), ("cohere", (0, 1)), ("gptj", (0, 1)), ("llama4", (0, 1))),
        *(("glm", (0, 1)), ("ernie4_5", (0, 1)), ("nanochat", (0, 4)), ("afmoe_norms", (0, 4))),
    ],
)
def test_a_frequency_is_read_where_the_family_turns_it(
    family: str, turned: tuple[int, int]
) -> None:
    model = bridged_model(family)
    queries = model.blocks[0].attn.q.original_component.weight
    with torch.no_grad():
        by_head = rearrange(queries, "(head d) d_model -> head d d_model", head=4)
        by_head[:, [d for d in range(8) if d not in turned]] = 0
    tokens, layers = random_tokens(model.cfg.d_vocab), layer_positions(model)
    cell = head_cells.read_cell(model, tokens, layers, [], seed=0, batch_size=4)
    first, *others = cell.frequencies["query_norm"][0].T
    assert (first > 0.01).all()
    assert np.abs(others).max() < 1e-6


@pytest.mark.parametrize(("family", "layer"), [("afmoe_norms", 0), ("olmo_hybrid", 3)])
def test_frequencies_are_read_after_norms_of_queries_and_keys(family: str, layer: int) -> None:
    model = bridged_model(family)
    norm = model.blocks[layer].attn.k_norm.original_component
    with torch.no_grad():
        # Of each head the first frequency alone is let through.
        norm.weight.copy_(torch.tensor([1.0, 0, 0, 0] * (len(norm.weight) // 4)))
    tokens, layers = random_tokens(model.cfg.d_vocab), layer_positions(model)
    cell = head_cells.read_cell(model, tokens, layers, [], seed=0, batch_size=4)
    first, *others = cell.frequencies["key_norm"][-1 if layer else 0].T
    assert (first > 0.01).all()
    assert np.abs(others).max() < 1e-6


@pytest.mark.parametrize(
    ("family", "changes", "attending"),
    [
        ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}, [1, 3]),
        ("granitemoehybrid", {"layer_types": ["full_attention", *["linear_attention"] * 3]}, [0]),
        ("olmo_hybrid", {}, [3]),
        ("qwen3_5", {}, [3]),
    ],
)
def test_heads_of_a_hybrid_are_those_of_its_attention(
    family: str, changes: dict[str, Any], attending: list[int], tmp_path: Path
) -> None:
    plain = plain_model(family, **changes)
    folder, text = save_folder(plain, tmp_path / "m"), tmp_path / "text.txt"
    text.write_text(words(3000))
    lm = ni.load(folder, text=str(text))
    tokens = lm.variant.sources[0].sequences(16, 40, begin_token=True, split="held_out", seed=0)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        shown = plain(tokens, output_attentions=True).attentions
    # transformers gives the weights of layers with attention, some families None or less of others.
    maps = [weights for weights in shown if weights is not None and weights.shape[-2:] == (40, 40)]
    assert len(maps) == len(attending)

    finished = run(tmp_path, model=str(folder), text=str(text), ablate=None)
    without = "The model has no attention, and so no heads, in layer"
    assert any(note.startswith(without) for note in finished.info["notes"])
    found = finished.heads
    assert found["layer"].unique().tolist() == attending
    for layer, weights in zip(attending, maps, strict=True):
        before = weights.diagonal(-1, -2, -1)[..., FIRST_QUERY - 1 :].mean(dim=(0, 2))
        own = found[found["layer"] == layer].sort_values("head")
        assert own["previous_token"].to_numpy() == pytest.approx(before.numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("llama4", "attends in chunks of 16 tokens"),
        ("gpt_oss", "heads of m have attention sinks in layers 0-1"),
    ],
)
def test_attention_without_labels_is_refused(family: str, said: str, tmp_path: Path) -> None:
    folder = save_folder(plain_model(family), tmp_path / "m")
    text = tmp_path / "text.txt"
    text.write_text(words(3000))
    with pytest.raises(UserError, match=said):
        run(tmp_path, model=str(folder), text=str(text), ablate=None)
    lm = ni.load(folder, text=str(text))
    for read in (lm.top_heads, lm.without_heads):
        with pytest.raises(UserError, match=said):
            read(seq_len=40, n_sequences=16)
