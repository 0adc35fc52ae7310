"""Dropping the positions of a tiny Llama: what is read, what is trained, a run that is killed."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import GPTJConfig, GPTJForCausalLM

from experiments.comparison.compare import compare
from experiments.drop import drop as drop_module
from experiments.drop import material as material_module
from experiments.drop.config import DropConfig
from experiments.drop.drop import _scaled_as_well, drop
from experiments.drop.material import Material, copied
from experiments.drop.passkeys import Passkeys, check_prompts_fit, drawn, right
from experiments.drop.result import Drop
from experiments.heads.classify import classify_heads
from experiments.results.drop import CONTROL, DROPPED, RECALIBRATED, Dropped, read_key, step_key
from experiments.results.measurements import INTACT
from experiments.runs.steps import Steps
from experiments.sweeps.runs import load_run
from experiments.variants.words import fields_of
from nope_interp.errors import UserError
from nope_interp.positions.layers import positions_in_words
from nope_interp.pretrained.dropped import drop_positions
from nope_interp.pretrained.load import load_plain, load_pretrained
from nope_interp.pretrained.scaled import SCALINGS, scaled_rotary
from nope_interp.pretrained.switched_off import rotary_modules
from nope_interp.tasks.text import python_documentation
from tests.byte_llama import byte_llama, byte_tokenizer
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.report.parsed_page import Page
from tests.huggingface import plain_model, save_folder

TRAINING = {"training.steps": 5, "training.batch_size": 2, "training.seq_len": 32}
TRAINING |= {"training.warmup": 1, "training.checkpoint_every": 2}
READ = {"read_lengths": (128, 256), "n_held_out": 8, "n_passkeys": 2, "n_depths": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside it, a short text."""
    models = tmp_path_factory.mktemp("models")
    (models / "text.txt").write_text(python_documentation()[:40_000])
    return byte_llama(models / "llama")


def text(folder: Path) -> dict[str, str]:
    return {"text": str(folder.parent / "text.txt")}


def run(folder: Path, out: Path, **words: Any) -> Drop:
    return drop(
        str(folder), out=out, show_progress=False, **{**TRAINING, **READ, **text(folder), **words}
    )


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Drop:
    return run(folder, tmp_path_factory.mktemp("runs"))


# ---------------------------------------------------------------- passkeys


def test_a_prompt_holds_its_key_at_its_depth() -> None:
    tokenizer = byte_tokenizer()

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    [prompt] = drawn(encode, 1, seed=3)
    filler = [5] * 300
    for depth, at in ((0.0, 1), (1.0, 200 - prompt.n_tokens)):
        tokens = prompt.within(filler, 200, depth, [0])
        assert len(tokens) == 200
        assert tokens[0] == 0
        assert tokens[at : at + len(prompt.given)] == prompt.given
        text = tokenizer.decode(tokens[1:])
        key = tokenizer.decode(prompt.key)
        assert text.endswith(f"What is the pass key? The pass key is {key}")
        assert text.count(key) == 3
        assert key.isdigit()
        assert len(key) == 5


@pytest.mark.parametrize("begin", ["", "▁"])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_key_is_the_tokens_that_stand_behind_its_question(begin: str, size: int) -> None:
    """Some tokenizers put a space before any text; some have tokens of several letters."""

    def encode(text: str) -> list[int]:
        parts = re.findall(rf"\s|[^\W\d]+|\d{{1,{size}}}|.", (begin + text).replace(" ", "▁"))
        return [crc32(part.encode()) for part in parts]

    for prompt in drawn(encode, 5, seed=1):
        keys = [key for key in range(10_000, 100_000) if encode(str(key))[-1] == prompt.key[-1]]
        said = "\nWhat is the pass key? The pass key is"
        [key] = [key for key in keys if encode(f"{said} {key}") == prompt.asked + prompt.key]
        assert prompt.given == encode(
            f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
        )
        # Nothing of it is known before the key is.
        assert len(prompt.key) == -(-5 // size)


def test_a_key_is_said_where_all_of_its_tokens_are() -> None:
    prompts = [Passkeys([1], [2], [3, 4]), Passkeys([1], [2], [3, 5, 6])]
    fillers = torch.full((2, 20), 9)

    def said(tokens: torch.Tensor, n_last: int) -> torch.Tensor:
        assert tokens.shape == (2, 12)
        assert n_last == 3
        return torch.tensor([[0, 3, 4], [3, 5, 0]])

    found = right(said, prompts, fillers, 12, 0.5, [])
    np.testing.assert_allclose(found, [[1, 1], [0, 2 / 3]])
    with pytest.raises(UserError, match="takes 6 tokens, but 5 are to be read"):
        check_prompts_fit(prompts, 5)


# ---------------------------------------------------------------- a run


def test_losses_are_of_the_same_tokens_at_every_length(folder: Path) -> None:
    config = DropConfig.from_dict({"model": str(folder), **READ, **TRAINING, **text(folder)})
    material = Material.of(config, byte_tokenizer(), (128, 256))
    short, long = material.sequences(128), material.sequences(256)
    assert torch.equal(short[:, 1:], long[:, -127:])
    assert material.n_scored == 16
    assert len({tuple(row) for row in long[:, -16:].tolist()}) == 8
    read = Path(text(folder)["text"]).read_text()
    tokens = torch.tensor(byte_tokenizer()(read, add_special_tokens=False).input_ids)
    n_trained = len(material.trained)
    assert torch.equal(material.trained, tokens[:n_trained])
    rest = tokens[n_trained:].unfold(0, 255, 1)
    assert all((rest == row).all(dim=1).any() for row in long[:, 1:])


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=60),
    st.lists(st.integers(0, 2), min_size=8, max_size=40),
    st.integers(1, 8),
)
def test_windows_whose_scored_tokens_are_copied_are_known(
    trained: list[int], held_out: list[int], n_scored: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(material_module, "_COPIED", run := 4)
        windows = torch.tensor(held_out).unfold(0, 8, 1)
        found = copied(windows, torch.tensor(trained), n_scored)
    run = min(run, len(trained))
    known = {tuple(trained[at : at + run]) for at in range(len(trained) - run + 1)}
    for window, again in zip(windows.tolist(), found.tolist(), strict=True):
        end = window[-max(n_scored, run) :]
        assert again == any(tuple(end[at : at + run]) in known for at in range(len(end) - run + 1))


def test_what_repeats_the_trained_text_is_not_read(folder: Path, tmp_path: Path) -> None:
    own = python_documentation()
    (tmp_path / "text.txt").write_text(own[:40_000] + own[:10_000] + own[60_000:70_000])
    words = {**READ, **TRAINING, "text": str(tmp_path / "text.txt")}
    config = DropConfig.from_dict({"model": str(folder), **words})
    material = Material.of(config, byte_tokenizer(), (128, 256))
    assert material.n_copied > 300
    trained = bytes(material.trained.byte().tolist())
    for row in material.held_out:
        assert bytes(row[-32:].byte().tolist()) not in trained
    (tmp_path / "text.txt").write_text(own[:6_000] * 10)
    with pytest.raises(UserError, match=r"has 0 of 8 windows .*, \d+ more share 32 in a row"):
        Material.of(config, byte_tokenizer(), (128, 256))


def test_chance_is_over_the_tokens_that_losses_are_over(folder: Path) -> None:
    words = {"model": str(folder), **READ, **TRAINING, **text(folder)}
    every, some = (
        Material.of(DropConfig.from_dict({**words, "vocabulary": of}), byte_tokenizer(), (128,))
        for of in ("all", "text")
    )
    assert some.vocabulary is not None
    # One of the tokens that are scored was not seen.
    missing = int(some.held_out[0, -1])
    some, every = (replace(of, trained=of.trained[of.trained != missing]) for of in (some, every))
    assert some.chance(257) == some.chance(10**6) < every.chance(257) < every.chance(10**6)
    counts = torch.bincount(some.trained[1:], minlength=257).double()
    kinds, n = int((counts > 0).sum()), int(counts.sum())
    unseen = len(some.vocabulary) - kinds
    assert unseen >= 1
    smoothed = torch.where(counts > 0, counts / (n + kinds), kinds / (n + kinds) / unseen)
    scored = some.held_out[:, -some.n_scored :]
    assert some.chance(257) == pytest.approx(float(-smoothed.log()[scored].mean()), abs=1e-6)


def test_every_variant_is_read_as_it_is(finished: Drop, folder: Path) -> None:
    config = DropConfig.from_dict({"model": str(folder), **READ, **TRAINING, **text(folder)})
    material = Material.of(config, byte_tokenizer(), (128, 256))
    table = finished.by_variant.set_index("variant")

    def loss(model: Any, length: int) -> float:
        """Of the last 16 tokens, by the plain model's own loss."""
        tokens = material.sequences(length)
        labels = torch.cat((torch.full_like(tokens[:, :-16], -100), tokens[:, -16:]), dim=1)
        with torch.no_grad():
            return float(model(tokens, labels=labels).loss)

    model, _, _ = load_plain(str(folder))
    assert table.loc[INTACT, "loss at 256"] == pytest.approx(loss(model, 256), abs=1e-5)
    with scaled_rotary(model, "YaRN", 128, 256):
        assert table.loc["YaRN", "loss at 256"] == pytest.approx(loss(model, 256), abs=1e-5)
    assert np.isnan(table.loc["YaRN", "loss at 128"])
    drop_positions(model)
    assert table.loc[DROPPED, "loss at 128"] == pytest.approx(loss(model, 128), abs=1e-5)
    for variant, name in ((RECALIBRATED, "model"), (CONTROL, "control")):
        kept, _, _ = load_plain(str(finished.folder / name))
        assert table.loc[variant, "loss at 256"] == pytest.approx(loss(kept, 256), abs=1e-5)
    assert list(table.index)[:4] == [INTACT, CONTROL, DROPPED, RECALIBRATED]
    steps, curve = finished.dropped.curve(RECALIBRATED)
    assert steps.tolist() == [0, 1, 2, 4, 5]
    assert curve[:, -1].mean() < curve[:, 0].mean()


def test_what_will_be_done_is_said_first_by_the_names_of_its_parts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []
    done: list[str] = []
    monkeypatch.setattr(Steps, "plan", lambda steps, weights, seconds: planned.extend(weights))
    monkeypatch.setattr(Steps, "done", lambda steps, title, kept=False: done.append(title))
    words = {**TRAINING, **READ, **text(folder), "training.steps": 2}
    drop(str(folder), out=tmp_path, show_progress=True, **words)
    # Losses at steps are read back when their training is over.
    assert len(planned) == len(set(planned)) > 10
    assert list(dict.fromkeys(done)) == planned


def test_the_model_is_an_ordinary_folder_without_positions(finished: Drop) -> None:
    loaded = load_pretrained(str(finished.model))
    assert positions_in_words(loaded.model) == "none"
    control = load_pretrained(str(finished.folder / "control"))
    assert positions_in_words(control.model) == "rotary"


@pytest.mark.slow
def test_compare_and_heads_read_what_drop_makes(
    finished: Drop, folder: Path, tmp_path: Path
) -> None:
    model, words = str(finished.model), {**text(folder), "seq_len": 24}
    few = {"n_fit": 40, "n_held_out": 24, "layers": (0,), "sites": ("resid_post",)}
    how: dict[str, Any] = {"out": tmp_path, "show_progress": False}
    compared = compare(model, uses="stream", variants=False, **few, **words, **how)
    assert compared.info["positions"] == "none"
    assert {row["positions"] for row in compared.info["layer_positions"]} == {"none"}
    # Five steps of training teach it nothing.
    assert compared.headline.startswith("This model does not surely beat a bigram guesser")
    labelled = classify_heads(model, n_sequences=16, **words, **how)
    assert labelled.info["positions"] == "No positional encoding in layers 0-1."
    assert len(labelled.heads) > 0


def test_the_table_the_page_and_the_headline(finished: Drop) -> None:
    rows = finished.measurements
    assert set(rows["positions"]) == {"intact", "rotary:none"}
    at = rows[(rows["variant"] == RECALIBRATED) & (rows["step"] == 5)]
    _, curve = finished.dropped.curve(RECALIBRATED)
    assert at["value"].item() == pytest.approx(curve[:, -1].mean())
    assert at["chance"].item() == pytest.approx(finished.info["chance"])
    assert rows["begin_token"].all()
    assert {figure.id for figure in finished.figures} == {"steps", "lengths", "passkeys"}
    page = Page((finished.folder / "report.html").read_text())
    [layers] = finished.info["layer_positions"]
    assert (layers["layers"], layers["positions"]) == ("0-1", "rotary")
    assert "Which layers have which positions" in " ".join(page.words)
    page.assert_asks_nothing_of_the_network()
    page.assert_lets_only_its_own_scripts_run()
    words = " ".join(" ".join(page.words).split())
    assert "Loss by length" in words
    assert "The context of the intact model is 128 tokens." in words
    assert len(finished.headline.split()) <= 25
    (_, longer, beyond) = finished.dropped.sentences
    assert re.match(r"At 128 tokens the recalibrated model, trained on \d+, has a loss of", longer)
    assert beyond.startswith("At 2 times the context the recalibrated model has a loss of ")
    again = load_run(finished.folder)
    assert isinstance(again, Drop)
    assert again.headline == finished.headline


def test_the_headlines_share_is_of_the_way_to_the_intact_model_trained_as_long() -> None:
    losses = {INTACT: 3.0, CONTROL: 2.0, DROPPED: 6.0, RECALIBRATED: 5.0}
    windows = np.linspace(-0.01, 0.01, 5)
    arrays = {read_key(v, 128, "losses"): loss + windows for v, loss in losses.items()}
    config = {"training": {"seq_len": 128}}
    said = Dropped(arrays, {"lengths": [128], "context": 128, "config": config}).headline
    assert "the drop costs 3.00 nats per token" in said
    assert said.endswith("goes 25% [25%, 25%] of the way to the intact model trained as long.")
    assert len(said.split()) <= 25


@pytest.mark.parametrize("dropped", [3.0, 4.0])
def test_no_share_is_told_of_a_way_to_a_model_that_training_harmed(dropped: float) -> None:
    """A rate so high that it harms the intact model, perhaps more than the drop does."""
    losses = {INTACT: 2.0, CONTROL: 3.5, DROPPED: dropped, RECALIBRATED: 3.4}
    windows = np.linspace(-0.01, 0.01, 5)
    arrays = {read_key(v, 128, "losses"): loss + windows for v, loss in losses.items()}
    arrays[step_key(RECALIBRATED, 7)] = losses[RECALIBRATED] + windows
    facts = {"lengths": [128], "context": 128, "config": {"training": {"seq_len": 128}}}
    found = Dropped(arrays, facts)
    assert found.brought_back is None
    said = f"from 2.00 to {dropped:.2f} nats per token; 7 steps of recalibration bring it to 3.40."
    assert said in found.headline
    assert found.sentences[0].endswith("trained as long on the same text has 3.50 nats per token.")
    assert found.sentences[1].startswith("Before it had 2.00: this training harms it")


@pytest.mark.parametrize(("trained", "told"), [(128, 128), (200, 128), (512, 512), (64, 512)])
def test_the_headline_is_of_the_length_trained_on_and_the_context_stands_beside_it(
    trained: int, told: int
) -> None:
    losses = {INTACT: 2.0, CONTROL: 2.0, DROPPED: 6.0, RECALIBRATED: 3.0}
    windows = np.linspace(-0.01, 0.01, 5)
    arrays = {read_key(v, 128, "losses"): loss + windows for v, loss in losses.items()}
    arrays |= {read_key(v, 512, "losses"): 2 * loss + windows for v, loss in losses.items()}
    config = {"training": {"seq_len": trained}}
    facts = {"lengths": [128, 512], "context": 512, "config": config}
    found = Dropped(arrays, facts)
    cost = {128: "4.00", 512: "8.00"}[told]
    assert found.headline.startswith(f"At {told} tokens the drop costs {cost} nats per token;")
    longer = [said for said in found.sentences if said.startswith("At 512 tokens")]
    assert bool(longer) == (trained < 512)
    assert all("a loss of 6.00, the intact one 4.00." in said for said in longer)


@pytest.mark.parametrize("killed_in", ["control", "model"])
def test_a_killed_run_goes_on_to_the_same_bits(
    killed_in: str, finished: Drop, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = drop_module._Run._watch, []

    def killed(self: Any, variant: str, model: Any, step: int) -> None:
        calls.append((variant, step))
        if (variant == CONTROL) == (killed_in == "control") and step == 4:
            raise RuntimeError("killed")
        real(self, variant, model, step)

    with monkeypatch.context() as patch:
        patch.setattr(drop_module._Run, "_watch", killed)
        with pytest.raises(RuntimeError, match="killed"):
            run(folder, tmp_path)
    resumed = run(folder, tmp_path)
    assert resumed.folder.name == finished.folder.name
    assert {path.name for path in resumed.folder.iterdir()} == {
        path.name for path in finished.folder.iterdir()
    }
    for name, array in finished.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array, err_msg=name)
    for name in ("model", "control"):
        kept, whole = (
            load_file(found.folder / name / "model.safetensors") for found in (resumed, finished)
        )
        assert all(torch.equal(kept[key], whole[key]) for key in whole)


def test_a_killed_run_of_a_model_whose_config_denies_its_positions_goes_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denying = byte_llama(tmp_path / "llama")
    config = json.loads((denying / "config.json").read_text())
    (denying / "config.json").write_text(json.dumps({**config, "use_rope": False}))
    how = {"positions": "rotary", "read_lengths": (64,), "n_passkeys": 0, **text(folder)}
    with monkeypatch.context() as patch:
        # It is called when the control is trained and kept.
        patch.setattr(drop_module, "drop_positions", None)
        with pytest.raises(TypeError):
            run(denying, tmp_path, **how)
    found = run(denying, tmp_path, **how)
    assert {CONTROL, RECALIBRATED} <= set(found.dropped.variants)


def test_a_run_over_the_texts_tokens_without_control_or_passkeys(
    folder: Path, tmp_path: Path
) -> None:
    found = run(
        folder,
        tmp_path,
        vocabulary="text",
        control=False,
        n_passkeys=0,
        read_lengths=(64,),
        trained=("self_attn",),
    )
    assert found.dropped.variants == [INTACT, DROPPED, RECALIBRATED]
    assert {figure.id for figure in found.figures} == {"steps", "lengths"}
    assert any("over the tokens that the text has" in note for note in found.info["notes"])
    assert any("No length is beyond the context" in note for note in found.info["notes"])
    before, after = (load_file(path / "model.safetensors") for path in (folder, found.model))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "self_attn" in name}


def test_a_model_that_accelerate_places_is_dropped_to_the_same_bits(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    words: dict[str, Any] = {"vocabulary": "text", "control": False, "n_passkeys": 0}
    words |= {"read_lengths": (64,)}
    placed = run(folder, tmp_path / "auto", device="auto", **words)
    plain = run(folder, tmp_path / "cpu", **words)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(placed.arrays[name], array, err_msg=name)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"read_lengths": (8,)}, "read_lengths are .8.: give lengths of at least 16"),
        ({"n_passkeys": 1}, "n_passkeys is 1: give 0, or 2"),
        ({"trained": ("attnn",)}, "no parameter's name holds 'attnn'"),
        ({"n_held_out": 100_000}, "the text is too short: what is held out has"),
        ({"read_lengths": (32, 64)}, "a prompt with a passkey takes 1.. tokens, but 32"),
        ({"training.seq_len": 400_000}, "the text is too short to recalibrate on"),
        ({"training.compile": True}, "training.compile is not for pretrained models"),
        ({"dtype": "bfloat16"}, "dtype means nothing to a drop: leave it out"),
        ({"vocabulary": "some"}, "unknown vocabulary 'some'"),
    ],
)
def test_nonsense_is_one_sentence(
    folder: Path, tmp_path: Path, words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        run(folder, tmp_path, **words)
    assert not [path for path in tmp_path.iterdir() if (path / "info.json").exists()]


def test_models_that_cannot_be_dropped_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w5 w6 " * 5000)
    gpt2 = save_folder(plain_model("gpt2"), tmp_path / "gpt2")
    with pytest.raises(UserError, match="has no rotary positions to drop"):
        run(gpt2, tmp_path / "runs")
    still = plain_model("smollm3", no_rope_layers=[0, 0])
    with pytest.raises(UserError, match="rotates queries and keys: there is nothing to drop"):
        run(save_folder(still, tmp_path / "still"), tmp_path / "runs")
    with pytest.raises(UserError, match="is a model of ours"):
        run(tmp_path / "model.safetensors", tmp_path / "runs")
    with pytest.raises(UserError, match="drop takes a pretrained model"):
        drop(out=tmp_path / "runs")
    with pytest.raises(UserError, match="leave the norm out"):
        run(save_folder(plain_model("gemma3"), tmp_path / "g"), tmp_path / "runs", qk_norm=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_command(folder: Path, tmp_path: Path) -> None:
    options = "--steps 2 --read-lengths 128 --n-held-out 8 --n-passkeys 0 --training.batch-size 2"
    words = [*options.split(), "--text", text(folder)["text"]]
    ran = nope_interp("drop", str(folder), *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "dropped and recalibrated" in ran.stdout
    assert "Model: runs/drop-llama-" in ran.stdout
    refused = nope_interp("drop", str(folder), "--steps", "0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--steps is 0" in refused.stderr
    (tmp_path / "short.txt").write_text("w5 w6 " * 40)
    refused = nope_interp("drop", str(folder), "--text", "short.txt", cwd=tmp_path)
    assert_one_sentence(refused, "the text is too short")


# ---------------------------------------------------------------- models that cannot read all


def test_lengths_are_those_that_a_model_has_positions_for(tmp_path: Path, folder: Path) -> None:
    """GPT-J looks its angles up in a table of its context's length."""
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4, "n_positions": 128}
    torch.manual_seed(0)
    model = GPTJForCausalLM(GPTJConfig(vocab_size=257, bos_token_id=0, eos_token_id=None, **sizes))
    model.save_pretrained(tmp_path / "gptj")
    byte_tokenizer().save_pretrained(tmp_path / "gptj")
    how = {"n_passkeys": 0, **text(folder)}
    found = run(tmp_path / "gptj", tmp_path, **how, read_lengths=None)
    assert found.info["lengths"] == [64, 128]
    for longer in ({"read_lengths": (64, 129)}, {"training.seq_len": 129, "read_lengths": (64,)}):
        with pytest.raises(UserError, match=r"129 tokens are longer .* context of 128, and it has"):
            run(tmp_path / "gptj", tmp_path, **how, **longer)
    with pytest.raises(
        UserError, match=r"context is 256: .* has positions for 128, so give at most that"
    ):
        run(tmp_path / "gptj", tmp_path, **how, read_lengths=None, context=256)


def test_a_mixtral_without_a_head_size_is_scaled() -> None:
    model = plain_model("mixtral")
    assert model.config.head_dim is None
    tokens = torch.arange(20)[None] + 4
    with torch.no_grad():
        own = model(tokens).logits
        for scaling in SCALINGS:
            with scaled_rotary(model, scaling, 16, 64):
                assert not torch.equal(model(tokens).logits, own)
        assert torch.equal(model(tokens).logits, own)
    assert model.config.head_dim is None


def test_a_model_whose_positions_are_scaled_already_is_told_of(
    tmp_path: Path, folder: Path
) -> None:
    of_yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0}
    scaled = byte_llama(
        tmp_path / "scaled", rope_parameters={**of_yarn, "original_max_position_embeddings": 64}
    )
    few = {"n_passkeys": 0, "control": False, "training.steps": 1, **text(folder)}
    found = run(scaled, tmp_path, **few, read_lengths=(128, 256))
    assert not {*found.dropped.variants} & {*SCALINGS}
    told = [note for note in found.info["notes"] if "not scaled further" in note]
    assert len(told) == 1
    within = run(scaled, tmp_path, **few, read_lengths=(64, 128))
    assert not any("not scaled further" in note for note in within.info["notes"])


@pytest.mark.parametrize("family", ["llama", "phi3", "glm", "gemma3"])
def test_scaled_frequencies_are_those_of_the_papers(family: str) -> None:
    """From a context of 64 to 256, whatever a config says of its own: Phi 3's of 4096."""
    model = plain_model(family)
    rope = model.config.rope_parameters
    base = rope.get("full_attention", rope)["rope_theta"]

    def scaled(scaling: str) -> torch.Tensor:
        with scaled_rotary(model, scaling, 64, 256):
            rotation = rotary_modules(model)[0].rotary_emb
            found: torch.Tensor = dict(rotation.named_buffers())[name].clone()
            return found

    buffers = dict(rotary_modules(model)[0].rotary_emb.named_buffers())
    name = "full_attention_inv_freq" if "full_attention_inv_freq" in buffers else "inv_freq"
    own = buffers[name]
    turned, number = 2 * len(own), torch.arange(len(own))
    torch.testing.assert_close(scaled("position interpolation"), own / 4)
    raised = (base * 4 ** (turned / (turned - 2))) ** (-2 * number / turned)
    torch.testing.assert_close(scaled("NTK"), raised)

    def where(turns: float) -> float:
        return turned * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(where(32)), 0), min(math.ceil(where(1)), turned - 1)
    interpolated = ((number - low) / (high - low)).clamp(0, 1)
    torch.testing.assert_close(scaled("YaRN"), own * (1 - interpolated + interpolated / 4))


def test_tokens_that_a_model_does_not_know_are_refused(tmp_path: Path, folder: Path) -> None:
    small = byte_llama(tmp_path / "small", vocab_size=100)
    with pytest.raises(UserError, match=r"gives the token \d+, but the model knows 0 to 99"):
        drop(str(small), out=tmp_path, show_progress=False, **{**TRAINING, **READ, **text(folder)})


def test_what_cannot_be_trained_is_told_before_anything_is_measured(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_module, "seconds_a_sequence", None)
    words = {**TRAINING, **READ, **text(folder), "trained": ("nothing",)}
    with pytest.raises(UserError, match="no parameter's name holds 'nothing'"):
        drop(str(folder), out=tmp_path, show_progress=True, **words)


def test_its_help_promises_pretrained_models_alone() -> None:
    said = {word: fields_of(DropConfig)[word].help for word in ("model", "text")}
    assert "pretrained" in said["model"]
    assert "ours" not in said["model"]
    assert "Without a model" not in said["text"]


def test_what_a_rotation_scales_is_told_too() -> None:
    """By YaRN's 0.1 log(factor) + 1 (Peng et al. 2023), with a factor of 4."""
    (told,) = _scaled_as_well(plain_model("llama_yarn"))
    assert f" {0.1 * math.log(4) + 1:.3g} times as long" in told
    assert _scaled_as_well(plain_model("llama")) == []
