"""Kim et al. 2025: small language models trained here, with the causal mask and without it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float

from experiments.papers.config import ReproduceConfig
from experiments.papers.kim2025.reading import ORDERS, mean_scores, shuffled
from experiments.papers.kim2025.scores import nearer_share, rise, share_beyond_distance
from experiments.papers.on_text import trained_on_text
from experiments.results.figures import figure
from experiments.results.findings import Array, Findings, Panel, over_seeds, panel
from experiments.results.measurements import RANDOM_INIT
from experiments.runs.cells import Cells
from nope_interp.models.checkpoints import as_bidirectional
from nope_interp.models.config import Positions, TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.registry import make_task

N_SEQUENCES = 512
_ENCODINGS: dict[str, Positions] = {"NoPE": "none", "RoPE": "rotary"}
_TRAINED, _RANDOM, _UNMASKED = "trained", RANDOM_INIT, "trained, without the mask"

# A number for each layer, by what it is and by kind of model.
Found = Mapping[str, Float[Array, "seed layer"]]


def length_of(config: ReproduceConfig) -> int:
    """Positions in a sequence."""
    return config.scaled("length", 50, least=8)


def trained_findings(config: ReproduceConfig, cells: Cells, device: str) -> Findings:
    """Models without positions and with rotary ones, trained alike on text."""
    steps = config.scaled("training", 500)
    base = TransformerConfig(
        n_layers=4,
        d_model=config.scaled("width", 64, multiple_of=8, least=16),
        n_heads=4,
        d_vocab=make_task("text").d_vocab,
        n_ctx=length_of(config),
    )
    found = cells.side_by_side(
        {
            name: partial(_read, replace(base, positions=positions), steps, device)
            for name, positions in _ENCODINGS.items()
        },
        config.seeds,
        title="{}, trained".format,
    )
    nope, rope = (found[name] for name in _ENCODINGS)
    numbers = {
        "trained": nope[f"nearer/{_TRAINED}"],
        "amplified": nope[f"rise/{_TRAINED}"] - nope[f"rise/{_RANDOM}"],
        "trained-no-mask": nope[f"nearer/{_UNMASKED}"],
        "rope-trained": rope[f"beyond/{_TRAINED}"] - rope[f"beyond/{_UNMASKED}"],
    }
    return Findings(
        {id: over_seeds(of_layer[:, 1:].mean(axis=1)) for id, of_layer in numbers.items()},
        (_near(nope), _beyond(rope)),
        setting=f"{len(config.seeds)} models without positions and as many rotary ones, of "
        f"{base.n_layers} layers and width {base.d_model}, trained on text for {steps} steps and "
        f"read on {N_SEQUENCES} sequences of {base.n_ctx} bytes, each in {ORDERS} random orders",
    )


def _read(base: TransformerConfig, steps: int, device: str, seed: int) -> dict[str, Array]:
    config, source = replace(base, seed=seed), make_task("text").source()
    text = source.sequences(N_SEQUENCES, base.n_ctx, begin_token=False, split="held_out", seed=seed)
    trained = trained_on_text(config, steps, device)
    models = {
        _TRAINED: trained,
        _RANDOM: HookedTransformer(config).to(device).eval(),
        _UNMASKED: as_bidirectional(trained),
    }
    found = {}
    for kind, model in models.items():
        scores = mean_scores(model, shuffled(text, 0, seed))
        mean = scores.mean(axis=0)
        found[f"nearer/{kind}"], found[f"rise/{kind}"] = nearer_share(mean), rise(mean)
        found[f"beyond/{kind}"] = share_beyond_distance(scores)
    return found


@figure("trained", "layer", "share, or nats", claims=("trained", "amplified", "trained-no-mask"))
def _near(nope: Found) -> Iterator[Panel]:
    """Near and far keys in trained models without positions.

    Mean scores over heads and sequences of shuffled text. The rise is the mean score of the nearer
    half of a query's earlier keys minus that of the farther half. Bars are 95% intervals over
    seeds.
    """
    for what, title, chance in (
        ("nearer", "pairs of keys of which the nearer scores higher", 0.5),
        ("rise", "rise towards near keys, nats", 0.0),
    ):
        yield _panel(nope, what, title, {"no pattern": chance})


@figure("rope-trained", "layer", "share of variation", claims=("rope-trained",))
def _beyond(rope: Found) -> Iterator[Panel]:
    """What distance does not explain in trained rotary models.

    Share of the variation of mean scores that is left when the mean of each distance is taken away.
    Bars are 95% intervals over seeds.
    """
    yield _panel(rope, "beyond", "not explained by distance", {"purely relative": 0.0})


def _panel(found: Found, what: str, title: str, chance: Mapping[str, float]) -> Panel:
    kinds = {kind: found[f"{what}/{kind}"] for kind in (_TRAINED, _RANDOM, _UNMASKED)}
    layers = np.arange(1, kinds[_TRAINED].shape[1] + 1)
    return panel(title, layers, chance=chance, measured=kinds)
