"""What probes still read where codes are removed, in a paper's style."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawn

from experiments.report.paper.drawing import PAGE, Drawing

# The gain from which black letters no longer stand out.
_DARK = 0.6


def of_still_readable(group: Mapping[str, Any]) -> Drawing:
    """The gain of each probe over chance under each condition, with its interval.

    Args:
        group: as `experiments.report.uses.use_groups` gives it.
    """
    height = 1.1 + 0.26 * len(group["still"]["conditions"])
    return Drawing("still-readable", lambda drawn: _still(drawn, group["still"]), (PAGE, height))


def _still(drawn: Drawn, still: Mapping[str, Any]) -> None:
    axes = drawn.subplots()
    rows = [condition["cells"] for condition in still["conditions"]]
    gains = np.array([[np.nan if c is None else c["gain"] for c in row] for row in rows])
    image = axes.imshow(100 * gains, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for at, row in enumerate(rows):
        for column, cell in enumerate(row):
            if cell is not None and np.isfinite([cell["gain"], cell["low"], cell["high"]]).all():
                value, low, high = (round(100 * cell[name]) for name in ("gain", "low", "high"))
                dark = "white" if cell["gain"] > _DARK else "black"
                said = f"{value}% [{low}, {high}]"
                axes.text(column, at, said, ha="center", va="center", color=dark, fontsize=6.5)
    names = [name.replace(" ", "\n", 1) for name in still["columns"]]
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(rows)), [condition["name"] for condition in still["conditions"]])
    axes.tick_params(length=0)
    drawn.colorbar(image, ax=axes, label="gain of a probe, %; 0 is chance")
