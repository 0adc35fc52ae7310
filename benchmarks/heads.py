"""Scoring every head of the real Gemma 3 270M: 32 sequences of 128 tokens of each kind.

`trunk` is the plain Hugging Face model with eager attention and without its unembedding; `ours`
streams the same tokens through every detector; `usual` is run_with_cache of all patterns and
TransformerLens's detect_head for its three kinds of heads, one text at a time, as it has to be.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.contest import RETURN_FREED_MEMORY, Claim, extra_megabytes, in_process, paired_ratio
from nope_interp.hooked_model import HookedModel
from nope_interp.positions.layers import layer_positions
from nope_interp.pretrained.load import Pretrained
from nope_interp.streams import stream
from probes.heads.detectors import HeadProbe
from tests.gemma import gemma, gemma_folder

SEQUENCES, LENGTH, PERIOD = 32, 128, 64
_KINDS = ("text", "repeated", "copies", "fit", "held_out")


def tokens() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, most: int = 200_000) -> Tensor:
        return torch.randint(4, most, shape, generator=generator)

    return {
        "text": draw(SEQUENCES, LENGTH),
        "repeated": draw(SEQUENCES, PERIOD).repeat(1, 2),
        "copies": draw(SEQUENCES, 1).repeat(1, LENGTH),
        "fit": draw(SEQUENCES, LENGTH, most=68),
        "held_out": draw(SEQUENCES, LENGTH, most=68),
    }


def ours(model: HookedModel, batches: dict[str, Tensor]) -> list[HeadProbe]:
    """Every kind of tokens through every detector of every layer."""
    probes = [HeadProbe(window=layer.window) for layer in layer_positions(model)]
    readers: dict[str, tuple[str, Callable[[HeadProbe], Callable[[Tensor], None]]]] = {
        "text": ("pattern", lambda probe: probe.read_text),
        "repeated": (
            "pattern",
            lambda probe: partial(probe.read_repeated, period=PERIOD, start=0),
        ),
        "copies": ("pattern", lambda probe: partial(probe.read_copies, start=0)),
        "fit": ("attn_scores", lambda probe: partial(probe.read_scores, tokens=batches["fit"])),
        "held_out": (
            "attn_scores",
            lambda probe: partial(probe.read_scores, tokens=batches["held_out"], held_out=True),
        ),
    }
    for kind, (site, reader) in readers.items():
        listeners = {
            f"blocks.{layer}.attn.hook_{site}": reader(probe) for layer, probe in enumerate(probes)
        }
        # Nothing of the last layer is read but its attention.
        stream(model, batches[kind], listeners, batch_size=SEQUENCES, until=[*listeners][-1])
    return probes


def trunk(plain: Any, batches: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for kind in _KINDS:
            plain(batches[kind], use_cache=False)


def words(tokenizer: Any) -> Tensor:
    """Sequences of whole words behind a begin token, which as text become the same tokens again."""
    plain = re.compile("\u2581[a-z]{4,}")
    ids = torch.tensor(sorted(i for t, i in tokenizer.get_vocab().items() if plain.fullmatch(t)))
    generator = torch.Generator().manual_seed(0)
    drawn = ids[torch.randint(len(ids), (SEQUENCES, LENGTH - 1), generator=generator)]
    return torch.nn.functional.pad(drawn, (1, 0), value=tokenizer.bos_token_id)


def usual(loaded: Pretrained) -> None:
    """What TransformerLens offers: all patterns in a cache, then one text and kind at a time."""
    from transformer_lens import ActivationCache
    from transformer_lens.head_detector import HEAD_NAMES, detect_head

    batch = words(loaded.tokenizer)
    with torch.no_grad():
        _, cache = loaded.model.run_with_cache(
            batch, names_filter=lambda name: name.endswith("hook_pattern")
        )
    for i, text in enumerate(loaded.tokenizer.batch_decode(batch[:, 1:])):
        one = {name: pattern[i] for name, pattern in cache.items()}
        for kind in HEAD_NAMES:
            detect_head(loaded.model, text, kind, cache=ActivationCache(one, loaded.model, False))


def plain_trunk() -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        gemma_folder(), dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval().base_model


def random_gemma(n_layers: int) -> Any:
    """Gemma 3 270M's layers, so many of them, with random weights and a small vocabulary."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig.from_pretrained(gemma_folder())
    config.vocab_size, config.pad_token_id = 1000, 0
    config.layer_types, config.num_hidden_layers = config.layer_types[:n_layers], n_layers
    return Gemma3ForCausalLM(config).eval()


def claims() -> list[Claim]:
    """Run the contestants, each in a process of its own, and compare them."""
    in_process("benchmarks.heads", "load")
    found = {name: in_process("benchmarks.heads", name) for name in ("against_trunk", "race")}
    for name in ("ours", "usual", "layers_6", "layers_18"):
        found[name] = in_process("benchmarks.heads", name, RETURN_FREED_MEMORY)
    return [
        Claim(
            "Gemma 3 270M: all head detectors / eager trunk on the same tokens, time",
            found["against_trunk"]["ratio"],
            1.05,
        ),
        Claim(
            "Gemma 3 270M: cache then detect_head / all detectors, time per sequence",
            found["race"]["gain"],
            3,
            at_most=False,
        ),
        Claim(
            "Gemma 3 270M: all detectors / cache then detect_head, extra memory",
            found["ours"]["extra"] / found["usual"]["extra"],
            0.25,
        ),
        Claim(
            "all head detectors: 18 layers / 6 layers, extra memory",
            found["layers_18"]["extra"] / found["layers_6"]["extra"],
            1.05,
        ),
    ]


def main(contestant: str) -> None:
    measured: dict[str, float] = {}
    if contestant.startswith("layers"):
        measured = _extra_of_layers(int(contestant.split("_")[1]))
    elif contestant == "against_trunk":
        measured = _against_trunk(gemma(), plain_trunk())
    elif contestant == "race":
        measured = _race(gemma())
    else:
        loaded = gemma()
        runs = {"ours": lambda: ours(loaded.model, tokens()), "usual": lambda: usual(loaded)}
        if contestant in runs:
            measured = {"extra": extra_megabytes(runs[contestant])}
    print(json.dumps(measured))


def _against_trunk(loaded: Pretrained, plain: Any) -> dict[str, float]:
    batches = tokens()
    ratio = paired_ratio(
        lambda: ours(loaded.model, batches), lambda: trunk(plain, batches), rounds=2
    )
    return {"ratio": ratio}


def _race(loaded: Pretrained) -> dict[str, float]:
    """The usual way reads one kind of tokens, ours five: each is charged for a sequence."""
    batches = tokens()
    gain = paired_ratio(lambda: usual(loaded), lambda: ours(loaded.model, batches), rounds=1)
    return {"gain": gain * len(_KINDS)}


def _extra_of_layers(n_layers: int) -> dict[str, float]:
    from nope_interp.pretrained.bridges import wrap

    model = wrap(random_gemma(n_layers))
    batches = {kind: batch % 996 + 4 for kind, batch in tokens().items()}
    return {"extra": extra_megabytes(lambda: ours(model, batches))}


if __name__ == "__main__":
    main(sys.argv[1])
