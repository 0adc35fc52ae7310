"""Does a language model follow positions that are moved inside it? On text, in two directions.

- Noising: in a clean run every position but the first and the last few is told by one code to be
  another. The share of the way that predictions then go to those of the text in that order.
- Denoising: the text stands in that order, and nothing but one code tells position: at first that
  of the place where each token stands, then that of the place where it belongs. The share of the
  way that predictions then go to those of the text as it was. Beside similarity the other codes
  stay: they tell where tokens stand.

Noising is done in another way, too: all positions of a clean run are told to be a quarter of the
sequence further on. The way is then that to the same text behind so many more tokens of other
texts. Where it is not surely longer than what prefixes of one length differ by, there is nothing to
follow. Where it is surely shorter than a tenth of the way to another order, it counts only where it
says yes; than a thousandth, not at all.

One control tells an *unrelated order* by the same code: whatever loses the order goes a part of
every way. Another moves each activation as far, in directions drawn for each sequence as the
activations at the site vary; for ranks, for a panel of sequences that the code is moved in, too.
Similarity acts in the scores alone: queries and keys read activations that resemble one another as
those elsewhere, values and the stream stay. Its control mixes in as much of another sequence's
content there.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.codes.counting import counting_rows
from experiments.codes.in_depth import Place, statistics_at, stream_sites
from experiments.codes.ranks import FEWEST_SEQUENCES, Ranked, fact, rank_rows
from experiments.codes.task import InterventionTask
from experiments.codes.text_moves import TextMoves
from experiments.codes.text_order import text_order_rows
from experiments.codes.text_runs import SHORTEST, over_a_share
from experiments.codes.text_trial import TextTrial, added_text_rows
from experiments.probing.sites import Site
from experiments.results import interchange as names
from experiments.results import text_use
from experiments.results.code_ablation import EVERYWHERE, STREAM
from experiments.results.measurements import table
from experiments.results.worth import NEXT_TO_NOTHING, WORTH_NAMING
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers, key_heads
from nope_interp.progress import progress
from nope_interp.sites import ATTENTION_INPUT
from nope_interp.tasks.sources import TextSource
from probes.bootstrap import SequenceBootstrap
from probes.code_names import HALVES, JUDGED, MEAN_RESIDUAL, SIMILARITY
from probes.codes.statistics import CodeStatistics


def text_interchange_rows(
    task: InterventionTask,
    statistics: Mapping[Site, CodeStatistics],
    *,
    context: Mapping[str, Any],
    by: int | None = None,
    description: str | None = None,
) -> list[dict[str, Any]]:
    """Rows of the tidy table: what becomes of predictions where positions are told to be others.

    The condition (direction, code and positions) stands in the column `positions`. Rows of all of
    the stream at once are of layer -1; so are those of similarity at all layers, whose site is what
    attention reads.

    - `CARRIED`: the share of sites that are found to tell position by the code at all. It is moved
      at these, or, where there are none, at all.
    - `TOWARDS`, `STAYS` and `NEITHER` share out the way (`experiments.codes.way`), and so they do
      under the control `SIZE_MATCHED`; of the way back there is the share `RESTORED`.
    - `NET`: what is gone of the way less the control's, by chance 0; of the way back `BEYOND`, less
      nothing.
    - `THIS_ORDER`: what is gone of the way less what is gone where the code tells an unrelated
      order, as a share of what text in that order leaves of the way, by chance 0. Beside it are the
      shares of these two, under the controls `TOLD_UNRELATED` and `IN_UNRELATED`.
    - `BROKEN`: what does neither, less the control's, by chance 0.
    - `ADDED`, of each half of the mean residual: what the whole goes of the way less what the other
      half alone does; `ADDED_THIS_ORDER`, the same of `THIS_ORDER`.
    - `WRITTEN`: the share of the way in what is written behind a site.
    - `at_dose`: the share towards where a smaller dose moves the code, and the control's, on the
      panel; of the way back there is none.
    - `RANK`: the share of control draws that go at least as far as the code on the panel; 1 where
      the code does not surely go a tenth, since then no rank says that it is used.

    - `nearer_than`, of single sites and of all sites of the stream, as `counting_rows` has it.

    Rows of the ways themselves: `WAY`, the mean length in nats of that which positions make; so
    long is, with the control `SAME_LENGTH`, what other prefixes of one length leave of it. Of text
    further on, `OVER_TENTH` and `OVER_THOUSANDTH`: the way less such a share of that to another
    order.

    Args:
        task: a model on text.
        statistics: of its fit sequences at each site, as from `statistics_at`.
        context: the columns that tell this model variant from others.
        by: how many tokens further on text is to stand; None takes a quarter of a sequence.
        description: label of the progress bar; None draws no bar.

    Returns:
        The rows.

    Raises:
        UserError: for fewer than 20 sequences to score, for sequences too short, and for a distance
            of none or of more than half of one.
    """
    _check_enough(task)
    stream, reads = tuple(stream_sites(task)), _inputs_of_attention(task)
    missing = [site for site in (*stream, *reads) if site not in statistics]
    known = {**statistics, **statistics_at(task, missing)}
    places: dict[Place, Sequence[str]] = {
        **{Place(site.layer, site.hook, (site,)): JUDGED for site in statistics},
        Place(EVERYWHERE, STREAM, stream): JUDGED,
        Place(EVERYWHERE, ATTENTION_INPUT, reads): (SIMILARITY,),
    }
    made, total = TextMoves(task, known, stream, by), sum(map(len, places.values()))
    rows = list(_of_ways(made, task.seed, context))
    ranks: list[Ranked] = []
    with progress(None, description, "code", total) as bar:
        for place, codes in places.items():
            here = {**context, "layer": place.layer, "site": place.hook, "probe": names.PROBE}
            rows += _rows_at(made, place, codes, here, ranks, bar.update)
    # Each code has two directions for each of the ways in which text is moved.
    rows += rank_rows(ranks, 2 * total * (1 + made.further_on))
    read = {site: codes for site, codes in known.items() if site not in reads}
    counting = counting_rows(task, read, {made.noised.moved: task.numbers()}, context=context)
    rows += counting
    if made.further_on:  # the same positions are moved
        told = names.extrapolated(made.shifted.moved)
        rows += [{**row, "positions": told} for row in counting]
    return rows


def text_noising_rows(
    task: InterventionTask, *, context: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Rows of the tidy table: how far predictions go to those of permuted text where positions are
    told to be so through the whole stream; as `text_interchange_rows`, without ranks.

    Args:
        task: a model on text, with enough to move (`too_little_to_move`).
        context: the columns that tell this model variant from others.

    Returns:
        The rows.
    """
    stream, reads = tuple(stream_sites(task)), _inputs_of_attention(task)
    made = TextMoves(task, statistics_at(task, (*stream, *reads)), stream)
    context = {**context, "probe": names.PROBE, "layer": EVERYWHERE}
    places = {
        Place(EVERYWHERE, STREAM, stream): JUDGED,
        Place(EVERYWHERE, ATTENTION_INPUT, reads): (SIMILARITY,),
    }
    rows: list[dict[str, Any]] = []
    for place, codes in places.items():
        for code in codes:
            told = names.noising(code, made.noised.moved)
            here = {**context, "site": place.hook, "positions": told}
            rows += made.disordering(place, code).rows(here)
    return rows


def text_rows(
    task: InterventionTask,
    source: TextSource,
    *,
    context: Mapping[str, Any],
    description: str | None = None,
) -> list[dict[str, Any]]:
    """Rows of the tidy table: whether a language model knows order, and, where it does, what
    becomes of its predictions where positions are moved through all of the stream.

    Args:
        task: a model on text.
        source: the text.
        context: the columns that tell this model variant from others.
        description: label of the progress bar; None draws no bar.

    Returns:
        The rows.

    Raises:
        UserError: as `text_order_rows` and `text_interchange_rows`.
    """
    rows = text_order_rows(task, source, context=context)
    if text_use.without_order_on_text(table(rows)) is None:
        rows += text_interchange_rows(task, {}, context=context, description=description)
    return rows


def route_rows(task: InterventionTask, *, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the tidy table: which heads read position, by queries, keys or values.

    For one route of one head alone, the mean of what attention reads at the earlier tokens is moved
    as in the noising of `text_interchange_rows`, whose metrics these are. `head` counts queries'
    heads, or the groups that share keys and values; `positions` names the route. The tokens that
    are asked keep their place, and their queries: of the last layer's queries no others count.

    Args:
        task: a model on text.
        context: the columns that tell this model variant from others.

    Returns:
        The rows; none of a layer whose attention reads no position in the mean, nor of the queries
        of the last layer.

    Raises:
        UserError: as `text_interchange_rows`.
    """
    _check_enough(task)
    reads, last = _inputs_of_attention(task), task.model.cfg.n_layers - 1
    made = TextMoves(task, statistics_at(task, reads), ())
    asked = [
        (site, route, head)
        for site in reads
        for route, n in _heads_by_route(task.model, site.layer).items()
        for head in range(n)
        if made.carries(site, MEAN_RESIDUAL) and (route, site.layer) != ("queries", last)
    ]
    rows: list[dict[str, Any]] = []
    ranks: list[Ranked] = []
    for site, route, head in asked:
        here = {"layer": site.layer, "head": head, "site": site.hook, "probe": names.PROBE}
        told = {**context, **here, "positions": text_use.by_route(route)}
        trial = made.by_route(site.layer, route, head)
        rows += (found := trial.rows(told))
        ranks.append((trial.rank(found), told["positions"]))
    return rows + rank_rows(ranks, len(asked))


def too_little_to_move(n_held_out: int, seq_len: int) -> str | None:
    """Why positions cannot be moved in sequences of text.

    Args:
        n_held_out: how many sequences are scored.
        seq_len: tokens in each.

    Returns:
        A sentence; None where they can.
    """
    if n_held_out < FEWEST_SEQUENCES:
        return (
            f"{n_held_out} held-out sequences are too few to move positions in: give "
            f"{FEWEST_SEQUENCES} at least, better some hundreds."
        )
    if seq_len < SHORTEST:
        return (
            f"sequences of {seq_len} tokens are too short to move positions in: give {SHORTEST} "
            "at least (--seq-len)."
        )
    return None


def _check_enough(task: InterventionTask) -> None:
    if (why := too_little_to_move(*task.split.held_out.shape)) is not None:
        raise UserError(why)


def _heads_by_route(model: HookedModel, layer: int) -> dict[str, int]:
    shared = key_heads(model, layer)
    return {"queries": model.cfg.n_heads, "keys": shared, "values": shared}


def _inputs_of_attention(task: InterventionTask) -> tuple[Site, ...]:
    return tuple(Site(layer, ATTENTION_INPUT) for layer in attention_layers(task.model))


def _of_ways(made: TextMoves, seed: int, context: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How far positions move predictions, beside how far other prefixes do."""
    context = {**context, "layer": EVERYWHERE, "site": STREAM, "probe": names.PROBE}
    for elsewhere in (made.shifted, made.noised):
        condition = {**context, "positions": elsewhere.moved}
        pair = np.stack([elsewhere.way.length, elsewhere.way.noise], axis=1)
        bootstrap = SequenceBootstrap(seed=seed).update(pair)
        for column, control in enumerate(("", text_use.SAME_LENGTH)):
            of = partial(_column, column=column)
            score = bootstrap.score(text_use.WAY, of, chance=math.nan, control=control)
            yield {**condition, **vars(score)}
        over = bootstrap.score(text_use.OVER_NOISE, lambda m: m[:, 0] - m[:, 1], chance=0.0)
        yield {**condition, **vars(over)}
    ways = np.stack([made.shifted.way.length, made.noised.way.length], axis=1)
    bootstrap = SequenceBootstrap(seed=seed).update(ways)
    for metric, part in (
        (names.OVER_TENTH, WORTH_NAMING),
        (names.OVER_THOUSANDTH, NEXT_TO_NOTHING),
    ):
        beyond = bootstrap.score(metric, partial(over_a_share, part=part), chance=0.0)
        yield {**context, "positions": made.shifted.moved, **vars(beyond)}


def _column(means: np.ndarray, column: int) -> np.ndarray:
    return np.asarray(means[:, column])


def _rows_at(
    made: TextMoves,
    place: Place,
    codes: Sequence[str],
    context: Mapping[str, Any],
    ranks: list[Ranked],
    advance: Callable[[], object],
) -> Iterator[dict[str, Any]]:
    """Rows of all codes at one place; ranks are added, each with its conditions."""
    trials: dict[str, TextTrial] = {}
    for code in codes:
        carried = float(np.mean([made.carries(site, code) for site in place.sites]))
        for conditions, make in made.trials(place, code).items():
            trial = make()
            found = [fact(names.CARRIED, carried, context), *trial.rows(context)]
            rank = trial.rank(found)
            ranks += [(rank, told) for told in conditions]
            trials |= dict.fromkeys(conditions, trial)
            yield from ({**row, "positions": told} for told in conditions for row in found)
        advance()
    for named in (names.noising, names.denoising):
        for moved in (made.noised.moved, made.shifted.moved):
            of_code = {code: trials.get(named(code, moved)) for code in (MEAN_RESIDUAL, *HALVES)}
            for half, other in zip(HALVES, reversed(HALVES), strict=True):
                whole, rest = of_code[MEAN_RESIDUAL], of_code[other]
                if whole and rest and of_code[half]:
                    condition = {**context, "positions": named(half, moved)}
                    yield from added_text_rows(whole, rest, condition)
