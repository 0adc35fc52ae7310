"""Papers by name, each as its `paper.toml` has it."""

import tomllib
from importlib.resources import files
from typing import Any

from experiments.results.claims import (
    AFTER,
    BEFORE,
    OURS,
    PILOTS,
    RECALLED,
    SECOND_HAND,
    SETTING_LATER,
    VERIFIED,
    Claim,
    Paper,
)
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
_WORDS = {
    "VERIFIED": VERIFIED,
    "SECOND_HAND": SECOND_HAND,
    "RECALLED": RECALLED,
    "OURS": OURS,
    "BEFORE": BEFORE,
    "PILOTS": PILOTS,
    "SETTING_LATER": SETTING_LATER,
    "AFTER": AFTER,
}


def _read(name: str) -> Paper:
    """A paper and its claims.

    Names in braces stand for how sure a source is, for when bounds were set, or for what the file's
    [words] say once for several claims; line breaks are spaces.
    """
    file = files("experiments.papers") / name / "paper.toml"
    told = tomllib.loads(file.read_text(encoding="utf-8"))

    def filled(values: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
        return {key: _filled(value, words) for key, value in values.items()}

    words = _WORDS | filled(told.pop("words", {}), _WORDS)
    claims = tuple(Claim(**filled(claim, words)) for claim in told.pop("claims"))
    return Paper(name=name, claims=claims, **filled(told, words))


def _filled(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).format_map(words)
    return tuple(value) if isinstance(value, list) else value


PAPERS = {name: _read(name) for name in _IN_ORDER}


def paper(name: str) -> Paper:
    """The paper of that name; raises UserError, with the nearest right name, where none is."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]
