"""The registry as pages to read."""

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from experiments.papers.recorded import Recorded, kept_outcomes, recorded
from experiments.papers.registry import PAPERS
from experiments.results.claims import AFTER, SETTING_LATER, Outcome, Paper, Verdict
from experiments.results.intervals import with_interval
from experiments.runs.steps import duration


def papers_pages() -> dict[str, str]:
    """Every paper, its claims and their tests, and what runs of ours found.

    `python -m experiments.papers.markdown docs` writes them again.

    Returns:
        The texts of `docs/papers.md` and of a page for each paper, by the file's path in `docs`.
    """
    pages = {"papers.md": _overview()}
    pages |= {f"papers/{paper.name}.md": _of_paper(paper) for paper in PAPERS.values()}
    return {path: "\n".join(lines) + "\n" for path, lines in pages.items()}


def _overview() -> Iterator[str]:
    yield from (
        "# Papers and their claims",
        "",
        "Which claims of papers do our runs reproduce? This table counts them by what came out; a "
        "paper's page has each claim.",
        "",
    )
    yield from _summary()
    yield from (
        "",
        "## What the words mean",
        "",
        "Written by `python -m experiments.papers.markdown docs` from the registry that "
        "`nope-interp reproduce` runs, and from runs that are kept with it.",
        "`nope-interp reproduce --list` says which of these claims a finished run of yours shows, "
        "and `reproduce NAME --list` each claim of a paper.",
        "",
        "Claims are in our words. The text of most papers could not be read here, so each claim "
        "says how sure its source is.",
        "Published numbers that are marked as recalled are no numbers to fail against. A claim "
        "comes down to one number with",
        "a 95% interval, over seeds unless it names something else.",
        "It is *reproduced* where the whole interval lies within the bounds of its test. In a run "
        "with fewer seeds than by default, or",
        "at smaller sizes, it is *reproduced small*.",
        "It is *contradicted*, or *contradicted small*, where the interval lies outside of the "
        "bounds, and *uncertain* where it crosses one.",
        "It is *not measured* where the run lacked what it needs. All tests, bounds and tolerances "
        "are ours.",
        "",
        "*Not testable here* is what a run of this size cannot decide; the size needed is said. "
        "There are three cases. The",
        "number cannot be had. The paper's claim is of trained language models, and ours are far "
        "smaller. Or the interval crosses a bound and the run does not see what would matter.",
        "Which claims are of larger models was set after their numbers had been seen, whatever "
        "these were. So what the bounds alone say stands beside it.",
        "A run *sees* a difference from a bound where it finds it in four of five cases: "
        "1 + 0.84 / 1.96 half widths of the interval.",
        "What *matters* is what is expected minus the nearest bound, an effect that a paper "
        "published, or a choice of ours. Of kazemnejad2023's trained models we chose it after a "
        "run of five tasks had been seen.",
        "A run that sees only twice what matters needs four times the units, or less than that "
        "where they are few.",
        "",
    )
    yield from ("```{toctree}", ":hidden:", "")
    yield from (f"papers/{name}" for name in PAPERS)
    yield "```"


def _summary() -> Iterator[str]:
    """What came of all claims, those of ours apart, and how many have late bounds."""
    yield (
        "| paper | the paper's own claims | our questions beside them | bounds set after a run | "
        "bounds before, setting changed after a run |"
    )
    yield "| --- | --- | --- | --- | --- |"
    all_outcomes, small = [], []
    for paper in PAPERS.values():
        outcomes = kept_outcomes(paper)
        names = [outcome.claim.id for outcome in outcomes if outcome.too_small]
        small += [f"[{name}](papers/{paper.name}.md#{name})" for name in names]
        yield _counted(f"[{paper.name}](papers/{paper.name}.md)", outcomes)
        all_outcomes += outcomes
    yield _counted("all", all_outcomes)
    if small:
        yield ""
        yield (
            f"Within their bounds, but surely by less than would matter: {', '.join(small)}. These "
            "tests ask for the sign alone."
        )


def _counted(name: str, outcomes: Sequence[Outcome]) -> str:
    """A row of the summary."""
    cells = [name]
    for ours in (False, True):
        counts = Counter(outcome.verdict for outcome in outcomes if outcome.claim.ours == ours)
        told = [f"{counts[word]} {word}" for word in get_args(Verdict) if counts[word]]
        cells.append(f"{counts.total()}: {', '.join(told)}" if told else "–")
    set_at = Counter(outcome.claim.bounds_set for outcome in outcomes)
    cells += [str(set_at[late]) for late in (AFTER, SETTING_LATER)]
    return f"| {' | '.join(cells)} |"


def _of_paper(paper: Paper) -> Iterator[str]:
    kept = recorded(paper.name)
    yield from (f"# {paper.short} ({paper.name})", "", f"{paper.citation}.", "")
    yield (
        f"Run it with `nope-interp reproduce {paper.name}`: {paper.n_seeds} seeds. "
        f"By default: {paper.default}. Towards the paper's own sizes: {paper.paper_sizes}."
    )
    options = " ".join(f"`--{size}`" for size in paper.sizes)
    if options:
        yield f"Multiplied by {options}."
    yield ""
    if not kept:
        yield "No run of it is kept here."
    for run in reversed(kept):
        if run is kept[-1]:
            yield f"The run kept here: {_run(run)}."
        else:
            yield f"Measured again by {_run(run)}: {', '.join(run.found)}."
    outcomes = kept_outcomes(paper)
    yield from ("", *_at_a_glance(outcomes))
    for outcome in outcomes:
        yield ""
        yield from _of_claim(outcome, bool(kept))


def _at_a_glance(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each claim, those of ours last."""
    yield from ("| claim | came out | measured |", "| --- | --- | --- |")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.claim.ours):
        claim, found = outcome.claim, outcome.found
        whose = "Ours: " if claim.ours else ""
        number = "–" if math.isnan(found.value) else _number(outcome)
        yield f"| {whose}[{claim.says.rstrip('.')}](#{claim.id}) | {outcome.said} | {number} |"


def _run(kept: Recorded) -> str:
    return f"`{kept.config.command()}`, {duration(kept.seconds)}"


def _of_claim(outcome: Outcome, ran: bool) -> Iterator[str]:
    claim = outcome.claim
    yield from (f"## {claim.id}", "", claim.says, "")
    entries = {
        "Source": claim.source,
        "How sure": claim.status,
        "Measured": claim.measure,
        "Test": claim.test,
        "Bounds set": claim.bounds_set,
        "Came out": _came_out(outcome) if ran else "",
        "Sees": _sees(outcome),
        "Size needed": outcome.size_needed,
        "Published": claim.published,
        "Differs from the paper": claim.differs,
        "Needs": claim.needs,
    }
    yield from (f"- {name}: {text.rstrip('.')}." for name, text in entries.items() if text)


def _came_out(outcome: Outcome) -> str:
    found = outcome.found
    if math.isnan(found.value):
        return outcome.verdict
    alone = outcome.by_bounds
    beside = "" if alone == outcome.verdict else f", by its bounds alone {alone}"
    return f"{outcome.said}{beside}; {_number(outcome)}"


def _number(outcome: Outcome) -> str:
    found = outcome.found
    if outcome.visible == 0:
        return f"{found.value:.3g}, without spread"
    interval = with_interval(found.value, found.ci_low, found.ci_high)
    return f"{interval}, over {found.n} {outcome.claim.over}"


def _sees(outcome: Outcome) -> str:
    if math.isnan(outcome.visible):
        return ""
    if outcome.visible == 0:
        return "every difference"
    matters = outcome.claim.effect
    than = "" if math.isnan(matters) else f"; {matters:.2g} would matter"
    return f"a difference of {outcome.visible:.2g} from a bound{than}"


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description="Writes the pages of all papers.")
    asked.add_argument("docs", type=Path, help="the folder of papers.md and papers/")
    docs = asked.parse_args().docs
    for page, text in papers_pages().items():
        (docs / page).write_text(text, encoding="utf-8")
