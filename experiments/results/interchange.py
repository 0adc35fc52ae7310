"""How the tidy table names what an interchange of position codes did, and what it says.

Needs no torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.results.code_ablation import EVERYWHERE, SIZE_MATCHED
from experiments.results.intervals import Interval
from experiments.results.measurements import finished
from experiments.results.position_use import (
    Effect,
    Use,
    Word,
    controlled,
    of_halves,
    worth_following,
)
from experiments.results.readability import SETTING
from probes.code_names import SMOOTH

PROBE = "interchange"
# The share of the way in what later layers write, on text.
WRITTEN = "written towards"
# Which positions are moved.
ASKING, QUESTION = "asking positions", "question"
# Of moved answers, the share that is as at the position whose code was given, as at their own, or
# another one.
TOWARDS, STAYS, NEITHER = "towards", "stays", "neither"
# Of answers where order is destroyed, the share that is right.
RESTORED = "restored"
ORDER_DESTROYED = "order destroyed"
# The share that follows, less that of the size-matched control; less that of the run where nothing
# is moved; and the share that does neither, less the control's.
NET, BEYOND, BROKEN = "net", "beyond", "broken"
# Of a half of the mean residual: the share that follows the whole, less what follows the other half
# alone.
ADDED = "added"
# The share that follows a smooth trend, less that which follows as many random functions of the
# position; and the same of what it adds.
PARTICULAR, ADDED_PARTICULAR = "beyond random functions", "added beyond random functions"
# On text: how much further the code goes than where it tells an unrelated order, of what text in
# that order leaves of the way; what this adds to a half of the mean residual; and these controls.
THIS_ORDER, ADDED_THIS_ORDER = "beyond an unrelated order", "added beyond an unrelated order"
TOLD_UNRELATED, IN_UNRELATED = "told an unrelated order", "in an unrelated order"
# In nats: how much longer a way is than a tenth, or a thousandth, of that to another order.
OVER_TENTH = "over a tenth of another order's"
OVER_THOUSANDTH = "over a thousandth of another order's"
# The rank of what a full move does among the control's draws; and whether the site tells position
# by the code at all.
RANK, CARRIED = "rank among controls", "carried"
# The share of answers that are right, and what a model's is held against before anything is said of
# its codes.
ACCURACY = "accuracy"
GUESSER = "order-free guesser"
SHUFFLED_QUESTION = "question shuffled"
# What the model has beyond a guesser that is blind to order, and what it loses where there is none.
ABOVE_GUESSER, LOST_BY_SHUFFLE = "above_guesser", "lost_by_shuffle"

_NOISING, _DENOISING, _EXTRAPOLATED = "moved", "put back", "extrapolated"
_NEARER = "nearer than "
_AT_DOSE = f"{TOWARDS} at dose "


def noising(code: str, moved: str) -> str:
    """The name of the condition in which these positions are told by this code to be others.

    Args:
        code: which one is moved.
        moved: the positions, in words.

    Returns:
        What stands in the column `positions`.
    """
    return f"{_NOISING}: {code} of the {moved}"


def denoising(code: str, moved: str) -> str:
    """The name of the condition in which this code alone tells these positions.

    Args:
        code: which one is put back.
        moved: the positions, in words.

    Returns:
        What stands in the column `positions`.
    """
    return f"{_DENOISING}: {code} of the {moved}"


def condition_of(name: str) -> tuple[str, str, str]:
    """What `noising` and `denoising` named: the direction, the code, and the positions."""
    direction, _, told = name.partition(": ")
    code, _, moved = told.rpartition(" of the ")
    return direction, code, moved


def extrapolated(moved: str) -> str:
    """The condition of what 1/m predicts at the later ones of these positions from the first."""
    return f"{_EXTRAPOLATED}: 1/m of the {moved}"


def nearer_than(rival: str) -> str:
    """The metric that says how much nearer 1/m comes than another trend."""
    return f"{_NEARER}{rival}"


def at_dose(dose: float) -> str:
    """The metric `TOWARDS` where a code is moved by a share of the way."""
    return f"{_AT_DOSE}{dose:g}"


def uses(measurements: pd.DataFrame) -> list[Use]:
    """What noising and denoising of each code came to, with q-values over them all.

    Args:
        measurements: the tidy table with the rows of `interchange_rows`, of one model variant.

    Returns:
        One for each code, site and set of positions, in the table's order.
    """
    every = finished(measurements)
    every = every[every["probe"] == PROBE]
    rows = every[every["control"] == ""]
    guessed = _guessed(every)
    kept = _under(every, RESTORED, ORDER_DESTROYED, "ci_high")
    metrics = set(every["metric"])
    # Where no order matters, what the control changes is broken: no answer is to change.
    to_stay = ACCURACY in metrics and LOST_BY_SHUFFLE not in metrics
    breaks = _under(every, TOWARDS if to_stay else NEITHER, SIZE_MATCHED, "ci_high")
    found: dict[tuple[str, str, int, str], dict[str, dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        direction, code, moved = condition_of(row["positions"])
        if direction in (_NOISING, _DENOISING):
            use = found.setdefault((code, moved, row["layer"], row["site"]), {})
            use.setdefault(direction, {})[row["metric"]] = row
    judged = controlled(
        [
            Use(
                code,
                layer,
                site,
                moved,
                _effect(of[_NOISING], breaks.get((noising(code, moved), layer, site), 0.0)),
                _effect(of[_DENOISING]),
                found=of[_NOISING][CARRIED]["value"] > 0,
                adds=_adds(of[_NOISING], of[_DENOISING]),
                destroyed=kept.get((denoising(code, moved), layer, site), 0.0) < (1 + guessed) / 2,
                rests_on_order=1 - guessed,
            )
            for (code, moved, layer, site), of in found.items()
        ]
    )
    short, nothing = (
        set(rows[(rows["metric"] == over) & (rows["ci_high"] < 0)]["positions"])
        for over in (OVER_TENTH, OVER_THOUSANDTH)
    )
    return _with_counting(worth_following(of_halves(judged), short, nothing), rows)


def _guessed(rows: pd.DataFrame) -> float:
    """Of the answers that a model gets right, the share that an order-blind guesser could get, too.

    0 where no guesser was asked, and on tasks that no order matters to: there any change counts.
    """
    if LOST_BY_SHUFFLE not in rows["metric"].array:
        return 0.0
    accuracy = rows[rows["metric"] == ACCURACY].set_index("control")["value"]
    right = float(accuracy[""])
    return min(1.0, float(accuracy[GUESSER]) / right) if right else 1.0


def _under(
    rows: pd.DataFrame, metric: str, control: str, what: str
) -> dict[tuple[str, int, str], float]:
    """By condition, layer and site: a share of answers under a control, or a bound of it."""
    found = rows[(rows["metric"] == metric) & (rows["control"] == control)]
    kept = found[["positions", "layer", "site", what]]
    return {
        (where, layer, site): value
        for where, layer, site, value in kept.itertuples(index=False, name=None)
    }


def _with_counting(judged: Sequence[Use], rows: pd.DataFrame) -> list[Use]:
    """The same, of which the smooth trends that are counting know that they are."""
    nearer = rows[rows["metric"].str.startswith(_NEARER)]
    surely = nearer.groupby(["positions", "layer", "site"])["ci_low"].min() > 0

    def counts(use: Use) -> bool:
        return bool(surely.get((extrapolated(use.moved), use.layer, use.site), False))

    trends = [use for use in judged if use.code == SMOOTH]
    single = [use for use in trends if use.layer != EVERYWHERE]

    def through_the_stream(stream: Use) -> bool:
        if not single:
            everywhere = surely[
                surely.index.get_level_values("positions") == extrapolated(stream.moved)
            ]
            return len(everywhere) > 0 and bool(everywhere.all())
        used = [use for use in single if use.moved == stream.moved and use.word == Word.USED]
        return bool(used) and all(map(counts, used))

    counting = [
        use
        for use in trends
        if (through_the_stream(use) if use.layer == EVERYWHERE else counts(use))
    ]
    return [replace(use, counts=use in counting) for use in judged]


def followed(measurements: pd.DataFrame) -> pd.DataFrame:
    """What is said of each code, one row for a code at a site and a set of moved positions.

    Args:
        measurements: the tidy table with the rows of `interchange_rows`.

    Returns:
        code (a smooth trend that is one of 1/m is called counting), layer (-1 for the whole
        stream), site, moved, word, why it is undecided (`why`), the share of sites that are found
        to carry the code (`carried`); the shares of moved answers, 0 to 1, that go towards those of
        the other positions (`towards`), that stay or do neither, and that go towards them under the
        size-matched control (`size_matched`); on text the share that goes there where the code
        tells an unrelated order, and where the text stands in that one (`unrelated_order`,
        `text_unrelated`); the same as `towards` of what later layers write, on text at single sites
        (`written`, `written_size_matched`); the least of what goes towards them beyond its controls
        (`net`), with its 95% interval over sequences and draws, and its q-value; what does neither
        less what so does under the control (`broken`). Then the same of the answers that are
        restored where the code alone is put back (`restored`), with the share where none is
        (`destroyed`), which is subtracted where it is more than the control's. The most followed
        first. Empty where nothing was moved.
    """
    rows = finished(measurements[measurements["probe"] == PROBE])
    keys = ["positions", "layer", "site", "metric", "control"]
    values = dict(zip(rows[keys].itertuples(index=False, name=None), rows["value"], strict=True))
    found = pd.DataFrame([_told(use, values) for use in uses(measurements)])
    if found.empty:
        return found
    return found.sort_values("net", ascending=False, kind="stable", ignore_index=True)


def doses(measurements: pd.DataFrame) -> pd.DataFrame:
    """How far answers, or predictions, follow a code that is moved by a part of the way.

    Args:
        measurements: the tidy table with the rows of `interchange_rows`, or those of text.

    Returns:
        code, layer (-1 for the whole stream), site, moved, dose (the share of the way, above 0 and
        up to 1), the share that follows (`towards`) with its 95% interval over sequences, and that
        of the size-matched control. Small doses first; empty where no code was moved by parts.
    """
    rows = finished(measurements[(measurements["probe"] == PROBE) & measurements["head"].isna()])
    found: dict[tuple[str, int, str, str], dict[float, dict[str, Any]]] = {}
    for row in rows.to_dict("records"):
        direction, code, moved = condition_of(row["positions"])
        if direction != _NOISING or (dose := _dose(row["metric"])) is None:
            continue
        if row["control"] not in ("", SIZE_MATCHED):
            continue
        here = found.setdefault((code, row["layer"], row["site"], moved), {}).setdefault(dose, {})
        if row["control"] == SIZE_MATCHED:
            here["size_matched"] = row["value"]
        else:
            here |= _named(TOWARDS, interval_of(row))
    keys = ("code", "layer", "site", "moved")
    parts = [
        {**dict(zip(keys, where, strict=True)), "dose": dose, **by_dose[dose]}
        for where, by_dose in found.items()
        for dose in sorted(by_dose)
        if len(by_dose) > 1
    ]
    return pd.DataFrame(parts, columns=[*keys, "dose", *_named(TOWARDS, None), "size_matched"])


def _dose(metric: str) -> float | None:
    """The share of the way of `TOWARDS` and `at_dose`; None of other metrics."""
    if metric == TOWARDS:
        return 1.0
    return float(metric.removeprefix(_AT_DOSE)) if metric.startswith(_AT_DOSE) else None


def _told(use: Use, values: Mapping[tuple[object, ...], float]) -> dict[str, object]:
    def share(condition: str, metric: str, control: str = "") -> float:
        key = (condition, use.layer, use.site, metric, control)
        return values.get(key, math.nan)

    moved, back = noising(use.code, use.moved), denoising(use.code, use.moved)
    return {
        "code": use.name,
        "layer": use.layer,
        "site": use.site,
        "moved": use.moved,
        "word": str(use.word),
        "why": use.why,
        CARRIED: share(moved, CARRIED),
        TOWARDS: share(moved, TOWARDS),
        STAYS: share(moved, STAYS),
        NEITHER: share(moved, NEITHER),
        "size_matched": share(moved, TOWARDS, SIZE_MATCHED),
        "unrelated_order": share(moved, TOWARDS, TOLD_UNRELATED),
        "text_unrelated": share(moved, TOWARDS, IN_UNRELATED),
        "written": share(moved, WRITTEN),
        "written_size_matched": share(moved, WRITTEN, SIZE_MATCHED),
        **_net(use.noising, ""),
        **_named(BROKEN, None if use.noising is None else use.noising.broken),
        RESTORED: share(back, RESTORED),
        "destroyed": share(back, RESTORED, ORDER_DESTROYED),
        "restored_size_matched": share(back, RESTORED, SIZE_MATCHED),
        "restored_unrelated_order": share(back, RESTORED, TOLD_UNRELATED),
        "restored_text_unrelated": share(back, RESTORED, IN_UNRELATED),
        **_net(use.denoising, "restored_"),
    }


def _net(effect: Effect | None, prefix: str) -> dict[str, float]:
    """Nothing is moved where positions are too few for a code."""
    net = (0.0, 0.0, 0.0) if effect is None else effect.least
    q_value = math.nan if effect is None else effect.q
    return {**_named(f"{prefix}{NET}", net), f"{prefix}q": q_value}


def _named(name: str, interval: Interval | None) -> dict[str, float]:
    """The columns of a number with its interval."""
    every = (math.nan,) * 3 if interval is None else interval
    return dict(zip((name, f"{name}_low", f"{name}_high"), every, strict=True))


def net_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """How far each code that is moved is surely followed beyond its controls.

    Args:
        rows: of the tidy table.

    Returns:
        The rows of `NET`, in their order; on text those of `THIS_ORDER` whose lower bound is less.
    """
    nets = rows[rows["metric"].isin([NET, THIS_ORDER])].sort_values("ci_low", kind="stable")
    each = [*SETTING, "layer", "head", "site", "step", "positions"]
    return nets.drop_duplicates(each).sort_index()


def by_name(judged: Sequence[Use]) -> dict[str, list[Use]]:
    """The uses of each code, by what it is called: a smooth trend is counting where all that are
    used count.

    Args:
        judged: the uses, as from `uses`.
    """
    found: dict[str, list[Use]] = {}
    for use in judged:
        found.setdefault(use.code, []).append(use)
    used = [use for use in found.get(SMOOTH, ()) if use.word == Word.USED]
    called = {use.name for use in used} or {SMOOTH}
    name = called.pop() if len(called) == 1 else SMOOTH
    return {name if code == SMOOTH else code: of for code, of in found.items()}


def _effect(rows: Mapping[str, Mapping[str, Any]], control_breaks: float = 0.0) -> Effect | None:
    if NET not in rows:
        return None
    beyond, particular, this_order, broken = (
        interval_of(rows[of]) if of in rows else None
        for of in (BEYOND, PARTICULAR, THIS_ORDER, BROKEN)
    )
    return Effect(
        interval_of(rows[NET]),
        rows[RANK]["value"],
        beyond=beyond,
        particular=particular,
        this_order=this_order,
        broken=broken,
        control_breaks=control_breaks,
    )


def _adds(
    there: Mapping[str, Mapping[str, Any]], back: Mapping[str, Mapping[str, Any]]
) -> tuple[Interval, ...] | None:
    if ADDED not in there:
        return None
    kinds = (ADDED, ADDED_PARTICULAR, ADDED_THIS_ORDER)
    every = [of[name] for of in (there, back) for name in kinds if name in of]
    return tuple(interval_of(row) for row in every)


def interval_of(row: Mapping[Any, Any]) -> Interval:
    """A row's number and the bounds of its interval."""
    return row["value"], row["ci_low"], row["ci_high"]
