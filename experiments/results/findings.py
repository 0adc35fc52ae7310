"""What the experiment on a paper brings back: a number for each claim, and the curves behind it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Float

from experiments.results.measured import Measured
from nope_interp.errors import UserError
from probes.bootstrap import ArrayFunction, SequenceBootstrap

Kind = Literal["measured", "predicted", "reference", "chance"]
Array = np.ndarray


@dataclass(frozen=True)
class Series:
    """One curve, `kind` saying how it is drawn; low and high bound its 95% interval over `n` units.

    "predicted" is our formula; a "reference" is what its name says, to hold the others against.
    Units are seeds, tasks or whatever the figure says; 0 where a line has none.
    """

    name: str
    kind: Kind
    x: Float[Array, " point"]
    y: Float[Array, " point"]
    low: Float[Array, " point"] | None = None
    high: Float[Array, " point"] | None = None
    n: int = 0


@dataclass(frozen=True)
class Panel:
    """Curves on common axes; in a heat map, each one is a row."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Figure:
    """Panels that show one thing.

    Attributes:
        id: names it on the page and in the arrays.
        claims: the claims that it shows.
        log: which axes are logarithmic: "", "x" or "xy".
        ticks: names of x = 0, 1, 2, ..., where x is no number.
        heat_about: draws a heat map, whose colours spread about this value.
        shaded: marks a range of x.
    """

    id: str
    title: str
    caption: str
    x: str
    y: str
    panels: tuple[Panel, ...]
    claims: tuple[str, ...] = ()
    log: str = ""
    ticks: tuple[str, ...] = ()
    heat_about: float | None = None
    shaded: tuple[int, int] | None = None


@dataclass(frozen=True)
class Findings:
    """What a run found out. A claim that is missing from `claims` was not testable."""

    claims: dict[str, Measured]
    figures: tuple[Figure, ...]
    setting: str
    notes: tuple[str, ...] = ()

    def and_of(self, other: "Findings") -> "Findings":
        """What two parts of a run found out."""
        return Findings(
            self.claims | other.claims,
            (*self.figures, *other.figures),
            f"{self.setting}; {other.setting}",
            (*self.notes, *other.notes),
        )


def over_seeds(values: Float[Array, "seed *k"], function: ArrayFunction | None = None) -> Measured:
    """A function of the means over seeds, with its bootstrap interval over them.

    Args:
        values: numbers of each seed.
        function: maps rows of means `[row k]` to `[row]`; None takes the mean of a single number.

    Returns:
        The function of the means, and its 95% interval.
    """
    rows = values.reshape(len(values), -1)
    bootstrap = SequenceBootstrap().update(rows)
    score = bootstrap.score("", function or (lambda means: means[..., 0]), chance=np.nan)
    return Measured(score.value, score.ci_low, score.ci_high, score.n)


def share(count: int, n: int) -> Measured:
    """How many of so many did it, with Wilson's 95% interval (Wilson 1927), which lies from 0 to 1.

    Args:
        count: those that did.
        n: all of them.

    Returns:
        The share; NaN of none.
    """
    from scipy.stats import binomtest  # most of a second, which few processes need

    if not n:
        return Measured(np.nan, np.nan, np.nan, 0)
    interval = binomtest(count, n).proportion_ci(method="wilson")
    return Measured(count / n, float(interval.low), float(interval.high), n)


def exactly(values: Iterable[float]) -> Measured:
    """The largest of numbers that follow from weights exactly: there is nothing to resample."""
    found = np.array([*values], dtype=float)
    largest = float(found.max())  # NaN where any is
    return Measured(largest, largest, largest, len(found))


def curve(name: str, kind: Kind, x: Array, values: Float[Array, "unit point"]) -> Series:
    """The mean curve over units, such as seeds, with its interval; one alone has none.

    Args:
        name: what the legend calls it.
        kind: how it is drawn.
        x: the points, in any unit.
        values: each unit's curve, at these points.

    Returns:
        The mean, and its 95% interval point by point.
    """
    x = np.asarray(x, dtype=float)
    if len(values) == 1:
        return Series(name, kind, x, np.asarray(values[0], dtype=float), n=1)
    bootstrap = SequenceBootstrap().update(values)
    low, high = bootstrap.interval()
    return Series(name, kind, x, bootstrap.mean(), low, high, bootstrap.n)


def share_curve(name: str, x: Array, did: Float[Array, "unit point"]) -> Series:
    """The share of units that did something, point by point, with Wilson's intervals.

    Args:
        name: what the legend calls it.
        x: the points, in any unit.
        did: 1 for each unit that did, else 0.
    """
    shares = [share(int(column.sum()), len(column)) for column in did.T]
    value, low, high = (
        np.array([getattr(found, part) for found in shares])
        for part in ("value", "ci_low", "ci_high")
    )
    return Series(name, "measured", np.asarray(x, dtype=float), value, low, high, len(did))


def line(name: str, kind: Kind, x: Array, y: Array | float) -> Series:
    """A curve without an interval.

    Args:
        name: what the legend calls it.
        kind: how it is drawn.
        x: the points, in any unit.
        y: the values at these points; one number is drawn as a level.

    Returns:
        The curve.
    """
    x = np.asarray(x, dtype=float)
    return Series(name, kind, x, np.broadcast_to(np.asarray(y, dtype=float), x.shape).copy())


def panel(title: str, x: Array, **drawn: Mapping[str, Array | float]) -> Panel:
    """Curves over common points.

    Args:
        title: of the panel.
        x: the points, in any unit.
        drawn: for each `Kind`, values by name: those of several units, [unit point], become a
            `curve`, others a `line`.

    Returns:
        The panel, its curves in the order in which they are given.
    """
    series = (
        (curve if np.ndim(values) == 2 else line)(name, cast(Kind, kind), x, np.asarray(values))
        for kind, named in drawn.items()
        for name, values in named.items()
    )
    return Panel(title, tuple(series))


def log_spaced(length: int, points: int = 20) -> np.ndarray:
    """Whole numbers from 1 on, evenly spread on a logarithmic axis.

    Args:
        length: the last number.
        points: how many at most; equal ones are left out.

    Returns:
        `[point]`, growing.
    """
    return np.unique(np.geomspace(1, length, points).round().astype(int))


def chances(n_positions: int) -> tuple[float, float]:
    """Mean absolute error, in positions, of always the middle and of a uniform guess.

    Args:
        n_positions: L, how many there are.

    Returns:
        Near L/4 and L/3, the mean distance from the middle and that of two uniform positions.
    """
    at = np.arange(n_positions)
    return float(np.abs(at - np.median(at)).mean()), float(np.abs(at - at[:, None]).mean())


def chance_levels(n_positions: int) -> dict[str, float]:
    """`chances` by the names that they have in figures."""
    middle, uniform = chances(n_positions)
    return {"always the middle, L/4": middle, "a uniform guess, L/3": uniform}


def slope(x: Array, curves: Float[Array, "*rows point"]) -> Float[Array, "*rows"]:
    """Least-squares slope of log curve over log x.

    Args:
        x: the points, above 0.
        curves: values at these points, above 0.

    Returns:
        One slope for each curve; -1 of a curve 1/x.
    """
    centred = np.log(x) - np.log(x).mean()
    slopes: Array = np.log(curves) @ centred / (centred @ centred)
    return slopes


def largest_deviation(predicted: Float[Array, " k"]) -> ArrayFunction:
    """A function of means: the largest of |mean / predicted - 1|."""

    def deviation(means: Array) -> Array:
        largest: Array = np.abs(means / predicted - 1).max(axis=-1)
        return largest

    return deviation


_CURVE_ARRAYS = ("x", "y", "low", "high")


def pack(figures: Sequence[Figure]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Figures as they are kept.

    Args:
        figures: what the page shows.

    Returns:
        JSON-able words, and apart from them the numbers by "figure/panel/series/name".
    """
    words: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for figure in figures:
        panels = []
        for p, panel in enumerate(figure.panels):
            for s, series in enumerate(panel.series):
                found = {name: getattr(series, name) for name in _CURVE_ARRAYS}
                arrays |= {
                    f"{figure.id}/{p:03}/{s:03}/{name}": np.asarray(array, dtype=np.float64)
                    for name, array in found.items()
                    if array is not None
                }
            drawn = [{"name": s.name, "kind": s.kind, "n": s.n} for s in panel.series]
            panels.append({"title": panel.title, "series": drawn})
        kept = {key: value for key, value in vars(figure).items() if key != "panels"}
        words.append(kept | {"panels": panels})
    return words, arrays


def unpack(words: Sequence[dict[str, Any]], arrays: dict[str, Array]) -> list[Figure]:
    """Figures out of what `pack` made.

    Args:
        words: its words.
        arrays: its numbers.

    Returns:
        The figures.

    Raises:
        UserError: numbers are missing, or words are no figures.
    """
    try:
        return [_figure(figure, arrays) for figure in words]
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            "the run's info.json is damaged: delete the run folder and run the command again."
        ) from error


def _figure(words: dict[str, Any], arrays: dict[str, Array]) -> Figure:
    panels = tuple(
        Panel(
            panel["title"],
            tuple(
                _series(words["id"], f"{p:03}/{s:03}", drawn, arrays)
                for s, drawn in enumerate(panel["series"])
            ),
        )
        for p, panel in enumerate(words["panels"])
    )
    tuples = {key: tuple(words[key]) for key in ("claims", "ticks")}
    shaded = words.get("shaded")
    return Figure(**{**words, **tuples, "panels": panels, "shaded": shaded and tuple(shaded)})


def _series(figure: str, at: str, drawn: dict[str, Any], arrays: dict[str, Array]) -> Series:
    x, y, low, high = (arrays.get(f"{figure}/{at}/{name}") for name in _CURVE_ARRAYS)
    if x is None or y is None:
        raise UserError(
            f"the arrays of the figure {figure!r} are damaged: delete the run folder and run the "
            "command again."
        )
    return Series(drawn["name"], drawn["kind"], x, y, low, high, drawn.get("n", 0))
