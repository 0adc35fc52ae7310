"""Position codes taken away and moved in a model of six layers and width 512: 32 sequences of 128
tokens.

`trunk` is its forward pass without the unembedding. With an intervention, the same pass has one
code taken away after one block, the dearest of the four; or one code of each position exchanged for
the next one's there, at that site or through the whole stream; or its control, with directions
drawn for each sequence. With statistics, it has the probes of every block's output, and these with
what interventions are made from.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.contest import Claim, paired_ratio
from experiments.probing.measure import code_probes
from experiments.probing.sites import ALL_BUT_FIRST, Site
from experiments.results.measurements import FIRST_POSITION
from nope_interp.interventions.intervene import intervene
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.streams import run_trunk, stream
from probes.code_names import CODES, JUDGED
from probes.codes.interchange import interchange, variation_at
from probes.codes.statistics import CodeStatistics, Intervention

ROUNDS, LENGTH = 15, 128
PLACE = "blocks.2.hook_resid_post"
POSITIONS = torch.arange(FIRST_POSITION, LENGTH)


def _feed(probes: Sequence[Any], activations: Tensor) -> None:
    for probe in probes:
        probe.update(activations[:, FIRST_POSITION:], POSITIONS)


def _stream(n_layers: int) -> list[str]:
    """Where a verdict moves codes: at the input, after every attention and every block but one."""
    after = [
        f"blocks.{layer}.hook_{site}"
        for layer in range(n_layers)
        for site in ("resid_mid", "resid_post")
    ]
    return ["blocks.0.hook_resid_pre", *after[:-1]]


def claims() -> list[Claim]:
    config = TransformerConfig(6, 512, 8, d_vocab=1000, n_ctx=LENGTH)
    model = HookedTransformer(config).eval()
    tokens = torch.randint(1000, (32, LENGTH), generator=torch.Generator().manual_seed(0))
    statistics = CodeStatistics()
    sites = [Site(layer, "resid_post") for layer in range(config.n_layers)]
    stream(model, tokens, {PLACE: partial(_feed, [statistics])})

    def trunk() -> None:
        with torch.no_grad():
            run_trunk(model, tokens)

    def changed(intervention: Intervention) -> None:
        changed_at({PLACE: intervention})

    def changed_at(interventions: Mapping[str, Intervention]) -> None:
        with intervene(model, interventions, ALL_BUT_FIRST):
            trunk()

    def probed(also: bool) -> None:
        listeners = {}
        for site in sites:
            every = [*code_probes(site, 0), *([CodeStatistics()] if also else [])]
            listeners[site.name] = partial(_feed, every)
        stream(model, tokens, listeners)

    removals = [statistics.kept([kept for kept in CODES if kept != code]) for code in CODES]
    dearest = max(paired_ratio(partial(changed, removal), trunk, ROUNDS) for removal in removals)
    sources = (torch.arange(len(POSITIONS)) + 1).clamp(max=len(POSITIONS) - 1)
    moves = [interchange(statistics, code, sources) for code in JUDGED]
    moved = max(paired_ratio(partial(changed, move), trunk, ROUNDS) for move in moves)
    whole = {place: CodeStatistics() for place in _stream(config.n_layers)}
    stream(model, tokens, {place: partial(_feed, [of]) for place, of in whole.items()})
    everywhere = max(
        paired_ratio(
            partial(changed_at, {at: interchange(of, code, sources) for at, of in whole.items()}),
            trunk,
            ROUNDS,
        )
        for code in JUDGED
    )
    variation, generator = variation_at(statistics), torch.Generator().manual_seed(0)
    controls = [move.size_matched(variation, generator) for move in moves]
    drawn = max(paired_ratio(partial(changed, control), trunk, ROUNDS) for control in controls)
    together = paired_ratio(lambda: probed(True), lambda: probed(False), ROUNDS)
    return [
        Claim("a code taken away at one site: time by the plain forward pass", dearest, 1.15),
        Claim("a code moved at one site: time by the plain forward pass", moved, 1.15),
        Claim("a code moved through the whole stream: time by the same", everywhere, 1.15),
        Claim("its control, drawn for each sequence: time by the same", drawn, 1.15),
        Claim("probes and statistics of codes in one stream: time by the probes'", together, 1.15),
    ]


if __name__ == "__main__":
    for claim in claims():
        print(claim, flush=True)
