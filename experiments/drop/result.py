"""A finished drop: the recalibrated model, what was read of it, and the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from experiments.results.drop import CONTROL, RECALIBRATED, Dropped
from experiments.results.findings import Figure
from experiments.runs.folder import Kind
from experiments.runs.of_figures import RunOfFigures

FOLDERS = {CONTROL: "control", RECALIBRATED: "model"}
"""The folders of a run in which its models are, by variant."""


@dataclass(frozen=True, repr=False)
class Drop(RunOfFigures):
    """A finished drop: the recalibrated model, what was read of it, and the page."""

    experiment: ClassVar[str] = "drop"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "setting": str,
        "notes": list,
        "config": dict,
        "command": str,
        "lengths": list,
        "context": int,
        "chance": float,
        "depths": list,
    }
    leads_to: ClassVar[tuple[str, ...]] = (".model", ".by_variant")

    @property
    def model(self) -> Path:
        """The recalibrated model: a folder that every command takes."""
        return self.folder / FOLDERS[RECALIBRATED]

    @property
    def dropped(self) -> Dropped:
        """What was read, as arrays."""
        return Dropped(self.arrays, self.info)

    @property
    def by_variant(self) -> pd.DataFrame:
        """One row for each variant: loss and share of passkeys said, at each length."""
        return self.dropped.by_variant

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Loss by step, loss by length, passkeys by depth."""
        return self.dropped.figures

    @property
    def headline(self) -> str:
        """What the drop costs, and what comes back."""
        return self.dropped.headline

    def html(self) -> str:
        title = f"What does {self.info['model']} lose without its positions?"
        return self.page("drop.html", title, self.dropped.sentences, variants=self.by_variant)
