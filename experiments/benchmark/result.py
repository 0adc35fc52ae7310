"""A finished benchmark: every word that was said, the table it comes to, and the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from experiments.results import benchmark as results
from experiments.results.findings import Figure
from experiments.results.markdown import markdown_table
from experiments.runs.folder import Kind
from experiments.runs.of_figures import RunOfFigures


@dataclass(frozen=True, repr=False)
class Benchmark(RunOfFigures):
    """A finished benchmark: every word that was said, the table it comes to, and the page."""

    experiment: ClassVar[str] = "benchmark"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "setting": str,
        "notes": list,
        "config": dict,
        "command": str,
    }
    # Where something is missing, it is in a method of the user's own.
    looks_into_cells: ClassVar[bool] = False
    leads_to: ClassVar[tuple[str, ...]] = (".methods", ".kinds", ".confusion")

    @property
    def about(self) -> str:
        """The planted models."""
        return str(self.info["setting"])

    @property
    def methods(self) -> pd.DataFrame:
        """How often each method is right, by `experiments.results.benchmark.by_method`."""
        return results.by_method(self.measurements)

    @property
    def kinds(self) -> pd.DataFrame:
        """How often each method is right of each kind of model, 0 to 1."""
        return results.by_kind(self.measurements)

    @property
    def confusion(self) -> pd.DataFrame:
        """How many codes of each truth were given each word."""
        return results.confusion(self.measurements)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Methods by correctness, and by kind of model."""
        return results.figures(self.measurements)

    @property
    def headline(self) -> str:
        """Which method is right most often, and how often it is falsely positive."""
        return results.headline(self.measurements)

    def markdown(self) -> str:
        """The table of methods.

        Returns:
            A Markdown table, one row for each method and place.
        """
        return markdown_table(results.readable(self.methods))

    @property
    def column_titles(self) -> Mapping[str, str]:
        """The truth, the method's word and whatever else stands in columns of other names."""
        return results.MEANING

    def html(self) -> str:
        title = "Which method is right where the truth is known?"
        tables = {"methods": results.readable(self.methods), "confusion": self.confusion}
        said = results.sentences(self.measurements)
        return self.page("benchmark.html", title, said, **tables)
