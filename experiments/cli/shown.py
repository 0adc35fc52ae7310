"""What a command prints of what it found: a table and a sentence, or JSON.

Tables are imported where they are needed: what they are made of is heavy.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# What a pipe or a file is given, where no terminal says how wide it is.
_WIDTH = 100
# In fewer columns nothing can be read: what says less, says nothing.
_NARROWEST = 20
_SMALL = "by a run with fewer seeds than by default, or at smaller sizes."
_OF_CLAIMS = (
    "Sees: how far beyond its bound a number must lie for such a run to tell, four times in five.",
    "Matters: the least distance from the bound that would count.",
    "Bounds: set before the first run, or after one had been seen.",
    "Pilots: before it, but sizes were chosen on another seed. Changed: before it, but the setting "
    "was changed after a run.",
    f"Small: {_SMALL}",
    "Quantities, units and bounds: on the run's page, and in docs/papers.",
)
_OF_PAPERS = (
    "Reproduced: how many of the paper's own claims. Ours: how our further questions came out.",
    "(-1): one is contradicted.",
    f"*: {_SMALL}",
    "Took: the time of all runs that these numbers are of.",
    "Kept: a run comes with the package.",
    "The whole title, each claim, and the runs' sizes: nope-interp reproduce NAME --list.",
)


@dataclass(frozen=True)
class Shown:
    """A result in its two forms.

    Attributes:
        value: JSON-able.
        lines: what follows the table, each on a line of its own.
        table: rich's, for people to read; None where a sentence is all.
    """

    value: Any
    lines: Sequence[str]
    table: Any = None

    def show(self, as_json: bool) -> None:
        """Print one of the two."""
        if as_json:
            print(json.dumps(self.value, indent=2))
            return
        from rich.text import Text

        console = _console()
        if self.table is not None:
            console.print(self.table)
        for line in self.lines:
            # A path is copied: it is neither cut nor read as markup.
            console.print(Text(line), soft_wrap=True)


def _console() -> Any:
    from rich.console import Console

    # There is none where it was closed before the start.
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) >= _NARROWEST:
        return Console(width=int(told), highlight=False)
    # rich would take any number there.
    asked = on_terminal and not told
    return Console(width=None if asked else _WIDTH, highlight=False)


def _comparison(config: Any, found: Any) -> Shown:
    from experiments.cli import tables
    from experiments.results.notes import FEWER, UNMOVED

    answer, report = found.answer, str(found.folder / "report.html")
    value = {
        "headline": found.headline,
        "answer": dataclasses.asdict(answer),
        "mechanism": found.mechanism,
        "report": report,
        "verdicts": [dataclasses.asdict(verdict) for verdict in found.verdicts],
        "followed": _records(found.followed),
    }
    table = tables.of_answer(answer, _console().width) if answer.codes else None
    why = [note for note in found.info["notes"] if note.startswith((UNMOVED, FEWER))]
    return Shown(value, [answer.measured_on, *why, found.headline, f"Report: {report}"], table)


def _heads(config: Any, found: Any) -> Shown:
    from experiments.cli import tables

    table = tables.of_heads(found.heads, bool(found.info["ablation"]))
    shown = _with_table(found, "heads", _records(found.heads), table)
    more = filter(None, [found.needing, *found.finding, found.by_own_rules])
    value = {**shown.value, "finding": found.finding, "finders": _records(found.finders)}
    return Shown(value, [found.measured_on, *more, *shown.lines], shown.table)


def _emergence(config: Any, found: Any) -> Shown:
    from experiments.cli import tables

    onsets = json.loads(found.onsets.to_json(orient="index"))
    return _with_table(found, "onsets", onsets, tables.of_onsets(found.onsets, found.follow_onsets))


def _reproduction(config: Any, found: Any) -> Shown:
    from experiments.cli import tables

    return _with_table(found, "claims", _records(found.claims), tables.of_claims(found.claims))


def _dropped(config: Any, found: Any) -> Shown:
    from experiments.cli import tables

    shown = _with_table(
        found, "variants", _records(found.by_variant), tables.of_dropped(found.by_variant)
    )
    model = str(found.model)
    return Shown({**shown.value, "model": model}, [*shown.lines, f"Model: {model}"], shown.table)


def _benchmark(config: Any, found: Any) -> Shown:
    from experiments.cli import tables

    kept = _records(found.methods)
    return _with_table(found, "methods", kept, tables.of_methods(found.methods))


def _with_table(found: Any, name: str, kept: Any, table: Any) -> Shown:
    report = str(found.folder / "report.html")
    value = {"headline": found.headline, "report": report, name: kept}
    return Shown(value, [found.headline, f"Report: {report}"], table)


def _records(table: Any) -> Any:
    return json.loads(table.to_json(orient="records"))


def _trained(config: Any, path: Any) -> Shown:
    from experiments.variants.held_out import held_out

    found = held_out(config, path)
    told = "none, its text is too short" if found is None else found.words()
    kept = {} if found is None else {name: of for name, of in vars(found).items() if of is not None}
    value = {"model": str(path), "held_out_loss": kept.pop("loss", None), **kept}
    return Shown(value, [f"Model: {path} (held-out loss: {told})"])


SHOWN: dict[str, Callable[[Any, Any], Shown]] = {
    "compare": _comparison,
    "probe": _comparison,
    "heads": _heads,
    "drop": _dropped,
    "emergence": _emergence,
    "reproduce": _reproduction,
    "benchmark": _benchmark,
    "train": _trained,
}


def atlas_shown(found: Any) -> Shown:
    """Several models' heads side by side."""
    from experiments.cli import tables

    return _with_table(found, "counts", _records(found.counts), tables.of_atlas(found.models))


def claims_shown(table: Any, name: str | None) -> Shown:
    """Papers' claims, as `listing` gives them; for people one line a paper, or one a claim."""
    from experiments.cli import tables
    from experiments.papers.registry import paper

    if name is None:
        return Shown(_records(table), _OF_PAPERS, tables.of_papers(table))
    own = table[table["paper"] == name]
    needed = own[own["size_needed"] != ""].groupby("size_needed", sort=False)["claim"]
    lines = [f"A run that can test {', '.join(ids)}: {size}." for size, ids in needed]
    if own["ours"].any():
        lines.append(f"Ours, not the paper's: {', '.join(own.loc[own['ours'], 'claim'])}.")
    alone = own[own["status"] != own["by_bounds"]]
    lines += [
        f"By its bounds alone, whatever its run can see, each is {word}: {', '.join(ids)}."
        for word, ids in alone.groupby("by_bounds", sort=False)["claim"]
    ]
    title = f"Paper: {own['title'].iloc[0]}"
    sizes = [*tables.runs_of(own), f"Sizes by default: {paper(name).default}."]
    says = [f"{claim.id}: {claim.says}" for claim in paper(name).claims]
    lines = [title, *says, *_OF_CLAIMS, *sizes, *lines]
    return Shown(_records(own), lines, tables.of_listed(own))


def sweep_shown(swept: Any) -> Shown:
    """How many cells of a sweep are done, and where."""
    cells = swept.summary()
    done = sum(cell["state"] == "done" for cell in cells)
    lines = [f"{done} of {len(cells)} cells are done.", f"Sweep: {swept.folder}"]
    return Shown({"sweep": str(swept.folder), "cells": cells}, lines)
