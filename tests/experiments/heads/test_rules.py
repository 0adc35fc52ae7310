"""Label rules from a file: what they say, what is refused, and what a run makes of them."""

from pathlib import Path
from typing import Any

import pytest

from experiments.cli.shown import SHOWN
from experiments.heads.classify import classify_heads
from experiments.heads.rules import own_rules
from nope_interp.errors import UserError
from probes.head_rules import NONE, RANDOM_INIT, RULES, SHUFFLED_OFFSETS, Rule

BEGINS = """
[[rule]]
label = "begins"
metric = "first_token"
threshold = 0.3
nulls = ["random-init"]
says = "it rests on the first token"

[[rule]]
label = "close"
metric = "local"
threshold = 1
"""

TINY: dict[str, Any] = {
    "transformer": {"n_layers": 2, "d_model": 16, "n_heads": 2, "n_ctx": 40},
    "training": {"steps": 2, "warmup": 1, "batch_size": 2, "seq_len": 40},
    "seq_len": 40,
    "n_sequences": 16,
}


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_rules_are_read_in_their_order(tmp_path: Path) -> None:
    assert own_rules(written(tmp_path / "rules.toml", BEGINS)) == (
        Rule("begins", "first_token", 0.3, (RANDOM_INIT,), "it rests on the first token"),
        Rule("close", "local", 1.0, (SHUFFLED_OFFSETS, RANDOM_INIT), ""),
    )
    assert own_rules(None) == ()


@pytest.mark.parametrize("metric", ["uniform", "entropy", "repeated_token"])
def test_what_shuffling_keeps_is_not_held_against_it(tmp_path: Path, metric: str) -> None:
    told = f'[[rule]]\nlabel = "x"\nmetric = "{metric}"\nthreshold = 0.5\n'
    (rule,) = own_rules(written(tmp_path / "rules.toml", told))
    assert rule.nulls == (RANDOM_INIT,)
    (rule,) = own_rules(written(tmp_path / "rules.toml", told + "nulls = []\n"))
    assert rule.nulls == ()
    with pytest.raises(UserError, match=f"holds {metric} against shuffled offsets, which do not"):
        own_rules(written(tmp_path / "rules.toml", told + 'nulls = ["shuffled offsets"]\n'))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[[rule]]", "[rule", "no valid TOML"),
        (BEGINS, "", "hold no rules"),
        ("[[rule]]", "[[ruler]]", "hold no rules"),
        ('"first_token"', '"first_tokn"', "did you mean 'first_token'"),
        ('"random-init"', '"random"', "nulls .*random.*names from shuffled offsets"),
        ("says", "sais", "did you mean 'says'"),
        ("0.3", "-1", "rule 1 of .* threshold is -1: give a number above 0"),
        ("0.3", "inf", "threshold is inf: give a number above 0"),
        ("0.3", "true", "give a number above 0"),
        ("0.3", '"much"', "give a number above 0"),
        ('"close"', '"begins"', "'begins' twice"),
        ('"close"', '"none"', "a name but 'none'"),
        ('metric = "local"', "", "lacks metric"),
        ('["random-init"]', '"random-init"', "nulls is 'random-init': give a list"),
    ],
)
def test_what_is_no_rule_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = written(tmp_path / "rules.toml", BEGINS.replace(old, new))
    with pytest.raises(UserError, match=sentence):
        own_rules(path)
    with pytest.raises(UserError, match="cannot read the rules"):
        own_rules(str(tmp_path / "absent.toml"))


def test_a_run_labels_heads_by_them_beside_ours(tmp_path: Path) -> None:
    everything = "".join(
        f'[[rule]]\nlabel = "as {rule.label}"\nmetric = "{rule.metric}"\n'
        f"threshold = {rule.threshold}\nnulls = {list(rule.nulls)}\n"
        for rule in RULES
    )
    path = written(tmp_path / "ours.toml", everything)
    how = TINY | {"rules": path, "out": tmp_path / "runs", "show_progress": False}
    found = classify_heads(**how)
    heads = found.heads
    # The same rules by other names: the same labels.
    ours = [label if label == NONE else f"as {label}" for label in heads["label"]]
    assert heads["own_label"].tolist() == ours
    assert heads["own_q_value"].tolist() == heads["q_value"].tolist()
    assert set(heads["settled_at"]) <= {8, 16}
    page = found.html()
    assert "Your own rules" in page
    assert "--rules" in found.info["command"]
    # Another file is another run, whatever it is called.
    written(tmp_path / "ours.toml", BEGINS)
    again = classify_heads(**how)
    assert again.folder != found.folder
    assert set(again.heads["own_label"]) <= {"begins", "close", NONE}
    # The terminal tells how many, those that no head has as well.
    n_begins, n_close = ((again.heads["own_label"] == label).sum() for label in ("begins", "close"))
    told = f"By your own rules, of 4 heads: {n_begins} begins, {n_close} close."
    assert told in SHOWN["heads"](None, again).lines
