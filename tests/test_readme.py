"""The Python of the README and of the docs runs as it stands."""

import re
import runpy
from functools import partial
from pathlib import Path

import pytest

from experiments.benchmark.methods import METHODS
from experiments.comparison import compare as hypotheses
from experiments.comparison import config as compare_config
from experiments.heads import asked
from experiments.heads import classify as heads
from experiments.heads import config as heads_config
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig
from tests.paths import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "findings").glob("*.md")),
    *sorted((ROOT / "docs" / "papers").glob("*.md")),
    *sorted((ROOT / "docs" / "verdict").glob("*.md")),
]
# What each example prints, page by page.
EXPECTED = {
    "benchmark.md": ["| bold |"],
    "README.md": ["This model does not surely beat a bigram guesser"],
    "python.md": [
        "of 2 heads",
        "Score(metric='mae'",
        "tensor([5.",
        "surprisal",
        "9.0000, 10.0000]",
        "torch.Size([2, 64, 256])",
    ],
    "removals.md": ["tensor(5."],
}


def examples_of(page: Path) -> list[str]:
    marked = r"<!-- executed by .*? -->\n```python\n(.*?)```"
    return re.findall(marked, page.read_text(encoding="utf-8"), re.S)


EXAMPLES = {(page.name, i): code for page in PAGES for i, code in enumerate(examples_of(page))}


def test_every_example_is_known() -> None:
    assert set(EXAMPLES) == {(page, i) for page in EXPECTED for i in range(len(EXPECTED[page]))}


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 130


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_name_files_that_exist(page: Path) -> None:
    linked = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    named = [to.partition("#") for to in linked if "://" not in to]
    places = [(page.parent / name if name else page, anchor) for name, _, anchor in named]
    assert [place for place, _ in places if not place.exists()] == []
    asked = [(place, anchor) for place, anchor in places if anchor and place.suffix == ".md"]
    assert [(place.name, a) for place, a in asked if a not in anchors_of(place)] == []


def anchors_of(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in shown}


def test_the_main_job_takes_at_most_ten_lines() -> None:
    lines = [line for line in EXAMPLES["README.md", 0].splitlines() if line.strip()]
    assert 3 <= len(lines) <= 10


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_examples_run(
    example: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = {
        "transformer": TransformerConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=257, n_ctx=24),
        "training": TrainingConfig(steps=2, batch_size=2, seq_len=24),
    }
    # The default's size is a matter of minutes: the examples' own lines stay as they are.
    for module, name, sizes in (
        (compare_config, "CompareConfig", {"n_fit": 24, "n_held_out": 16}),
        (heads_config, "HeadsConfig", {"n_sequences": 16}),
    ):
        real = getattr(module, name)
        # All who import these names have the real ones already, and keep them.
        assert real in (hypotheses.CompareConfig, heads.HeadsConfig, asked.HeadsConfig)
        short = partial(real, seq_len=24, **small, **sizes)
        monkeypatch.setattr(module, name, short)
    # A page adds a method of its own: afterwards there is none of that name.
    monkeypatch.setitem(METHODS, "bold", lambda planted, place, seed: {})
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[example])
    runpy.run_path(str(script), run_name="__main__")
    page, index = example
    assert EXPECTED[page][index] in capsys.readouterr().out
    if page == "README.md":
        assert (tmp_path / "report.html").stat().st_size > 1e6
