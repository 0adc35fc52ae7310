"""A finished comparison: its numbers, what they say, and the page that shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from experiments.report.data import ReportData
from experiments.results.answer import Answer, Judged, answer_of, judged_by_removal
from experiments.results.interchange import doses, followed
from experiments.results.measurements import FIRST_POSITION
from experiments.results.mechanism import linear_probe_sentence
from experiments.results.readability import Verdict, verdicts
from experiments.results.task_use import judged_on_task
from experiments.results.text_use import judged_on_text
from experiments.results.usage import UseVerdict, use_verdicts
from experiments.runs.finished import FinishedRun, Picture
from experiments.runs.folder import Kind


@dataclass(frozen=True, repr=False)
class Comparison(FinishedRun):
    """A finished comparison: its numbers, what they say, and the page that shows them."""

    experiment: ClassVar[str] = "compare"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "model": str,
        "positions": str,
        "notes": list,
        "example_tokens": list,
        "config": dict,
        "command": str,
    }
    leads_to: ClassVar[tuple[str, ...]] = (".answer", ".verdicts", ".followed", ".uses")

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """What each hypothesis comes to, by the rules in `experiments.results.readability`."""
        return verdicts(self.measurements)

    @cached_property
    def uses(self) -> list[UseVerdict]:
        """Which position codes the model uses, by the rules in `experiments.results.usage`."""
        lacking = {judged.variant for judged in self._moved if judged.lacks_order}
        found = use_verdicts(self.measurements)
        return [use.unjudged if use.variant in lacking else use for use in found]

    @cached_property
    def _moved(self) -> list[Judged]:
        """What moved positions say."""
        return [*judged_on_text(self.measurements), *judged_on_task(self.measurements)]

    @property
    def answer(self) -> Answer:
        """Each code at a glance: how well it is read before and after training, whether it is
        used. Where positions were moved, that decides; else the removal of codes."""
        judged = [*self._moved, *map(judged_by_removal, self.uses)]
        return answer_of(self.verdicts, next(iter(judged), None))

    @cached_property
    def followed(self) -> pd.DataFrame:
        """What follows where positions are moved inside the model, and the word of each code, by
        the rules in `experiments.results.position_use`; empty where none was moved."""
        return followed(self.measurements)

    @property
    def doses(self) -> pd.DataFrame:
        """How far a code that is moved part of the way is followed; empty where none was."""
        return doses(self.measurements)

    @property
    def headline(self) -> str:
        """Which codes are used; where none was taken away, what can be read."""
        return self.answer.sentence

    @property
    def mechanism(self) -> str | None:
        """Where a linear probe is at chance in a random NoPE model, and what wakes it; None where
        the model has positions."""
        if self.info["positions"] != "none":
            return None
        return linear_probe_sentence(self.measurements)

    def html(self) -> str:
        from experiments.report.page import render

        return render(self._shown)

    @property
    def pictures(self) -> Mapping[str, Picture]:
        """The figures of the page, each as it opens there."""
        from experiments.report.paper.comparison import of_comparison

        return of_comparison(self._shown)

    @property
    def _shown(self) -> ReportData:
        return ReportData(
            title=f"How does {self.info['model']} know positions?",
            measurements=self.measurements,
            arrays=self.arrays,
            info=self.info,
            verdicts=self.verdicts,
            uses=self.uses,
            followed=self.followed,
            answer=self.answer,
            mechanism=self.mechanism,
            example=example_of(self.info, self.arrays),
        )


PREFIX = "example"


def example_of(info: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the report shows of the example.

    Args:
        info: how the run was made.
        arrays: those of the run.

    Returns:
        Tokens, and predictions and patterns by variant and layer.
    """
    example: dict[str, Any] = {"tokens": info["example_tokens"], "predictions": {}, "patterns": {}}
    for key, array in arrays.items():
        if key.startswith(f"{PREFIX}/"):
            _, variant, kind, label = key.split("/")
            # Position 0 was not probed: it has no prediction.
            values = [None] * FIRST_POSITION + array.tolist() if kind == "prediction" else array
            example[f"{kind}s"].setdefault(variant, {})[label] = values
    return example
