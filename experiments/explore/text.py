"""What is fitted on the model's text, once, and kept: position codes, and a position probe a layer.

Sequences are as long as a prompt, rounded up, so that every position of it has a code.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.codes.position_code import (
    PositionCode,
    check_code,
    feed_code,
    unfitted_code,
)
from experiments.explore.playground import Playground
from experiments.probing.measure import feed
from experiments.probing.sites import Site
from nope_interp.errors import UserError
from nope_interp.tasks.sources import Split, TextSource
from probes.code_names import SIMILARITY
from probes.errors import ProbeError, ProbeWarning
from probes.regression import LinearProbe

# Activations for each component of the stream, and sequences at least; a quarter are held out.
_PER_COMPONENT, _FEWEST = 5, 48
# Contexts that are no longer are fitted whole; of others a multiple of a number of tokens.
_SHORT, _STEP = 128, 32
# Sequences in a forward pass; between two of them others may use the model.
_BATCH = 4
# Where in each layer position probes read.
STREAM = "resid_post"
Step = tuple[int, int]


@dataclass(frozen=True)
class PositionProbes:
    """The linear position probe of the stream behind each layer.

    Attributes:
        probes: fitted, by layer.
        errors: the mean absolute error of each on held-out sequences, in positions.
        chance: of always answering the middle.
        n: sequences that they were fitted on.
    """

    probes: list[LinearProbe] = field(repr=False)
    errors: list[float]
    chance: float
    n: int


def length_for(playground: Playground, n_tokens: int) -> int:
    """Tokens in a sequence to fit on: a short context whole, else what holds a prompt.

    Args:
        playground: whose model.
        n_tokens: of the prompt.

    Returns:
        Tokens, the begin token included.
    """
    if playground.model.cfg.n_ctx <= _SHORT:
        return playground.most_tokens
    return min(_STEP * math.ceil(n_tokens / _STEP), playground.most_tokens)


def code_at(playground: Playground, name: str, site: Site, n_tokens: int) -> PositionCode:
    """A position code at a site; what it is made of is fitted for all codes, and kept for a while.

    Args:
        playground: whose model and text.
        name: of the code.
        site: where.
        n_tokens: of the prompt.

    Returns:
        The code.

    Raises:
        UserError: as `fit_code`, and for too short a text.
    """
    check_code(name, site)
    for _ in code_in_steps(playground, name, site, n_tokens):
        pass
    return replace(playground.made["code"][_key(playground, name, site, n_tokens)], name=name)


def _key(playground: Playground, name: str, site: Site, n_tokens: int) -> tuple[int, Site, bool]:
    """What tells apart what is kept: all codes but similarity are made of the same."""
    return length_for(playground, n_tokens), site, name == SIMILARITY


def code_in_steps(playground: Playground, name: str, site: Site, n_tokens: int) -> Iterator[Step]:
    """Fit what a code at a site is made of, where it is not kept.

    Args:
        playground: whose model and text.
        name: of the code.
        site: where.
        n_tokens: of the prompt.

    Yields:
        How many sequences were read of how many; none where there is nothing to do.

    Raises:
        UserError: as `code_at`.
    """
    key = _key(playground, name, site, n_tokens)
    if key in playground.made.get("code", {}):
        return
    of_text = _tokens(playground, n_tokens, "fit")
    code = unfitted_code(of_text, name, site)
    for done, some in _batches(of_text):
        yield done, len(of_text)
        feed_code(playground.model, some, code, batch_size=_BATCH)
    if name == SIMILARITY:
        with suppress(ProbeError):  # a move says it in its own words
            code.similarity.correlations()
    # One only: its statistics hold the examples that it was fitted on.
    playground.made["code"] = {key: code}


def probes_for(playground: Playground, n_tokens: int) -> PositionProbes:
    """The probes of all layers, fitted once for a length.

    Args:
        playground: whose model and text.
        n_tokens: of the prompt.

    Returns:
        The probes.

    Raises:
        UserError: for too short a text.
    """
    for _ in probes_in_steps(playground, n_tokens):
        pass
    return playground.made["probes"][length_for(playground, n_tokens)]


def probes_in_steps(playground: Playground, n_tokens: int) -> Iterator[Step]:
    """Fit the probes of all layers, where they are not kept.

    Args:
        playground: whose model and text.
        n_tokens: of the prompt.

    Yields:
        How many sequences were read of how many; none where there is nothing to do.

    Raises:
        UserError: for too short a text.
    """
    length = length_for(playground, n_tokens)
    if length in playground.made.get("probes", {}):
        return
    # The bootstrap of their errors is not shown.
    probes = [LinearProbe(n_resamples=2) for _ in range(playground.model.cfg.n_layers)]
    by_site = {Site(layer, STREAM): [probe] for layer, probe in enumerate(probes)}
    fit, held_out = (_tokens(playground, n_tokens, split) for split in ("fit", "held_out"))
    n = len(fit) + len(held_out)
    for done, some in _batches(fit):
        yield done, n
        feed(playground.model, some, by_site, "update", batch_size=_BATCH)
    for done, some in _batches(held_out):
        yield len(fit) + done, n
        with warnings.catch_warnings():
            # Of few sequences for so many components: their errors, which are shown, are held out.
            warnings.simplefilter("ignore", ProbeWarning)
            feed(playground.model, some, by_site, "evaluate", batch_size=_BATCH)
    scores = [probe.result()["linear"].score("mae") for probe in probes]
    errors = [score.value for score in scores]
    # Of one length only: each layer's probe holds a matrix of d_model x d_model.
    found = PositionProbes(probes, errors, scores[0].chance, len(fit))
    playground.made["probes"] = {length: found}


def _batches(
    tokens: Int[Tensor, "sequence pos"],
) -> Iterator[tuple[int, Int[Tensor, "batch pos"]]]:
    """Some sequences after the others, with the number of those before them."""
    return zip(range(0, len(tokens), _BATCH), tokens.split(_BATCH), strict=True)


def fitted_on(playground: Playground, n_tokens: int, split: Split = "fit") -> dict[str, Any]:
    """Which sequences of the source are taken: the arguments of `TokenSource.sequences`.

    Args:
        playground: whose model and text.
        n_tokens: of the prompt.
        split: what is fitted on, or held out.

    Returns:
        The arguments.

    Raises:
        UserError: for too short a text.
    """
    source, length = playground.variant.sources[0], length_for(playground, n_tokens)
    begin = playground.begin_id is not None
    n = max(_FEWEST, math.ceil(_PER_COMPONENT * playground.model.cfg.d_model / (length - 1)))
    n = n if split == "fit" else n // 4
    if isinstance(source, TextSource):
        n = min(n, source.available(length - begin, split))
    if n < 2:
        raise UserError(
            f"the text holds {n} sequences of {length} tokens to fit positions on: give a longer "
            "text (--text), or a shorter prompt."
        )
    return {"n": n, "seq_len": length, "begin_token": begin, "split": split, "seed": 0}


def _tokens(playground: Playground, n_tokens: int, split: Split) -> Int[Tensor, "sequence pos"]:
    how = fitted_on(playground, n_tokens, split)
    return playground.variant.sources[0].sequences(**how)
