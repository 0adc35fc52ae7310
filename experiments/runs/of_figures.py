"""A finished run whose page is its figures, each of which can be drawn for a paper too."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.results.findings import Figure
from experiments.runs.finished import FinishedRun, Picture


@dataclass(frozen=True, repr=False)
class RunOfFigures(FinishedRun):
    """A finished run whose page is its figures, each of which can be drawn for a paper too."""

    @property
    @abstractmethod
    def figures(self) -> Sequence[Figure]:
        """What the page draws, the first figure on its first screen."""

    @property
    def column_titles(self) -> Mapping[str, str]:
        """Those of the tidy table's columns that have something else than in other runs."""
        return {}

    @property
    def pictures(self) -> Mapping[str, Picture]:
        """The figures of the page."""
        from experiments.report.paper.findings import of_figure

        return {figure.id: of_figure(figure) for figure in self.figures}

    def page(self, template: str, title: str, sentences: Sequence[str] = (), **words: Any) -> str:
        """The report, as `html` gives it.

        Args:
            template: its file name.
            title: what stands above it.
            sentences: what is said beside the headline.
            words: what else the template asks for.

        Returns:
            HTML.
        """
        from experiments.report.findings import PageData, render_figures

        data = PageData(title, self.headline, self.measurements, self.info, self.column_titles)
        return render_figures(template, data, self.figures, sentences, **words)
