"""What is fitted on the model's text, once, and kept: position codes, and a position probe a layer.

Sequences are as long as a prompt, rounded up, so that every position of it has a code.
"""

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.codes.position_code import NAMES, PositionCode, fit_code
from experiments.explore.playground import Playground
from experiments.probing.measure import Site, feed
from nope_interp.errors import UserError, unknown_name
from nope_interp.tasks.sources import Split, TextSource
from probes.errors import ProbeWarning
from probes.regression import LinearProbe

# Activations for each component of the stream, and sequences at least; a quarter are held out.
_PER_COMPONENT, _FEWEST = 5, 48
# Contexts that are no longer are fitted whole; of others a power of two.
_SHORT, _SHORTEST, _BATCH = 128, 32, 32
_STREAM = "resid_post"


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
    return min(max(_SHORTEST, 2 ** math.ceil(math.log2(n_tokens))), playground.most_tokens)


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
    if name not in NAMES:
        raise unknown_name("position code", name, NAMES)
    length = length_for(playground, n_tokens)
    kept = playground.made.get("code", {})
    if (length, site) not in kept:
        of_text = _tokens(playground, n_tokens, "fit")
        fit = partial(fit_code, playground.model, of_text, name, batch_size=_BATCH)
        code = fit(layer=site.layer, site=site.hook)
        # One only: its statistics hold the examples that it was fitted on.
        kept = playground.made["code"] = {(length, site): code}
    return replace(kept[length, site], name=name)


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
    length = length_for(playground, n_tokens)
    key = ("probes", length)
    if key not in playground.made:
        playground.made[key] = _fitted(playground, n_tokens)
    return playground.made[key]


def _fitted(playground: Playground, n_tokens: int) -> PositionProbes:
    layers = range(playground.model.cfg.n_layers)
    # The bootstrap of their errors is not shown.
    probes = [LinearProbe(n_resamples=2) for _ in layers]
    by_site = {Site(layer, _STREAM): [probes[layer]] for layer in layers}
    fit, held_out = (_tokens(playground, n_tokens, split) for split in ("fit", "held_out"))
    feed(playground.model, fit, by_site, "update", batch_size=_BATCH)
    with warnings.catch_warnings():
        # Of few sequences for so many components: their errors, which are shown, are held out.
        warnings.simplefilter("ignore", ProbeWarning)
        feed(playground.model, held_out, by_site, "evaluate", batch_size=_BATCH)
    scores = [probe.result()["linear"].score("mae") for probe in probes]
    return PositionProbes(probes, [score.value for score in scores], scores[0].chance, len(fit))


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
