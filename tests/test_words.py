"""The sentences that a user meets: how long they are, and which words they avoid.

They are read out of the source: every text of the three packages that ends as a sentence does, with
one word for each value; the words of every page's template; and of the docstrings those that are
shown: captions of figures and what options mean; of what is said of papers and their claims; and of
the documentation's prose. A colon ends what is counted, since a refusal has its culprit before it
and its remedy after it.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from experiments.cli.options import option_of, parameters
from experiments.papers.registry import PAPERS
from experiments.sweeps.registry import EXPERIMENTS
from tests.paths import ROOT

MOST_WORDS = 25
PACKAGES = ("nope_interp", "probes", "experiments")
TEMPLATES = sorted((ROOT / "experiments" / "report" / "templates").glob("*.html"))
# Without what is counted elsewhere, and the table of words to avoid.
PROSE = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
    - {ROOT / "docs" / name for name in ("changelog.md", "contributing.md", "style.md", "words.md")}
    - {*(ROOT / "docs" / "generated").rglob("*")}
)
# Of the words that the style page replaces, those that mean nothing else in a sentence of ours.
CLEAR = {"arm", "twin", "displaced", "dealt", "cache of keys"}

Sentence = tuple[str, str]  # where it stands, and itself
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d“\"'(`\[]|$)|\n\s*\n|:\s")


def in_source() -> Iterator[Sentence]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for line, text in texts_of(tree):
                yield from sentences(f"{path.relative_to(ROOT)}:{line}", text)


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that end as sentences do, values in them as x, without docstrings."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(inner) for inner in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
            )
        if " " in text and text.rstrip().endswith((".", "!", "?", ":")):
            yield node.lineno, text


def captions() -> Iterator[Sentence]:
    """The docstrings of functions that draw: each is a title and a caption."""
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            if any(re.match(r"figure\(", ast.unparse(one)) for one in node.decorator_list):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield from sentences(where, ast.get_docstring(node) or "")


def meanings() -> Iterator[Sentence]:
    """What `--help` says of every option."""
    for experiment in EXPERIMENTS.values():
        for word, one in parameters(experiment.config, experiment.meaningless).items():
            (option,) = one.annotation.__metadata__
            # A sentence may begin with what is typed: none, auto, tiny.
            for said in (option.help or "").split(". "):
                yield from sentences(f"{experiment.name} {option_of(word)}", said)


def of_papers() -> Iterator[Sentence]:
    """What pages, the terminal and the documentation say of papers and their claims."""
    for paper in PAPERS.values():
        own = {f"{paper.name} {name}": said for name, said in vars(paper).items()}
        own |= {
            f"{paper.name} {claim.id} {name}": said
            for claim in paper.claims
            for name, said in vars(claim).items()
        }
        del own[f"{paper.name} citation"]  # the paper's own words
        for where, said in own.items():
            if isinstance(said, str):
                yield from sentences(where, said)


def in_templates() -> Iterator[Sentence]:
    for path in TEMPLATES:
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"<pre>.*?</pre>", "", text, flags=re.S)  # commands and files
        text = re.sub(r"\{\{.*?\}\}", "x", text)
        text = re.sub(r"\{%.*?%\}|\{#.*?#\}", " ", text, flags=re.S)
        # Inline elements stand within sentences, others end what stood before.
        text = re.sub(r"</?(?:a|em|strong|b|code|span|sup|h\d)\b[^>]*>", "", text)
        for part in re.split(r"<[^>]*>", text):
            yield from sentences(path.name, part)


def in_prose() -> Iterator[Sentence]:
    """What README and documentation say, outside of code; each cell of a table is for itself."""
    for path in PROSE:
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
        text = re.sub(r"^(?:#|:::).*$|^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.M)
        text = re.sub(r"^\|.*$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.M)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        yield from sentences(str(path.relative_to(ROOT)), text)


def sentences(where: str, text: str) -> Iterator[Sentence]:
    for sentence in _SENTENCE_ENDS.split(text):
        if sentence.strip():
            yield where, " ".join(sentence.split())


@pytest.fixture(scope="module")
def found() -> dict[str, list[Sentence]]:
    """All sentences, by the kind of place that they stand in."""
    kinds = (in_source, captions, meanings, of_papers, in_templates, in_prose)
    return {kind.__name__: list(kind()) for kind in kinds}


@pytest.fixture(scope="module")
def said(found: dict[str, list[Sentence]]) -> list[Sentence]:
    return [sentence for of_kind in found.values() for sentence in of_kind]


def test_sentences_are_found_where_users_meet_them(
    said: list[Sentence], found: dict[str, list[Sentence]]
) -> None:
    assert len(said) > 700
    places = {where.split(":")[0] for where, _ in said}
    wanted = ("errors.py", "results/usage.py", "report/figures.py", "glossary.html", "cli/main.py")
    for name in wanted:
        assert any(place.endswith(name) for place in places), name
    n_places = {kind: len({where for where, _ in of_kind}) for kind, of_kind in found.items()}
    assert n_places["captions"] > 40
    assert n_places["meanings"] > 100
    assert n_places["of_papers"] > 200
    assert n_places["in_prose"] == len(PROSE) > 25
    (text,) = texts_of(ast.parse("def f():\n    'Doc.'\n    return f'a {f()} is b.'"))
    assert text == (3, "a x is b.")


def test_no_sentence_is_long(said: list[Sentence]) -> None:
    long = [(len(s.split()), where, s) for where, s in said if len(s.split()) > MOST_WORDS]
    assert sorted(long, reverse=True) == []


def test_no_sentence_has_a_word_that_was_replaced(said: list[Sentence]) -> None:
    table = (ROOT / "docs" / "style.md").read_text(encoding="utf-8")
    replaced = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", table, re.M)
    words = {word.strip() for cell in replaced for word in cell.split(",")}
    assert words >= CLEAR
    avoided = re.compile(rf"\b(?:{'|'.join(CLEAR)})s?\b", re.I)
    # The changelog says what a word was before.
    said = [(where, s) for where, s in said if where != "CHANGELOG.md"]
    assert [(where, s) for where, s in said if avoided.search(s)] == []
