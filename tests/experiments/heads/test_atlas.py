"""Several models' heads side by side: their own runs, one table, one page."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.cli.tables import of_atlas
from experiments.heads import classify
from experiments.heads.atlas import HeadAtlas, heads_atlas
from experiments.heads.config import HeadsConfig
from experiments.heads.result import HeadClassification
from experiments.report.paper.findings import of_figure
from experiments.results import atlas as tables
from experiments.results.measurements import table
from experiments.sweeps.runs import load_run
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from tests import typecheck
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.report.parsed_page import Page
from tests.huggingface import plain_model, save_folder, words

FAMILIES = ("llama", "gpt2")
SMALL = ("--seq-len", "24", "--sequences", "16", "--ablate", "all", "--text", "text.txt")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("atlas")
    for family in FAMILIES:
        save_folder(plain_model(family), folder / family)
    (folder / "text.txt").write_text(words(3000))
    return folder


@pytest.fixture(scope="module")
def shown(place: Path) -> dict[str, object]:
    run = nope_interp("heads", *FAMILIES, *SMALL, "--quiet", "--json", cwd=place)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_every_model_is_counted_as_in_its_own_run(place: Path, shown: dict[str, object]) -> None:
    atlas = load_run(place / Path(str(shown["report"])).parent)
    assert isinstance(atlas, HeadAtlas)
    assert json.loads(atlas.counts.to_json(orient="records")) == shown["counts"]
    for family in FAMILIES:
        own = load_run(atlas.folder.parent / atlas.info["reports"][family])
        assert isinstance(own, HeadClassification)
        expected = own.heads["label"].value_counts()
        counted = atlas.counts[atlas.counts["model"] == family].set_index("label")
        assert counted["heads"].to_dict() == expected.to_dict()
        assert counted["share"].sum() == pytest.approx(1)
        assert (counted[list(tables.DEPTHS)].sum(axis=1) == counted["heads"]).all()
        kept = own.heads[own.heads["label"] == own.heads["ablated_label"]]["label"].value_counts()
        assert counted["keep it ablated"][lambda n: n > 0].to_dict() == kept.to_dict()
        assert (place / "runs" / own.folder.name / "report.html").is_file()
    assert atlas.headline.startswith("Of 2 models, ")


@pytest.mark.slow
def test_the_shipped_model_stands_beside_others(place: Path) -> None:
    """Under the name that its own page has; no other length, at which it would be trained anew."""
    save_folder(plain_model("gpt2", n_positions=128), place / "longer")
    small = ("--sequences", "16", "--quick", "--quiet", "--json")
    run = nope_interp("heads", "none", "longer", *small, cwd=place)
    assert run.returncode == 0, run.stderr
    atlas = load_run(place / Path(json.loads(run.stdout)["report"]).parent)
    assert isinstance(atlas, HeadAtlas)
    (name,) = set(atlas.info["reports"]) - {"longer"}
    shipped = load_run(atlas.folder.parent / atlas.info["reports"][name])
    assert isinstance(shipped, HeadClassification)
    assert shipped.info["config"]["model"] is None
    assert shipped.info["model"] == name
    (weights,) = (place / "runs").glob("train-*/*.safetensors")
    assert weights.read_bytes() == EMBEDDED_MODEL.read_bytes()
    counted = atlas.counts[atlas.counts["model"] == name]["heads"]
    assert counted.sum() == len(shipped.heads)


def test_the_page_names_each_model_and_leads_to_its_own(
    place: Path, shown: dict[str, object]
) -> None:
    file = place / str(shown["report"])
    text = file.read_text(encoding="utf-8")
    Page(text).assert_lets_only_its_own_scripts_run()
    folders = load_run(file.parent).info["reports"]
    for family in FAMILIES:
        assert f'<a href="../{folders[family]}/report.html">{family}</a>' in text
        assert (file.parent / f"../{folders[family]}/report.html").is_file()


def test_models_that_were_read_are_not_read_again(place: Path, shown: dict[str, object]) -> None:
    before = {path: path.stat().st_mtime_ns for path in place.glob("runs/*/measurements.parquet")}
    command = load_run((place / str(shown["report"])).parent).info["command"].split()
    assert command[:2] == ["nope-interp", "heads"]
    # As the page says it, given in the atlas's folder.
    there = (place / str(shown["report"])).parent
    out = ("--out", "..", "--quiet", "--json")
    again = nope_interp(*command[1:], *out, cwd=there)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["counts"] == shown["counts"]
    after = {path: path.stat().st_mtime_ns for path in place.glob("runs/*/measurements.parquet")}
    assert {path: after[path] for path in before} == before


def test_a_model_twice_is_refused(place: Path) -> None:
    run = nope_interp("heads", "llama", "llama", *SMALL, "--quiet", cwd=place)
    assert_one_sentence(run, "give two or more, each once")


def test_models_may_be_paths(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [place / family for family in FAMILIES]
    small: dict[str, Any] = {"seq_len": 24, "sequences": 16, "text": place / "text.txt"}
    atlas = heads_atlas(models, quick=True, out=tmp_path, show_progress=False, **small)
    assert set(atlas.measurements["model"]) == set(FAMILIES)
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match="give a list of two or more"):
        heads_atlas(models[0])  # type: ignore[arg-type]


def own_model(path: Path, positions: Any) -> None:
    config = TransformerConfig(1, 16, 2, d_vocab=257, n_ctx=24, positions=positions)
    save_model(HookedTransformer(config), path, task="text")


def test_of_a_model_without_positions_all_take_away_nothing(tmp_path: Path) -> None:
    models = [str(tmp_path / f"{positions}.safetensors") for positions in ("none", "rotary")]
    for path in models:
        own_model(Path(path), Path(path).stem)
    asked = HeadsConfig(ablate="all", seq_len=24, n_sequences=16, quick=True)
    atlas = heads_atlas(models, asked, out=tmp_path / "runs", show_progress=False)
    assert atlas.info["ablations"] == {"none.safetensors": None, "rotary.safetensors": "all:none"}
    assert atlas.headline.startswith("1 of 2 models has positions: ")
    assert "none.safetensors has no positions to take away" in atlas.info["notes"][0]
    assert pd.isna(atlas.models["keep it ablated"]).tolist() == [True, False]
    table = of_atlas(atlas.models)
    assert "–" in [str(cell) for column in table.columns for cell in column.cells]
    page = atlas.html()
    assert "&lt;NA&gt;" not in page
    # Numbers stand to the right under headers that do, a dash in place of one too.
    for name in ("heads", "share", *tables.DEPTHS, "keep it ablated", "positional"):
        assert f'<th scope="col" class="num">{name}</th>' in page
    assert '<th scope="col">label</th>' in page
    assert '<td class="num">–</td><td class="num">–</td></tr>' in page
    # Its command asks for the ablation again, though the first model has none.
    config = json.loads((atlas.folder / atlas.info["command"].split()[-1]).read_text())
    assert config["config"]["ablate"] == "all"


def test_positions_that_no_model_has_are_not_taken_away_in_silence(tmp_path: Path) -> None:
    models = [str(tmp_path / f"{name}.safetensors") for name in ("one", "another")]
    for path in models:
        own_model(Path(path), "none")
    asked = HeadsConfig(seq_len=24, n_sequences=16, quick=True)
    out: dict[str, Any] = {"out": tmp_path / "runs", "show_progress": False}
    refused = "none of these models has positions to take away: leave --ablate out"
    with pytest.raises(UserError, match=refused):
        heads_atlas(models, asked, ablate="all", **out)
    assert not (tmp_path / "runs").exists()
    # Where nothing is to be taken away, nothing is said of it.
    notes = " ".join(heads_atlas(models, asked, **out).info["notes"])
    assert "positions to take away" not in notes


def test_what_one_model_lacks_is_told_before_any_is_read(tmp_path: Path) -> None:
    models = [str(tmp_path / f"{positions}.safetensors") for positions in ("rotary", "none")]
    for path in models:
        own_model(Path(path), Path(path).stem)
    asked = HeadsConfig(ablate="rotary", seq_len=24, n_sequences=16, quick=True)
    out: dict[str, Any] = {"out": tmp_path / "runs", "show_progress": False}
    cause = r"cannot be read under 'rotary' \(the model has no positional encoding\)"
    for other, culprit in (
        (models[1], r"/none\.safetensors"),
        ("none", "^the shipped model"),
    ):
        with pytest.raises(UserError, match=f"{culprit} {cause}: leave this model out.$") as told:
            heads_atlas([models[0], other], asked, **out)
        assert len(str(told.value).split()) <= 25
    with pytest.raises(UserError, match=f"^the model trained here {cause}"):
        heads_atlas([models[0], "none"], asked, init="xavier_normal", **out)
    with pytest.raises(UserError, match=r"/rotary\.safetensors cannot .* \(.* no layer 3\): leave"):
        heads_atlas(models, asked, ablate_layers=(3,), **out)
    intact = HeadsConfig(seq_len=24, n_sequences=16, quick=True)
    with pytest.raises(UserError, match=r"there is no GGUF file '/missing\.gguf': check the path"):
        heads_atlas([models[0], "/missing.gguf"], intact, **out)
    assert not (tmp_path / "runs").exists()


def test_a_model_whose_family_is_unknown_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rotary.safetensors"
    own_model(path, "rotary")

    def unknown(model: HookedModel) -> None:
        raise UserError("where a 'new' model keeps its positions is not known here: choose a known")

    monkeypatch.setattr(classify, "layer_positions", unknown)
    config = HeadsConfig(model=str(path), ablate="all", seq_len=24)
    with pytest.raises(UserError, match=r"/rotary\.safetensors .* \(where .* here\): leave this"):
        classify.without_what_is_not_there(config, tmp_path, "cpu")


def test_depth_is_the_third_of_the_layers_that_a_head_stands_in() -> None:
    labels = ["induction", "none", "induction", "induction", "local", "none"]
    rows = [
        {
            "experiment": "heads",
            "model": "m",
            "variant": "pretrained",
            "positions": "intact",
            "begin_token": False,
            "seed": 0,
            "n": 0,
            "layer": layer,
            "head": 0,
            "probe": "label",
            "metric": label,
            "value": 1.0,
        }
        for layer, label in enumerate(labels)
    ]
    measured = table(rows)
    heads = tables.all_heads(measured, {"m": None})
    assert heads["depth"].tolist() == ["early", "early", "middle", "middle", "late", "late"]
    counts = tables.counts(heads).set_index("label")
    assert counts.loc["induction", list(tables.DEPTHS)].tolist() == [1, 2, 0]
    assert isinstance(tables.headline(heads, {"m": None}), str)
    without = heads.assign(label="none")
    for ablations, whose in (
        ({"m": None, "k": None}, "Of 2 models,"),
        ({"m": "rotary:none", "k": None}, "1 of 2 models has positions:"),
    ):
        said = tables.headline(without, ablations)
        assert said == f"{whose} none of the 6 heads has a label."
    assert pd.isna(heads["ablated_label"]).all()
    assert "keep it ablated" not in counts


def _heads(label: str, ablated: str) -> pd.DataFrame:
    same = {"model": "m", "label": label, "ablated_label": ablated, "dependence": None}
    return pd.DataFrame([same | {"depth": depth} for depth in tables.DEPTHS])


def test_labels_that_heads_have_only_without_positions_are_drawn() -> None:
    by_label, by_depth = tables.figures(_heads("local", "content"))
    assert by_label.ticks == ("local", "content")
    drawn = [[*series.y] for panel in by_label.panels for series in panel.series]
    assert drawn == [[1.0, 0.0], [0.0, 1.0]]
    # Where heads stand is told of the labels that they have with positions.
    (panel,) = by_depth.panels
    assert [(series.name, [*series.y]) for series in panel.series] == [("local", [1.0] * 3)]


def test_heads_without_labels_stand_nowhere(tmp_path: Path) -> None:
    (by_label,) = tables.figures(_heads("none", "none"))
    assert of_figure(by_label).save(tmp_path / "labels.svg").is_file()
