"""Probing every layer of the real Gemma 3 270M: 32 sequences of 128 tokens, one batch.

`trunk` is the plain Hugging Face model without its unembedding; `ours` streams every layer's
resid_post through all streaming probes; `usual` is run_with_cache, then scikit-learn's Ridge for
each layer. Ours does more than the usual way (variance, similarity and positional vectors too).
"""

import json
import sys
import time
from statistics import median

import torch

from benchmarks.contest import Claim, in_process, paired_ratio, peak_megabytes, timed
from nope_interp.pretrained.load import Pretrained
from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.threads import one_thread_pool
from probes.positional_vectors import PositionalVectorProbe
from probes.regression import LinearProbe
from probes.similarity import SimilarityProbe
from probes.streaming import StreamingProbe
from probes.variance import VarianceProbe
from tests.gemma import gemma

SEQUENCES, LENGTH, FITTED = 32, 128, 24


def tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(4, 200_000, (SEQUENCES, LENGTH), generator=generator)


def trunk(loaded: Pretrained) -> None:
    with torch.no_grad():
        loaded.model.original_model.base_model(tokens(), use_cache=False)


def streamed(loaded: Pretrained) -> list[list[StreamingProbe]]:
    """All streaming probes on every layer: 24 sequences to fit on, 8 held out."""
    probes: list[list[StreamingProbe]] = [
        [LinearProbe(), VarianceProbe(), SimilarityProbe(), PositionalVectorProbe()]
        for _ in range(loaded.model.cfg.n_layers)
    ]
    positions = torch.arange(1, LENGTH)

    def listen(activations: torch.Tensor, layer: int) -> None:
        for probe in probes[layer]:
            probe.update(activations[:FITTED, 1:], positions)
            probe.evaluate(activations[FITTED:, 1:], positions)

    listeners = {
        hook_name(layer, "resid_post"): lambda x, layer=layer: listen(x, layer)
        for layer in range(loaded.model.cfg.n_layers)
    }
    stream(loaded.model, tokens(), listeners, batch_size=SEQUENCES)
    return probes


def usual(loaded: Pretrained) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n_layers = loaded.model.cfg.n_layers
    names = [hook_name(layer, "resid_post") for layer in range(n_layers)]
    with torch.no_grad():
        _, cache = loaded.model.run_with_cache(tokens(), names_filter=names)
    position = torch.arange(1, LENGTH).float()
    for name in names:
        fit, held_out = (
            part.flatten(0, 1).numpy()
            for part in (cache[name][:FITTED, 1:], cache[name][FITTED:, 1:])
        )
        probe = make_pipeline(StandardScaler(), Ridge())
        probe.fit(fit, position.repeat(FITTED).numpy())
        probe.score(held_out, position.repeat(SEQUENCES - FITTED).numpy())


_CONTESTANTS = ("ours", "usual", "race")


def claims() -> list[Claim]:
    """Run the contestants, each in a process of its own, and compare them."""
    # Converts the GGUF file where that has not been done: its peak is not the contestants'.
    in_process("benchmarks.probing", "load")
    ours, peer, race = (in_process("benchmarks.probing", name) for name in _CONTESTANTS)
    return [
        Claim("Gemma 3 270M: probing all layers / bare trunk, time", ours["ratio"], 1.10),
        Claim("Gemma 3 270M: cache then Ridge / probing, time", race["gain"], 3, at_most=False),
        Claim(
            "Gemma 3 270M: probing / cache then Ridge, peak memory",
            ours["megabytes"] / peer["megabytes"],
            0.5,
        ),
        Claim(
            "  results of all probes, once per run (bootstrap, seriation) / bare trunk",
            ours["results"],
            None,
        ),
    ]


def main(contestant: str) -> None:
    loaded = gemma()
    measured: dict[str, float] = {}
    if contestant == "ours":
        measured = _against_trunk(loaded)
    elif contestant == "usual":
        usual(loaded)
    elif contestant == "race":
        measured = _against_usual(loaded)
    print(json.dumps({**measured, "megabytes": peak_megabytes()}))


def _against_trunk(loaded: Pretrained, rounds: int = 9) -> dict[str, float]:
    """Trunk and probing in turns: a machine's slow moments hit both."""
    bare, probed, results = [], [], []
    for _ in range(rounds + 1):
        bare.append(timed(lambda: trunk(loaded)))
        start = time.perf_counter()
        probes = streamed(loaded)
        probed.append(time.perf_counter() - start)
        start = time.perf_counter()
        with one_thread_pool():
            for probe in (probe for layer in probes for probe in layer):
                probe.result()
        results.append(time.perf_counter() - start)
    # The first round warms up.
    return {
        "ratio": median(p / b for p, b in zip(probed[1:], bare[1:], strict=True)),
        "results": median(results[1:]) / median(bare[1:]),
    }


def _against_usual(loaded: Pretrained) -> dict[str, float]:
    """Apart from the trunk: caches of the usual way slow what follows."""
    return {"gain": paired_ratio(lambda: usual(loaded), lambda: streamed(loaded), rounds=3)}


if __name__ == "__main__":
    main(sys.argv[1])
