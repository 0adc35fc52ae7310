"""Memory of a stream with all probes does not grow with the number of sequences."""

import json
import sys

import torch

from benchmarks.contest import Claim, in_process, peak_megabytes
from experiments.probing.measure import measure
from experiments.probing.sites import sites
from experiments.probing.split import Split
from experiments.variants.config import default_transformer
from nope_interp.models.transformer import HookedTransformer

FEW = 256


def claims() -> list[Claim]:
    few, many = (in_process("benchmarks.memory", str(n)) for n in (FEW, 10 * FEW))
    ratio = many["megabytes"] / few["megabytes"]
    return [Claim("all probes at all layers: 10 x the sequences, peak memory", ratio, 1.05)]


def main(n: int) -> None:
    config = default_transformer()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (n, config.n_ctx), generator=generator, dtype=torch.int64)
    measure(
        HookedTransformer(config).eval(),
        Split(tokens[: n // 2], tokens[n // 2 :]),
        sites(config.n_layers, ("resid_post", "attn_out")),
        context={},
    )
    print(json.dumps({"megabytes": peak_megabytes()}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
