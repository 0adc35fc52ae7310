"""The table's rows and the run's arrays, found by setting, site and layer.

A setting is what a model reads: which tokens, and whether a begin token stands before them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from experiments.report.data import ReportData
from experiments.report.encode import number, numbers
from experiments.results.answer import site_words
from experiments.results.measurements import RANDOM_INIT, intact_readings
from probes.scores import SHUFFLED

# Known variants stand in this order, whatever else a run holds after them.
VARIANTS = ("trained", "pretrained", RANDOM_INIT, "bidirectional")

# What charts of changes call their control.
SIZE_MATCHED_CONTROL = "size-matched control"

ByName = dict[str, np.ndarray]
# By view key and variant.
Arrays = dict[str, dict[str, ByName]]

# The input of a block belongs to the residual stream, one step before the block.
_STREAMS = {"resid_pre": "resid", "resid_post": "resid", "attn_out": "attn_out"}
_STREAM_NAMES = {
    "resid": "residual stream",
    "attn_out": "attention output",
    "resid_pre": "residual stream before each layer",
}


def variants_of(data: ReportData) -> list[str]:
    """The variants of the run, known ones first and always in the same order."""
    names = {str(name) for name in data.measurements["variant"]}
    names |= set(data.example.get("predictions", {}))
    return [name for name in VARIANTS if name in names] + sorted(names - set(VARIANTS))


class Points:
    """What was read in models as they are, found by setting, site, probe and metric.

    Ready to be drawn by layer.
    """

    def __init__(self, data: ReportData) -> None:
        table = intact_readings(data.measurements)
        table = table[table["head"].isna()]
        self.variants = variants_of(data)
        self.rows: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
        # (view key, probe, variant) -> chance of the mean absolute error there
        self.chance: dict[tuple[str, str, str], float] = {}
        self.depths: set[int] = set()
        apart = _inputs_apart(data)
        for row in table.itertuples():
            tokens, begin, stream, depth = located(
                row.tokens, row.begin_token, row.site, row.layer, apart
            )
            self.depths.add(depth)
            # A null control, as some writers of parquet leave it, is the measurement itself.
            control = row.control if isinstance(row.control, str) else ""
            group = (tokens, begin, stream, row.probe, row.metric)
            self.rows[*group, control, row.variant].append((depth, row))
            if row.metric == "mae" and not control and number(row.chance) is not None:
                view = view_key(tokens, begin, stream, depth)
                self.chance[view, str(row.probe), str(row.variant)] = float(str(row.chance))
        self.groups = list(dict.fromkeys(key[:3] for key in self.rows))

    def panels(self, setting: tuple[Any, ...], *drawn: tuple[str, ...]) -> list[dict[str, Any]]:
        """A panel for each probe, metric, title and unit that there are numbers for."""
        found = [self._panel((*setting, *which), title, unit) for *which, title, unit in drawn]
        return [panel for panel in found if panel["series"]]

    def _panel(self, group: tuple[Any, ...], title: str, unit: str) -> dict[str, Any]:
        """Chance, controls and values of every variant."""
        values: list[dict[str, Any]] = []
        controls: list[dict[str, Any]] = []
        chances: dict[tuple[Any, ...], dict[str, Any]] = {}
        for variant in self.variants:
            for control, into in (("", values), (SHUFFLED, controls)):
                found = sorted(self.rows.get((*group, control, variant), ()), key=lambda p: p[0])
                if not found:
                    continue
                depths, rows = zip(*found, strict=True)
                value, low, high, chance = (
                    numbers(getattr(row, name) for row in rows)
                    for name in ("value", "ci_low", "ci_high", "chance")
                )
                kind = "control" if control else "value"
                name = f"{variant}, {control}" if control else variant
                into.append(make_series(kind, variant, depths, value, name, low, high))
                if any(level is not None for level in chance):
                    level = make_series("chance", None, depths, chance, "chance")
                    chances.setdefault((*depths, *chance), level)
        return make_panel(title, None, unit, [*chances.values(), *controls, *values])

    def site_control(self) -> dict[str, Any]:
        """The menu of sites that the table has rows for."""
        return site_menu(stream for _, _, stream in self.groups)

    def ticks(self) -> dict[str, str]:
        """What stands under each depth on the axis."""
        return depth_ticks(self.depths)


class SiteArrays:
    """The arrays, found by probe and then by setting, site and layer."""

    def __init__(self, data: ReportData) -> None:
        self.found: dict[str, dict[tuple[Any, ...], dict[str, ByName]]] = {}
        order = variants_of(data)
        # A run folder keeps other arrays too, under other keys.
        keys = [key for key in data.arrays if key.count("/") == 6 and key.split("/")[0] in order]
        apart = _inputs_apart(data)
        for key in sorted(keys, key=lambda key: order.index(key.split("/")[0])):
            variant, tokens, begin, layer, site, probe, name = key.split("/")
            found = located(tokens, begin == "begin", site, layer, apart)
            probes = self.found.setdefault(probe, {})
            probes.setdefault(found, {}).setdefault(variant, {})[name] = data.arrays[key]

    def arrays(self, probe: str) -> Arrays:
        """{view key: {variant: {name: array}}} of one probe."""
        found = self.found.get(probe, {})
        return {view_key(*where): found[where] for where in sorted(found, key=lambda at: at[3])}

    def controls(self) -> list[dict[str, Any]]:
        """The menus of sites and layers that there are arrays for; the last layer is chosen where
        no other is known to be read best."""
        found = [where for probe in self.found.values() for where in probe]
        depths = sorted({depth for *_, depth in found})
        layers = {str(depth): _depth_name(depth) for depth in depths}
        last = str(depths[-1]) if depths else ""
        sites = site_menu(stream for _, _, stream, _ in found)
        return [sites, menu("layer", "Layer", layers, last)]


def best_sites(data: ReportData) -> dict[str, dict[str, tuple[str, int]]]:
    """Where the verdict on each hypothesis was read: {hypothesis: {setting: (stream, depth)}}.

    Of several variants, that of the model in question counts: the first one.
    """
    rank = {name: nth for nth, name in enumerate(variants_of(data))}
    apart = _inputs_apart(data)
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for verdict in data.verdicts:
        rows = sorted(verdict.rows, key=lambda row: rank.get(str(row["variant"]), len(rank)))
        for row in rows:
            at = located(row["tokens"], row["begin_token"], row["site"], row["layer"], apart)
            found.setdefault(verdict.hypothesis, {}).setdefault(view_key(*at[:2]), at[2:])
    return found


def inputs_apart(sites: Iterable[Any]) -> bool:
    """Whether the inputs of later blocks are a stream of their own: where outputs were read too, at
    the same depths."""
    return "resid_post" in set(map(str, sites))


def _inputs_apart(data: ReportData) -> bool:
    return inputs_apart(intact_readings(data.measurements)["site"])


def located(
    tokens: Any, begin: Any, site: Any, layer: Any, apart: bool
) -> tuple[str, bool, str, int]:
    """Setting, stream and depth of a number; the input of block n is at depth n - 1.

    `apart` is what `inputs_apart` says of the sites that were read.
    """
    depth = int(layer) - 1 if site == "resid_pre" else int(layer)
    own = apart and site == "resid_pre" and depth >= 0
    return str(tokens), bool(begin), str(site) if own else _STREAMS.get(str(site), str(site)), depth


def words_at(stream: str, depth: int) -> str:
    """The site at this depth of a stream, as sentences name it."""
    if depth < 0 or stream == "resid_pre":
        return site_words("resid_pre", depth + 1)
    return site_words("resid_post" if stream == "resid" else stream, depth)


def view_key(tokens: str, begin: bool, *choices: Any) -> str:
    """The name of a view: the setting, then what each menu is set to.

    Args:
        tokens: what was read, such as "text".
        begin: whether sequences start with a begin token.
        choices: of the menus, in their order.

    Returns:
        A key of `Chart.views`.
    """
    return "|".join([tokens, "begin" if begin else "nobegin", *map(str, choices)])


def site_menu(streams: Iterable[str]) -> dict[str, Any]:
    """The menu of these sites, each once."""
    ordered = _ordered(dict.fromkeys(streams))
    return menu("site", "Site", {stream: stream_name(stream) for stream in ordered})


def stream_name(stream: str) -> str:
    """A stream as menus and titles name it."""
    return _STREAM_NAMES.get(stream, stream)


def depth_ticks(depths: Iterable[int]) -> dict[str, str]:
    """{depth: what stands under it on the axis}; the input is at -1."""
    return {str(depth): _depth_name(depth, short=True) for depth in sorted(set(depths))}


def _ordered(streams: Iterable[str]) -> list[str]:
    return sorted(streams, key=lambda stream: (stream not in _STREAM_NAMES, stream != "resid"))


def _depth_name(depth: int, short: bool = False) -> str:
    if depth < 0:
        return "input" if short else "input of layer 0"
    return str(depth) if short else f"layer {depth}"


def menu(
    name: str, label: str, options: Mapping[str, str], default: str | None = None
) -> dict[str, Any]:
    """A drop-down menu of {value: words}, the first chosen unless `default` says otherwise."""
    first = next(iter(options), "")
    pairs = [list(option) for option in options.items()]
    return {"name": name, "label": label, "options": pairs, "value": default or first}


def make_panel(title: str, variant: str | None, y: str, series: list[Any]) -> dict[str, Any]:
    """One plot: its variant where it shows a single one, the unit of its y axis, its series."""
    return {"title": title, "variant": variant, "y": y, "series": series}


def make_series(
    kind: str, variant: str | None, x: Any, y: Any, name: str, low: Any = None, high: Any = None
) -> dict[str, Any]:
    """One line with its interval, where it has one; variant is None for what all share."""
    series = {"kind": kind, "variant": variant, "name": name, "x": numbers(x, 7), "y": numbers(y)}
    if low is not None and high is not None:
        series |= {"low": numbers(low), "high": numbers(high)}
    return series
