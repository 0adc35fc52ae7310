"""A finished reproduction: each claim's outcome, the curves behind it, and the page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import pandas as pd

from experiments.papers.config import ReproduceConfig
from experiments.papers.recorded import recorded
from experiments.papers.registry import paper
from experiments.results.claims import NOT_MEASURED, Outcome, Paper, Verdict
from experiments.results.findings import Figure, unpack
from experiments.results.measured import Measured
from experiments.runs.finished import Picture
from experiments.runs.folder import Kind
from experiments.runs.of_figures import RunOfFigures

CLAIM = "claim"


NOT_RUN = "not run yet"


_NUMBERS = ("value", "ci_low", "ci_high", "n")


@dataclass(frozen=True, repr=False)
class Reproduction(RunOfFigures):
    """A finished run: each claim's outcome, the curves behind it, and the page that shows them."""

    experiment: ClassVar[str] = "reproduce"
    needs_info: ClassVar[Mapping[str, Kind]] = {
        "paper": str,
        "setting": str,
        "figures": list,
        "notes": list,
        "config": dict,
        "command": str,
        "seconds": float | int,
    }
    leads_to: ClassVar[tuple[str, ...]] = (".claims", ".figures")

    @property
    def paper(self) -> Paper:
        """What was reproduced."""
        return paper(self.info["paper"])

    @property
    def about(self) -> str:
        """The paper that was reproduced."""
        return str(self.info["paper"])

    @property
    def config(self) -> ReproduceConfig:
        """How it was run."""
        return ReproduceConfig.from_dict(self.info["config"])

    @property
    def seconds(self) -> float:
        """How long it took."""
        return float(self.info["seconds"])

    @property
    def outcomes(self) -> list[Outcome]:
        """One for each claim of the paper, in its order; tests are those of today's registry."""
        rows = self.measurements[self.measurements["probe"] == CLAIM].to_dict("records")
        found = {str(row["metric"]): Measured(*(row[name] for name in _NUMBERS)) for row in rows}
        return [
            Outcome(claim, found.get(claim.id, NOT_MEASURED), self.config.reduced)
            for claim in self.paper.claims
        ]

    @property
    def claims(self) -> pd.DataFrame:
        """The outcomes as a table: claim, whether it is ours, status, what the bounds alone say,
        value, interval and what it is over, the difference that can be seen, the size needed,
        expected, difference, test, when its bounds were set."""
        return pd.DataFrame([row_of(o) for o in self.outcomes])

    @property
    def figures(self) -> list[Figure]:
        """The curves behind the outcomes."""
        return unpack(self.info["figures"], self.arrays)

    @property
    def pictures(self) -> Mapping[str, Picture]:
        """The claims, and the figures of the page."""
        from experiments.report.paper.findings import of_claims

        return {"claims": of_claims(self.outcomes), **super().pictures}

    @property
    def headline(self) -> str:
        """How many of the paper's own claims have each verdict, and what came of ours beside it."""
        own = Counter(o.verdict for o in self.outcomes if not o.claim.ours)
        told = f"{own['reproduced']} of the paper's {own.total()} claims reproduced"
        others = [f"{own[word]} {word}" for word in get_args(Verdict)[1:] if own[word]]
        said = ", ".join([told, *others])
        ours = Counter(o.verdict for o in self.outcomes if o.claim.ours)
        if ours:
            told = f"{ours['reproduced']} of our own {ours.total()} reproduced"
            others = [f"{ours[word]} {word}" for word in get_args(Verdict)[1:] if ours[word]]
            said += "; " + ", ".join([told, *others])
        return f"{said}."

    @property
    def sentences(self) -> list[str]:
        """Which claims have each verdict; of those not measured, what the run was not given."""
        given = {"--preset": self.config.preset, "--model": self.config.model}
        told: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            said, needs = outcome.said, outcome.claim.needs
            if said == "not measured" and given.get(needs.split()[0]) is None:
                said += f", needs {needs}"
            told.setdefault(said, []).append(outcome.claim.id)
        return [
            f"{said[0].upper()}{said[1:]}: {', '.join(ids)}." for said, ids in sorted(told.items())
        ]

    @property
    def kept(self) -> str:
        """A sentence on the claims that runs kept with the package measured and this one did not;
        "" where there are none."""
        kept = recorded(self.paper.name)
        here = {outcome.claim.id for outcome in self.outcomes if outcome.found.n}
        more = {id for run in kept for id in run.found} - here
        if not more:
            return ""
        measured_more = [run for run in kept if run.found.keys() - here]
        given = " on a model given by --model" if all(r.config.model for r in measured_more) else ""
        return (
            f"What is kept with the package has {len(more)} more of these claims{given}. See them "
            f"with nope-interp reproduce {self.paper.name} --list."
        )

    def html(self) -> str:
        from experiments.report.findings import PageData, render_reproduction

        info = {k: v for k, v in self.info.items() if k not in ("figures", "experiment")}
        title = f"Do the claims of “{self.paper.title}” ({self.paper.name}) hold?"
        data = PageData(title, self.headline, self.measurements, info)
        said = (self.sentences, self.kept)
        return render_reproduction(data, self.paper, self.outcomes, self.figures, *said)


def row_of(outcome: Outcome, *, run: bool = True) -> dict[str, Any]:
    """What tables say of a claim; without a `run` its status says so."""
    claim, found = outcome.claim, outcome.found
    return {
        "claim": claim.id,
        "ours": claim.ours,
        "status": outcome.verdict if run else NOT_RUN,
        "by_bounds": outcome.by_bounds if run else NOT_RUN,
        "too_small": outcome.too_small,
        "value": found.value,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "n": found.n,
        "over": claim.over,
        "sees": outcome.visible,
        "matters": claim.effect,
        "sees_enough": outcome.sees_enough,
        "size_needed": outcome.size_needed,
        "expected": claim.expected,
        "difference": outcome.difference,
        "test": claim.test,
        "bounds_set": claim.bounds_set,
    }
