"""Papers by name, each as its `paper.toml` has it."""

import tomllib
from importlib.resources import files
from typing import Any

from experiments.results import claims
from nope_interp.errors import unknown_name

_IN_ORDER = (
    "chi2023",
    "haviv2022",
    "zuo2025",
    "kazemnejad2023",
    "barbero2024",
    "koutnik2014",
    "kim2025",
    "gelberg2025",
)
# How sure a source is, and when bounds were set.
_WORDS = {
    name: said for name, said in vars(claims).items() if name.isupper() and isinstance(said, str)
}


def _read(name: str) -> claims.Paper:
    """A paper and its claims.

    Names in braces stand for how sure a source is, for when bounds were set, or for what the file's
    [words] say once for several claims; line breaks are spaces.
    """
    file = files("experiments.papers") / name / "paper.toml"
    told = tomllib.loads(file.read_text(encoding="utf-8"))

    def filled(values: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
        return {key: _filled(value, words) for key, value in values.items()}

    words = _WORDS | filled(told.pop("words", {}), _WORDS)
    every = tuple(claims.Claim(**filled(claim, words)) for claim in told.pop("claims"))
    return claims.Paper(name=name, claims=every, **filled(told, words))


def _filled(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).format_map(words)
    return tuple(value) if isinstance(value, list) else value


PAPERS = {name: _read(name) for name in _IN_ORDER}


def paper(name: str) -> claims.Paper:
    """The paper of that name; raises UserError, with the nearest right name, where none is."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]
