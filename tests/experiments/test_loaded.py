"""A loaded model answers the two commonest questions with DataFrames."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import nope_interp as ni
from experiments.codes import questions
from experiments.comparison.cells import conditions_of
from experiments.comparison.config import CompareConfig
from experiments.comparison.result import Comparison
from experiments.loaded import LoadedModel
from experiments.variants.config import default_transformer
from nope_interp.errors import UserError
from nope_interp.models.checkpoints import save_model
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.answers import AnswerTask, ExampleSource
from nope_interp.tasks.names import TASK_NAMES
from nope_interp.tasks.registry import make_task
from tests import typecheck
from tests.huggingface import plain_model, save_folder, tiny_gpt2, words
from tests.paths import ROOT


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("gpt2")
    save_folder(tiny_gpt2(), folder)
    text = folder / "text.txt"
    text.write_text(words(20_000))
    return ni.load(folder, text=str(text))


def test_position_is_read_with_and_without_the_encoding(gpt2: LoadedModel) -> None:
    found = gpt2.probe_positions(ablate="learned", seq_len=16, n_fit=64, n_held_out=16)
    n_layers = gpt2.model.cfg.n_layers
    assert found["positions"].tolist().count("intact") == 1 + n_layers
    assert found["positions"].nunique() == 2
    intact, ablated = found.groupby("positions", sort=False).first().to_dict("records")
    # A table of positions stands in the embedding, and is gone without it.
    assert intact["ci_high"] < ablated["ci_low"]
    assert intact["ci_high"] < intact["chance"] < ablated["ci_high"]
    assert (found["ci_low"] <= found["value"]).all()


def test_the_strongest_heads_come_first() -> None:
    lm = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    found = lm.top_heads("previous_token", 3, n_sequences=16)
    assert found["value"].is_monotonic_decreasing
    every = lm.top_heads("previous_token", 100, n_sequences=16)
    assert len(every) == lm.model.cfg.n_layers * lm.model.cfg.n_heads
    assert every.head(3).equals(found)
    assert len(repr(lm).splitlines()) <= 10


def test_a_model_of_a_task_is_probed_on_single_examples_as_it_was_trained() -> None:
    lm = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    source, seen = lm.variant.sources[0], []
    with lm.model.embed.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        lm.probe_positions(n_fit=64, n_held_out=16)
    assert isinstance(source, ExampleSource)
    tokens, tokenizer = torch.cat(seen), source.task.tokenizer
    assert (tokens[:, 0] == tokenizer.begin_id).all()
    assert (tokens[:, -1] == tokenizer.end_id).all()
    assert (tokens == tokenizer.end_id).sum(dim=1).eq(1).all()
    # So it is in a comparison, whatever the tokens are.
    assert [one.begin_token for one in conditions_of(lm.variant)] == [True, True]
    config = CompareConfig(task="copy-rsc", lengths=(2, 8), seq_len=36, n_fit=8, n_held_out=8)
    for condition in conditions_of(lm.variant):
        assert condition.split(config).fit.shape[1] == tokens.shape[1]


def test_a_prompt_is_read_as_the_model_reads_it(gpt2: LoadedModel) -> None:
    prompt = "one two three four five six"
    found = gpt2.read(prompt)
    with torch.no_grad():
        expected = gpt2.model(found.ids)[0].log_softmax(-1)
    own = -expected[torch.arange(found.ids.shape[1] - 1), found.ids[0, 1:]]
    assert found.surprisal["surprisal"].tolist() == pytest.approx(own.tolist(), abs=1e-5)
    assert found.surprisal["token"].tolist() == gpt2.variant.token_strings(found.ids[0, 1:])
    assert found.next_tokens["id"][0] == int(expected[-1].argmax())
    likeliest = expected[-1].exp().topk(10).values
    assert found.next_tokens["probability"].tolist() == pytest.approx(likeliest.tolist(), abs=1e-6)
    assert f"{own[0]:.4f}" in repr(found)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [("", "give one of 2 to"), ("one " * 5000, "tokens: give one of 2 to")],
)
def test_a_prompt_that_cannot_be_read_is_one_sentence(
    gpt2: LoadedModel, prompt: str, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        gpt2.read(prompt)


def test_heads_attend_otherwise_while_a_context_is_open(gpt2: LoadedModel) -> None:
    ids = gpt2.read("one two three four five six").ids
    n = ids.shape[1]
    own = torch.eye(n)
    name = "blocks.1.attn.hook_{}".format
    before = gpt2.model.run_with_cache(ids)[1]
    with gpt2.change_heads({(1, 0): "uniform", (1, 1): own, (0, 1): "ablated"}) as changed:
        after = gpt2.model.run_with_cache(ids)[1]
        changed.verify()
    expected = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
    torch.testing.assert_close(after[name("pattern")][0, 0], expected)
    assert torch.equal(after[name("pattern")][0, 1], own)
    values = before["blocks.0.attn.hook_z"].flatten(2)
    kept = after["blocks.0.attn.hook_z"].flatten(2)
    d_head = values.shape[-1] // gpt2.model.cfg.n_heads
    assert torch.equal(kept[..., :d_head], values[..., :d_head])
    assert not kept[..., d_head : 2 * d_head].any()
    again = gpt2.model.run_with_cache(ids)[1]
    assert torch.equal(again[name("pattern")], before[name("pattern")])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({(0, 0): "unifrm"}, "did you mean 'uniform'"),
        ({(0, 99): "uniform"}, "the model has no head 99"),
        ({("0", 1): "uniform"}, "the model has no layer '0': choose from 0 to"),
        ([(0, 1)], r"changes are \[\(0, 1\)\]: give such as \{\(0, 1\): 'ablated'\}"),
        ({3: "uniform"}, r"3 is changed: give a layer and a head, such as \(0, 1\)"),
        ({(0, 1): [[1.0]]}, "head 1 of layer 0 would be changed to a list: give one of ablated"),
        ({(0, 1): None}, "changed to a NoneType"),
        ({(0, 1): np.eye(3)}, "changed to a ndarray"),
        ({(0, 1): torch.ones(3)}, r"or a tensor \[query key\]"),
    ],
)
def test_a_change_of_heads_that_is_none_is_one_sentence(
    gpt2: LoadedModel, changes: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match=told):
        gpt2.change_heads(changes)


def test_a_pattern_for_other_numbers_of_tokens_is_one_sentence(
    gpt2: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    tokens = gpt2.read("w5 w6 w7 w8").ids
    n = tokens.shape[1]
    with (
        pytest.raises(
            UserError,
            match=f"^the pattern for head 1 of layer 0 is of {n + 1} tokens, and {n} are read: ",
        ),
        gpt2.change_heads({(0, 1): torch.eye(n + 1)}),
    ):
        gpt2.model(tokens)
    with pytest.raises(UserError, match=f"is of 2 queries and {n} keys: give as many queries as"):
        gpt2.change_heads({(0, 1): torch.eye(n)[:2]})


def test_patching_tells_what_comes_back(gpt2: LoadedModel) -> None:
    clean, corrupted = "w5 w6 w7 w8 w9 w10", "w11 w6 w7 w8 w5 w5"
    found = gpt2.patch(clean, corrupted)
    with torch.no_grad():
        logits = [gpt2.model(gpt2.read(prompt).ids)[0, -1] for prompt in (clean, corrupted)]
    answer = logits[0].argmax()
    encode = gpt2.variant.encode
    assert encode(found.answer) == [int(answer)]
    (other,) = encode(found.other)
    ends = [float(one[answer] - one[other]) for one in logits]
    assert [found.clean, found.corrupted] == pytest.approx(ends, abs=1e-4)
    assert found.recovered.shape == (gpt2.model.cfg.n_layers, gpt2.read(clean).ids.shape[1])
    assert f"{found.clean:.2f} clean" in repr(found)
    assert gpt2.patch(clean, corrupted, "head_out").recovered.columns.name == "head"
    with pytest.raises(UserError, match="did you mean 'resid_pre'"):
        gpt2.patch(clean, corrupted, "resid_pr")
    with pytest.raises(UserError, match="give two of one length"):
        gpt2.patch(clean, "w5 w6")


def test_without_a_name_the_model_of_the_package_is_loaded() -> None:
    lm = ni.load()
    assert lm.model.config == default_transformer()
    assert lm.variant.sources[0].name == "text"


def test_what_cannot_be_asked_is_one_sentence(gpt2: LoadedModel) -> None:
    with pytest.raises(UserError, match="did you mean 'previous_token'"):
        gpt2.top_heads("previous_tokn")
    with pytest.raises(UserError, match=r"4096 tokens are longer .* no positions beyond: shorten"):
        gpt2.probe_positions(seq_len=4096)
    with pytest.raises(UserError, match="seq_len is 7: give a whole number from 8 on"):
        gpt2.probe_positions(seq_len=7)
    with pytest.raises(UserError, match="seq_len is 4096: give 8 to 128, the model's context"):
        ni.load().probe_positions(seq_len=4096)
    with pytest.raises(UserError, match="rotary"):
        gpt2.probe_positions(ablate="rotary", seq_len=16, n_fit=8, n_held_out=8)
    with pytest.raises(UserError, match="intact"):
        gpt2.probe_positions(ablate="intact", seq_len=16, n_fit=8, n_held_out=8)
    for detector, n in (("diagonal", 0), ("diagonal", -1)):
        with pytest.raises(UserError, match="give a whole number from 1"):
            gpt2.top_heads(detector, n)


def test_a_context_too_short_to_tell_heads_apart_is_named(tmp_path: Path) -> None:
    short = HookedTransformer(TransformerConfig(1, 16, 2, d_vocab=257, n_ctx=16))
    lm = ni.load(save_model(short, tmp_path / "model.safetensors", task="text"))
    with pytest.raises(UserError, match="of 24 tokens or more, and the context is 16"):
        lm.top_heads("previous_token", n_sequences=16)


def test_sequences_beyond_the_context_are_read_where_positions_go_on(tmp_path: Path) -> None:
    """Against the model of transformers itself, at twice its context."""
    plain = plain_model("llama", max_position_embeddings=16)
    lm = ni.load(save_folder(plain, tmp_path))
    assert lm.model.cfg.n_ctx == 16
    with pytest.warns(UserWarning, match="32 tokens are longer than the context of 16"):
        found = lm.top_heads("previous_token", 100, seq_len=32, n_sequences=16)
    tokens = lm.variant.sources[0].sequences(16, 32, begin_token=True, split="held_out", seed=0)
    with torch.no_grad():
        plain.set_attn_implementation("eager")
        patterns = plain.eval()(tokens, output_attentions=True).attentions
    for row in found.to_dict("records"):
        pattern = patterns[row["layer"]][:, row["head"]]
        # Queries from the ninth on.
        expected = pattern.diagonal(-1, dim1=1, dim2=2)[:, 7:].mean()
        assert row["value"] == pytest.approx(float(expected), abs=1e-4)


def test_what_is_no_text_and_no_folder_is_refused(
    gpt2: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    no_text: Any = 5
    for ask in (gpt2.read, lambda prompt: gpt2.patch("a clean one", prompt)):
        with pytest.raises(UserError, match="the prompt is 5: give text"):
            ask(no_text)
    for load in (ni.load_run, Comparison.load):
        with pytest.raises(UserError, match="the run is 5: give its folder"):
            load(no_text)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"layers": 1}, "layers are 1: give a list of whole numbers"),
        ({"layers": "1"}, "layers are '1': give a list of whole numbers"),
        ({"layers": [0.5]}, "give a list of whole numbers"),
        ({"layers": [7]}, "no layer 7"),
        ({"hooks": "resid_post"}, r"the sites are 'resid_post': give a list, .* \['resid_post'\]"),
        ({"hooks": None}, r"the sites are None: give a list, such as \['resid_post'\]"),
        ({"seed": -1}, "seed is -1"),
        ({"seq_len": 8.5}, "seq_len is 8.5"),
        ({"n_held_out": 1}, "n_held_out is 1"),
    ],
)
def test_what_positions_are_probed_with_is_checked(
    gpt2: LoadedModel, asked: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match=told):
        gpt2.probe_positions(**{"seq_len": 16, "n_fit": 16, "n_held_out": 8, **asked})


def test_what_is_no_model_and_no_length_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for wrong in (None, 5):
        with pytest.raises(UserError, match=f"the model is {wrong}: give a hub name, a folder or"):
            ni.load(wrong)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"the model is {wrong}: give a hub name, a folder or"):
            ni.load_pretrained(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the model's name is empty: give a hub name"):
        ni.load("")
    lm = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    for length in ("a", 9.5, None):
        with pytest.raises(UserError, match=r"length is .*: give a whole number above 8"):
            lm.rescue_length(length)  # type: ignore[arg-type]


def test_a_loaded_model_gives_tokens_like_those_that_it_is_read_on(gpt2: LoadedModel) -> None:
    found = gpt2.tokens(20, 16, seed=3)
    assert found.shape == (20, 16)
    assert torch.equal(found, gpt2.tokens(20, 16, seed=3))
    assert not torch.equal(found, gpt2.tokens(20, 16, seed=3, held_out=True))
    # They are the text's own, in its order.
    text = gpt2.tokenizer.encode(words(20_000), add_special_tokens=False)
    joined = ",".join(map(str, text))
    assert all(",".join(map(str, row.tolist())) in joined for row in found)
    with pytest.raises(UserError, match="n is 0: give a whole number from 1 up"):
        gpt2.tokens(0)
    code = ni.fit_code(gpt2.model, found, layer=1)
    assert code.statistics.n_fitted == 20
    task = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    assert task.model.tokenizer is task.tokenizer
    assert (task.tokens(4)[:, 0] == task.variant.sources[0].begin_id).all()


def test_what_holds_a_model_and_is_none_is_told_so(
    gpt2: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    tokens, wrong = gpt2.tokens(4, 16), cast(Any, gpt2)
    for ask in (
        lambda: ni.stream(wrong, tokens, {}),
        lambda: ni.sequence_losses(wrong, tokens),
        lambda: ni.fit_code(wrong, tokens),
        lambda: ni.ablate_positions(wrong, "learned"),
        lambda: ni.intervene(wrong, {}).__enter__(),
    ):
        with pytest.raises(UserError, match="a LoadedModel has no hook points: give its `model`"):
            ask()
    with pytest.raises(UserError, match="give a HookedTransformer or the model of load_pretrained"):
        ni.sequence_losses(cast(Any, torch.nn.Linear(2, 2)), tokens)


def test_what_cannot_be_ablated_is_refused_before_anything_is_read(
    gpt2: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "measure", lambda *_, **how: pytest.fail("it was read"))
    with pytest.raises(UserError, match="the model has no rotary positions"):
        gpt2.probe_positions(ablate="rotary", seq_len=16, n_fit=16, n_held_out=8)


def test_home_is_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lm = ni.load(ROOT / "examples" / "copy-rsc.safetensors")
    save_model(cast(HookedTransformer, lm.model), "~/of/mine.safetensors", task="copy-rsc")
    assert (tmp_path / "of" / "mine.safetensors").is_file()
    assert ni.load("~/of/mine.safetensors").config.task == "copy-rsc"
    with pytest.raises(UserError, match="holds no finished run"):
        ni.load_run("~/of")
    config = TransformerConfig(1, 16, 2, d_vocab=257, n_ctx=24)
    how = {"transformer": config, "training.steps": 1, "seq_len": 24, "training.seq_len": 24}
    made = ni.train(out="~/runs", show_progress=False, **how)
    assert made.is_relative_to(tmp_path / "runs")
    assert made.is_file()
    with pytest.raises(UserError, match=r"there is no folder .*away"):
        ni.load_run("~/away")


def test_only_models_of_ours_are_saved_and_by_their_name(
    gpt2: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    with pytest.raises(UserError, match="is no model of ours: write a pretrained one by"):
        save_model(cast(Any, gpt2.model), tmp_path / "m.safetensors", task="text")
    own = ni.load(ROOT / "examples" / "copy-rsc.safetensors").model
    with pytest.raises(UserError, match=r"does not end in \.safetensors: give a name that does"):
        save_model(cast(HookedTransformer, own), tmp_path / "m", task="copy-rsc")
    assert not [*tmp_path.iterdir()]


def test_layers_and_seeds_may_be_numpys(gpt2: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    how = {"seq_len": 16, "n_fit": 16, "n_held_out": 8}
    expected = gpt2.probe_positions(layers=[1], seed=3, **how)
    for layers in (np.array([1]), range(1, 2), (i for i in [1])):
        found = gpt2.probe_positions(layers=layers, seed=np.int64(3), **how)
        assert found.equals(expected)
    embedding = gpt2.probe_positions(layers=[], seed=3, **how)
    assert embedding.equals(expected[:1])


def test_a_context_shorter_than_the_default_length_is_taken_whole(gpt2: LoadedModel) -> None:
    assert gpt2.model.cfg.n_ctx == 64
    found = gpt2.probe_positions(n_fit=16, n_held_out=8)
    assert found["chance"].iloc[0] == pytest.approx(63 / 4, rel=0.1)


def test_positions_are_what_a_checkpoint_has(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(words(3000))
    folder = save_folder(plain_model("llama"), tmp_path / "m")
    lm = ni.load(folder, text=str(tmp_path / "text.txt"), positions="none")
    assert "positions: none" in repr(lm)
    assert "No positional encoding in layers 0-1." in repr(lm)
    (row,) = lm.positions_by_layer().to_dict("records")
    assert (row["layers"], row["positions"]) == ("0-1", "none")
    with pytest.raises(UserError, match="nothing to take away"):
        lm.top_heads(ablate="rotary", n_sequences=16, seq_len=24)
    with pytest.raises(UserError, match="cannot have alibi positions"):
        ni.load(folder, positions="alibi")
    with pytest.raises(UserError, match=r"positions are given, but .* says itself which it has"):
        ni.load(ROOT / "examples" / "copy-rsc.safetensors", positions="none")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_checkpoint_of_every_task_is_loaded(tmp_path: Path, name: str) -> None:
    task = make_task(name)
    n_ctx = task.n_tokens(min(task.training_lengths)) if isinstance(task, AnswerTask) else 16
    model = HookedTransformer(TransformerConfig(1, 8, 1, d_vocab=task.d_vocab, n_ctx=max(8, n_ctx)))
    lm = ni.load(save_model(model, tmp_path / "model.safetensors", task=name))
    torch.testing.assert_close(lm.model.W_E, model.W_E)


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_one_sentence_for_our_models_too(device: str) -> None:
    with pytest.raises(UserError, match=f"the device '{device}' cannot be used here"):
        ni.load(device=device)
