"""What would a language model predict elsewhere? Runs on text in which position differs only.

Two counterfactuals of a clean run, each with the way from its predictions to those (`way`).

- *Behind more text*: k tokens of other text are put between the first token and the rest, which
  keeps its content and stands k positions on. Only the last tokens are asked, which have the same
  tokens before them by the dozen. The prefix tells something of its own, too: predictions are
  averaged over several, in two halves, of which the way is made; what it tells is the noise that
  bounds what can be seen. Where the way is not surely longer there is nothing to follow.
- *In another order*: all tokens but the first and the last few are permuted, by one order for all
  sequences. The last few are asked, all of them: who looks just a token back sees another one at
  the first of these alone.

The second leads back, too. Whatever loses the order goes a part of any of these ways: so there is
an *unrelated order* for each, and what is predicted of the text in that one.

The first token stays where it is: it is the begin token, or serves as an attention sink.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from experiments.codes.task import InterventionTask
from experiments.codes.way import (
    Measured,
    Predictions,
    Way,
    as_written,
    mean_prediction,
    way_between,
)
from experiments.probing.sites import Site
from experiments.results.code_ablation import STREAM
from experiments.results.measurements import FIRST_POSITION
from experiments.results.text_use import EARLIER, ROUNDING
from nope_interp.errors import UserError, shown
from nope_interp.fields import is_whole
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.intervene import Running
from nope_interp.models.losses import next_log_probabilities
from nope_interp.shapes import Sequences
from probes.bootstrap import SequenceBootstrap
from probes.shapes import Positions

# Prefixes of each sequence in each half of the counterfactual.
_PREFIXES = 4
# Tokens asked behind more text, at most; those that keep their place when others are permuted, and
# are asked then, at most.
_ASKED, _KEPT = 16, 8
# Of the positions that codes are fitted at, the share that text is moved by.
_SHIFT = 0.25
# Predictions of all sequences by one run; some ten of them are held at one time.
_BYTES = 2**29
# Shorter ones have too few tokens to move.
SHORTEST = 4 * _KEPT

# A context in which the model runs changed.
Within = Callable[[], AbstractContextManager[Running]]


def unchanged() -> AbstractContextManager[Running]:
    """A context in which the model runs as it is."""
    return nullcontext(Running([]))


@dataclass(frozen=True)
class Read:
    """What became of a run at the positions that are asked.

    Attributes:
        predictions: log-probabilities of the next tokens, on the CPU.
        written: for each site in the stream, what the layers behind it wrote.
    """

    predictions: Predictions
    written: Mapping[Site, Float[Tensor, "sequence asked d_model"]]


@dataclass(frozen=True)
class TextRun:
    """Sequences, and what a model makes of their ends.

    Attributes:
        model: in evaluation mode.
        tokens: `[sequence pos]`.
        asked: how many of the last positions are asked for their next token.
        batch_size: sequences in a forward pass.
    """

    model: HookedModel = field(repr=False)
    tokens: Sequences = field(repr=False)
    asked: int
    batch_size: int

    def of(self, which: Sequence[int]) -> "TextRun":
        """The run of some of the sequences, by their numbers; one may come more than once."""
        return replace(self, tokens=self.tokens[list(which)])

    def read(self, sites: Sequence[Site] = (), within: Within = unchanged) -> Read:
        """What the model predicts and its layers write, run in a context.

        Behind the attention scores of the last block a model of ours computes the positions that
        are asked alone.

        Args:
            sites: in the stream; what is written behind each is kept.
            within: makes the context.

        Returns:
            Both.

        Raises:
            UserError: where the context's changes were never reached, and what they raise.
        """
        device, first = next(self.model.parameters()).device, self.tokens.shape[1] - self.asked
        last = Site(self.model.cfg.n_layers - 1, STREAM)
        seen: dict[Site, list[Tensor]] = {site: [] for site in (*sites, last)}
        predicted = []

        def keep(activations: Tensor, hook: object, site: Site) -> None:
            seen[site].append(activations[:, -self.asked :].float().cpu())

        hooks = [(site.name, partial(keep, site=site)) for site in seen] if sites else []
        with within() as running, self.model.hooks(fwd_hooks=hooks):
            for some in self.tokens.split(self.batch_size):
                found = next_log_probabilities(self.model, some.to(device), first, narrow=True)
                predicted.append(found.cpu())
            running.verify()
        written = {site: torch.cat(seen[last]) - torch.cat(seen[site]) for site in sites}
        return Read(torch.cat(predicted), written)


@dataclass(frozen=True)
class Crossing:
    """The way to an unrelated order, to which the other order is the unrelated one.

    Attributes:
        way: from the run to the text in that order.
        other: how far text in the other order goes of it.
    """

    way: Way
    other: Measured


@dataclass(frozen=True)
class UnrelatedOrder:
    """An order of a run's tokens to which the way does not lead.

    Attributes:
        sources: as those of `Elsewhere`.
        predictions: of the text in this order.
        crossing: where the way leads to an order, too.
    """

    sources: Positions
    predictions: Predictions
    crossing: Crossing | None = None


@dataclass(frozen=True)
class Elsewhere:
    """A run, and what would become of it if positions were others.

    Attributes:
        moved: what is moved, in words.
        run: the run as it is.
        sources: `[pos]`, for each position of the run after the first the one (as an index into
            those that codes are fitted at) where it stands there.
        way: from its predictions to those elsewhere.
        written: the same of what is written behind each of some sites.
        unrelated: an order to which the way does not lead.
    """

    moved: str
    run: TextRun
    sources: Positions
    way: Way
    written: Mapping[Site, Way]
    unrelated: UnrelatedOrder


def behind_more_text(
    task: InterventionTask, sites: Sequence[Site] = (), by: int | None = None
) -> Elsewhere:
    """The last tokens of text, and the same tokens further on.

    Args:
        task: a model on text. The run is of held-out sequences without their last tokens, as many
            as the others stand further on, so that these are as long as those that codes are
            fitted on; prefixes are of the latter.
        sites: in the stream; the way is also that of what is written behind each.
        by: how many tokens further on; None takes a quarter of the sequence.

    Returns:
        The run and the way.

    Raises:
        UserError: for no tokens, and for more than half of the sequence.
    """
    tokens, others = task.split.held_out, task.split.fit
    length = tokens.shape[1]
    shift = int(_SHIFT * length) if by is None else by
    if not is_whole(shift, 1, length // 2):
        raise UserError(
            f"by is {shown(by)}: give how many of the {length} tokens text is to stand further on, "
            f"1 to {length // 2}."
        )
    own = tokens[:, : length - shift]
    run = _run(task, own, min(_ASKED, own.shape[1] // 4))
    generator = Generator().manual_seed(task.seed)

    def half() -> Read:
        longer = (with_prefix(own, others, shift, generator) for _ in range(_PREFIXES))
        return _mean_read([replace(run, tokens=some).read(sites) for some in longer])

    sources = torch.arange(own.shape[1] - FIRST_POSITION) + shift
    # What is asked keeps its tokens, and those before it that are kept in any order.
    kept = max(_KEPT, run.asked)
    ways, unrelated = _ways(run.read(sites), half(), half()), _unrelated(run, kept, generator)
    return Elsewhere(f"text by {shift} positions", run, sources, *ways, unrelated)


def in_another_order(
    task: InterventionTask, sites: Sequence[Site] = ()
) -> tuple[Elsewhere, Elsewhere]:
    """Text and its earlier tokens in another order; and these, and the text as it was.

    Args:
        task: a model on text.
        sites: as in `behind_more_text`.

    Returns:
        The clean run with the way to the disordered one, and the other way round.
    """
    tokens = task.split.held_out
    generator = Generator().manual_seed(task.seed)
    clean_run = _run(task, tokens, _KEPT)
    # All that are kept are asked: further back, what only the tokens just before tell is no order.
    kept = clean_run.asked
    order = _drawn_order(tokens.shape[1], kept, generator)
    runs = [clean_run, replace(clean_run, tokens=tokens[:, order])]
    clean, disordered = (run.read(sites) for run in runs)
    # In the other order the token of place t stands where that order names t.
    stands, comes_from = _indices(order.argsort()), _indices(order)
    there, back = _ways(clean, disordered), _ways(disordered, clean)
    unrelated = [_unrelated(run, kept, generator) for run in runs]
    way = way_between(clean.predictions, unrelated[0].predictions)
    crossing = Crossing(way, way.measured(disordered.predictions))
    return (
        Elsewhere(EARLIER, runs[0], stands, *there, replace(unrelated[0], crossing=crossing)),
        Elsewhere(EARLIER, runs[1], comes_from, *back, unrelated[1]),
    )


def _unrelated(run: TextRun, kept: int, generator: Generator) -> UnrelatedOrder:
    order = _drawn_order(run.tokens.shape[1], kept, generator)
    found = replace(run, tokens=run.tokens[:, order]).read()
    return UnrelatedOrder(_indices(order.argsort()), found.predictions)


def _drawn_order(length: int, kept: int, generator: Generator) -> Int[Tensor, " pos"]:
    """Of all tokens but the first and the last `kept`, which stay."""
    order = torch.arange(length)
    middle = torch.randperm(length - FIRST_POSITION - kept, generator=generator)
    order[FIRST_POSITION : length - kept] = middle + FIRST_POSITION
    return order


def exceeds_noise(way: Way, seed: int) -> bool:
    """Whether a way is surely longer than what is left of the noise at its end.

    Args:
        way: to a mean of runs.
        seed: of the bootstrap over sequences.
    """
    bootstrap = SequenceBootstrap(seed=seed).update(np.stack([way.length, way.noise], axis=1))
    low, _ = bootstrap.interval_of(lambda means: means[:, 0] - means[:, 1])
    return bool(low > ROUNDING)


def over_a_share(
    means: Float[np.ndarray, "resample 2"], part: float
) -> Float[np.ndarray, " resample"]:
    """What a way has beyond a share of another one, of the mean lengths of both.

    Args:
        means: of the way, and of the other one.
        part: the share, 0 to 1.
    """
    return means[:, 0] - part * means[:, 1]


def with_prefix(
    tokens: Sequences, others: Int[Tensor, "other other_pos"], n: int, generator: Generator
) -> Int[Tensor, "sequence longer"]:
    """Sequences with n tokens of others between their first token and the rest.

    Args:
        tokens: `[sequence pos]`.
        others: what the tokens are taken from: the first n after the first one, of any of them.
        n: how many.
        generator: of the choice of others.

    Returns:
        `[sequence pos]`, longer by n.
    """
    which = torch.randint(len(others), (len(tokens),), generator=generator)
    prefix = others[which, FIRST_POSITION : FIRST_POSITION + n]
    return torch.cat([tokens[:, :FIRST_POSITION], prefix, tokens[:, FIRST_POSITION:]], dim=1)


def _indices(places: Int[Tensor, " every"]) -> Positions:
    """Of positions after the first, as indices into those that codes are fitted at."""
    return places[FIRST_POSITION:] - FIRST_POSITION


def _run(task: InterventionTask, tokens: Sequences, asked: int) -> TextRun:
    """As many tokens asked as memory holds the predictions of."""
    each = 4 * task.model.cfg.d_vocab * len(tokens)
    return TextRun(task.model, tokens, max(1, min(asked, _BYTES // each)), task.batch_size)


def _mean_read(found: Sequence[Read]) -> Read:
    sites = found[0].written
    written = {site: torch.stack([of.written[site] for of in found]).mean(dim=0) for site in sites}
    return Read(mean_prediction(of.predictions for of in found), written)


def _ways(start: Read, *ends: Read) -> tuple[Way, dict[Site, Way]]:
    """Of what is predicted, and of what is written behind each site."""
    written = {
        site: way_between(of, *(end.written[site] for end in ends), dual=as_written)
        for site, of in start.written.items()
    }
    return way_between(start.predictions, *(end.predictions for end in ends)), written
