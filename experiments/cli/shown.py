"""What a command prints of what it found: a text, or JSON."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shown:
    """A result in its two forms.

    Attributes:
        value: JSON-able.
        text: for people to read; the most important line comes last but for files.
    """

    value: Any
    text: str

    def show(self, as_json: bool) -> None:
        """Print one of the two."""
        print(json.dumps(self.value, indent=2) if as_json else self.text)


def _comparison(config: Any, found: Any) -> Shown:
    report = str(found.folder / "report.html")
    value = {
        "headline": found.headline,
        "mechanism": found.mechanism,
        "report": report,
        "verdicts": [dataclasses.asdict(verdict) for verdict in found.verdicts],
    }
    lines = [verdict.sentence for verdict in found.verdicts]
    lines += [] if found.mechanism is None else [f"\n{found.mechanism}"]
    return Shown(value, "\n".join([*lines, f"\n{found.headline}\nReport: {report}"]))


def _heads(config: Any, found: Any) -> Shown:
    return _with_table(found, "heads", _records(found.heads), found.markdown())


def _emergence(config: Any, found: Any) -> Shown:
    onsets = json.loads(found.onsets.to_json(orient="index"))
    return _with_table(found, "onsets", onsets, found.markdown())


def _reproduction(config: Any, found: Any) -> Shown:
    from experiments.results.markdown import markdown_table

    return _with_table(found, "claims", _records(found.claims), markdown_table(found.claims))


def _with_table(found: Any, name: str, table: Any, markdown: str) -> Shown:
    report = str(found.folder / "report.html")
    value = {"headline": found.headline, "report": report, name: table}
    return Shown(value, f"{markdown}\n{found.headline}\nReport: {report}")


def _records(table: Any) -> Any:
    return json.loads(table.to_json(orient="records"))


def _trained(config: Any, path: Any) -> Shown:
    from experiments.variants.train import held_out_loss

    loss = held_out_loss(config, path)
    told = "none, its text is too short" if loss is None else f"{loss:.4f} nats per token"
    value = {"model": str(path), "held_out_loss": loss}
    return Shown(value, f"Model: {path} (held-out loss: {told})")


SHOWN: dict[str, Callable[[Any, Any], Shown]] = {
    "compare": _comparison,
    "probe": _comparison,
    "heads": _heads,
    "emergence": _emergence,
    "reproduce": _reproduction,
    "train": _trained,
}


def claims_shown(table: Any) -> Shown:
    """Every paper's claims, as `listing` gives them."""
    from experiments.results.markdown import markdown_table

    return Shown(_records(table), markdown_table(table))


def sweep_shown(swept: Any) -> Shown:
    """How many cells of a sweep are done, and where."""
    n = len(swept.cells)
    text = f"{n - len(swept.failed())} of {n} cells are done.\nSweep: {swept.folder}"
    return Shown({"sweep": str(swept.folder), "cells": swept.summary()}, text)
