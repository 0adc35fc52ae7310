"""The table of families in `docs/models.md`, made of the models that the tests ablate.

python -m tests.model_table     writes it there
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from nope_interp.errors import UserError
from nope_interp.models.sinks import attention_sinks
from nope_interp.positions.ablation import ablate_positions
from nope_interp.positions.layers import LayerPositions, layer_positions
from tests.doc_tables import in_markdown, page_with
from tests.huggingface import FAMILIES, HYBRIDS, bridged_model
from tests.paths import ROOT

PAGE = ROOT / "docs" / "models.md"

# What the tests of `tests/nope_interp/positions/test_ablation.py` compare an ablation with, beside
# the order of earlier tokens, which all of them have.
_CHECKED = {
    "rotary": "transformers at other positions",
    "learned": "transformers with another table",
    "alibi": "transformers with slopes of zero",
    "t5": "transformers with a bias of zero",
}
_NAMES = {"rotary": "rotary", "learned": "learned", "alibi": "ALiBi", "t5": "relative bias"}


def page(model: Callable[[str], Any] = bridged_model) -> str:
    """The page with its table: one row for each family and encoding.

    Args:
        model: makes the bridge of a family's tiny model.
    """
    header = ["family", "`model_type`", "positions", "one layer", "some heads", "compared with"]
    return page_with(PAGE, "families", "tests.model_table", in_markdown(header, _rows(model)))


def _rows(model: Callable[[str], Any]) -> Iterator[list[str]]:
    seen: set[tuple[str, str]] = set()
    found: list[list[str]] = []
    for family in (*FAMILIES, *HYBRIDS):
        built = model(family)
        config, layers = built.original_model.config, layer_positions(built)
        encoding = next(at.encoding for at in layers if at.encoding not in ("none", "recurrence"))
        if (config.model_type, encoding) in seen:
            continue
        seen.add((config.model_type, encoding))
        architecture = (config.architectures or [type(built.original_model).__name__])[0]
        stem = architecture.replace("ForCausalLM", "").replace("LMHeadModel", "")
        found.append(
            [
                "T5's decoder" if family == "t5" else stem,
                f"`{config.model_type}`",
                _positions(built, layers, encoding),
                *_separable(built, layers, encoding),
                _CHECKED[encoding],
            ]
        )
    yield from sorted(found, key=lambda row: row[0].lower())


def _positions(built: Any, layers: Sequence[LayerPositions], encoding: str) -> str:
    told = [_NAMES[encoding]]
    if any(layer.encoding == "none" for layer in layers):
        told.append("none in some layers")
    if any(layer.encoding == "recurrence" for layer in layers):
        told.append("recurrence in some layers")
    if any(layer.window is not None for layer in layers):
        told.append("windows")
    if any(layer.chunk is not None for layer in layers):
        told.append("chunks")
    if attention_sinks(built):
        told.append("attention sinks")
    return ", ".join(told)


def _separable(built: Any, layers: Sequence[LayerPositions], encoding: str) -> tuple[str, str]:
    """Whether one layer can be ablated by itself, and a group of heads that share their keys."""
    layer = next(at.layer for at in layers if at.encoding == encoding)
    size = built.cfg.n_heads // (getattr(built.cfg, "n_key_value_heads", None) or built.cfg.n_heads)
    return (
        _can(built, encoding, layers=[layer]),
        _can(built, encoding, layers=[layer], heads=range(size)),
    )


def _can(built: Any, encoding: str, **where: Any) -> str:
    tokens = torch.arange(4, 12)[None]
    try:
        with ablate_positions(built, encoding, **where) as ablation, torch.no_grad():
            built(tokens)
            ablation.verify()
    except UserError:
        return "no"
    return "yes"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
