"""A finished classification of heads: labels, numbers, and the page that shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pandas as pd

from experiments.report.heads_page import CHANCE, HeadsReportData, render_heads
from experiments.results import heads as tables
from experiments.results.found_by import finders_table, told
from experiments.results.markdown import markdown_table
from experiments.results.measurements import INTACT
from experiments.runs.finished import FinishedRun, Picture, chosen
from experiments.runs.folder import Kind
from nope_interp.errors import UserError
from probes.head_rules import RULES, Rule

_OLDER = (
    "This run is of a version that did not measure how heads find their tokens: delete its folder "
    "and run it again."
)
# The figures that are of a single head.
_OF_ONE_HEAD = ("attention", "profile", "usage")


@dataclass(frozen=True, repr=False)
class HeadClassification(FinishedRun):
    """A finished classification: every head's label and numbers, and the page that shows them."""

    experiment: ClassVar[str] = "heads"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "model": str,
        "positions": str,
        "ablation": str | None,
        "notes": list,
        "prompts": list,
        "own_rules": list,
        "config": dict,
        "command": str,
    }
    leads_to: ClassVar[tuple[str, ...]] = (".heads", ".finders")

    @cached_property
    def heads(self) -> pd.DataFrame:
        """One row for each head: label, confidence, p-values, every score, and what the ablation
        leaves of it."""
        return tables.heads_table(self.measurements, self.info["ablation"])

    @cached_property
    def finders(self) -> pd.DataFrame:
        """What leads heads to the token before, or to their own: one row for each head and token,
        with the columns of `heads_find_by` and the token, "previous" or "own"."""
        return finders_table(self.measurements)

    @property
    def headline(self) -> str:
        """How many heads have a label, and how many of these keep it without positions."""
        return tables.headline(self.heads, self._ablated)

    @property
    def needing(self) -> str:
        """Which heads need positions, a sentence; "" where no head does, or none were ablated."""
        # Runs from before it was told took them from each layer alone, where they could be.
        alone = bool(self.info.get("each_layer_alone", True))
        return tables.positional_heads(self.heads, self._ablated, alone)

    @property
    def finding(self) -> list[str]:
        """How many heads look at the token before, and at their own, and by what they find it; or
        a sentence on why it was not read."""
        unread = self.info.get("finders_unread", _OLDER)
        return [unread] if unread else told(self.finders, len(self.heads))

    @property
    def by_own_rules(self) -> str:
        """How many heads have each label of the user's own rules, a sentence; "" without rules."""
        return tables.by_own_rules(self.heads, [rule["label"] for rule in self.info["own_rules"]])

    @property
    def measured_on(self) -> str:
        """What the model read, how well it does there, against chance, and what was left out."""
        told = tables.measured_on(self.measurements, self.info["ablation"], self._task)
        return " ".join([told, *filter(None, [self.info.get("left_out")])])

    @property
    def _ablated(self) -> str | None:
        """What was taken away, in words: where, too, which older runs do not tell."""
        told: str | None = self.info.get("ablated", self.info["ablation"])
        return told

    @property
    def _task(self) -> str:
        return str(self.info["config"]["task"])

    def markdown(self) -> str:
        """The table of heads: labels, confidence, and what is left of them.

        Returns:
            A Markdown table, one row for each head.
        """
        shown = ["layer", "head", "label", "confidence", "q_value", "runner_up"]
        if self.info["ablation"]:
            shown += ["dependence", "retention", "ablated_label"]
        return markdown_table(self.heads[shown])

    def html(self) -> str:
        return render_heads(self._shown)

    @property
    def pictures(self) -> Mapping[str, Picture]:
        """The page's figures; those of one head are of the head that the page opens."""
        return self._pictures(None)

    def figure(self, name: str, head: str | None = None) -> Picture:
        """A figure in a paper's style: `result.figure("attention", "L5H0").save("x.pdf")`.

        Args:
            name: one of `pictures`.
            head: the head that attention, profile and usage are of; None takes the head that the
                page opens, that of the surest label.

        Returns:
            The figure, which `save` draws.

        Raises:
            UserError: there is no such figure or head, the figure is of all heads, or the run's
                files do not belong together.
        """
        with self._of_one_run():
            found = chosen(self._pictures(head), name)
        if head is not None and name not in _OF_ONE_HEAD:
            raise UserError(f"figure {name!r} is of all heads: leave the head out.")
        return found

    def _pictures(self, head: str | None) -> Mapping[str, Picture]:
        from experiments.report.paper.heads import of_heads

        return of_heads(self._shown, head)

    @property
    def _shown(self) -> HeadsReportData:
        ablation, prompts = self.info["ablation"], self.info["prompts"]
        conditions = [INTACT, *([ablation] if ablation else [])]
        measurements = self.measurements
        return HeadsReportData(
            title=f"Which heads of {self.info['model']} need positions?"
            if ablation
            else f"What do the heads of {self.info['model']} do?",
            headline=self.headline,
            needing=self.needing,
            measured=self.measured_on,
            brief=tables.measured_in_brief(measurements, ablation, self._task),
            measurements=measurements,
            heads=self.heads,
            finders=self.finders,
            finding=self.finding,
            metrics=tables.head_metrics(measurements),
            conditions=conditions,
            losses=tables.losses(measurements),
            offset_profiles={
                c: self.arrays[f"offset_profile/{c}"]
                for c in (*conditions, CHANCE)
                if f"offset_profile/{c}" in self.arrays
            },
            frequencies=self._frequencies(),
            prompts=prompts,
            patterns={
                c: [self.arrays[f"pattern/{c}/{i}"] for i in range(len(prompts))]
                for c in conditions
            },
            edges=tables.edges(measurements),
            settling=tables.settling(measurements),
            rules=[_told(rule) for rule in RULES],
            own_rules=[
                _told(Rule(**{**rule, "nulls": tuple(rule["nulls"])}))
                for rule in self.info["own_rules"]
            ],
            info=self.info,
            task=self._task,
        )

    def _frequencies(self) -> dict[str, np.ndarray] | None:
        names = ("radians_per_token", "query_norm", "key_norm")
        found = {name: self.arrays.get(f"frequency/{name}") for name in names}
        return None if found["query_norm"] is None else found  # type: ignore[return-value]


def _told(rule: Rule) -> dict[str, str]:
    """A rule in words."""
    return {
        "label": rule.label,
        "rule": f"{rule.condition}: {rule.says}" if rule.says else rule.condition,
        "nulls": ", ".join(rule.nulls) or "its own threshold",
    }
