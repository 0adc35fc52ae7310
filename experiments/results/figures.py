"""A figure as a function: it draws the panels, and its docstring is what the page says of them."""

from collections import ChainMap
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from inspect import cleandoc, signature, unwrap
from typing import Any, ParamSpec

import numpy as np

from experiments.results.findings import Figure, Panel, Series

P = ParamSpec("P")


def figure(
    id: str, x: str, y: str, *, shares: bool = False, **options: Any
) -> Callable[[Callable[P, Iterable[Panel]]], Callable[P, Figure]]:
    """Makes a figure of a function that draws its panels.

    The first paragraph of its docstring is the title, the others are the caption. Names in braces
    stand for what they would in an f-string of its body: its arguments and the module's names.

    Args:
        id: the figure's.
        x: what the x axis shows.
        y: what the y axis shows.
        shares: whether y is a share. Then intervals end at 0 and 1, beyond which those of few units
            reach.
        options: further values of `Figure`, or functions of the arguments that give them.

    Returns:
        The decorator.
    """

    def of(draw: Callable[P, Iterable[Panel]]) -> Callable[P, Figure]:
        title, _, caption = cleandoc(draw.__doc__ or "").partition("\n\n")
        plain = unwrap(draw)

        @wraps(draw)
        def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
            given = signature(plain).bind(*args, **kwargs)
            given.apply_defaults()
            panels = map(_of_shares, draw(*args, **kwargs)) if shares else draw(*args, **kwargs)
            names = ChainMap(given.arguments, plain.__globals__)
            return Figure(
                id,
                title.removesuffix(".").format_map(names),
                " ".join(caption.split()).format_map(names).rstrip(),
                x,
                y,
                tuple(panels),
                **{
                    name: value(*args, **kwargs) if callable(value) else value
                    for name, value in options.items()
                },
            )

        return drawn

    return of


def _of_shares(panel: Panel) -> Panel:
    def clipped(series: Series) -> Series:
        if series.low is None or series.high is None:
            return series
        return replace(series, low=np.clip(series.low, 0, 1), high=np.clip(series.high, 0, 1))

    return replace(panel, series=tuple(map(clipped, panel.series)))
