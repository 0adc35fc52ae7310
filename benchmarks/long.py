"""Time and memory of scoring every head of the real Gemma 3 270M against the length of its input.

`blocks` computes attention few queries at a time; `whole` holds maps of all queries and keys, while
they are small enough. Each reads one text, in a process of its own. Time is the processor's, on
one thread: other work on the machine does not change it much.

`python -m benchmarks.long` writes what it measured to `docs/long.toml`, of which the documentation
draws its chart.
"""

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.contest import RETURN_FREED_MEMORY, extra_megabytes, in_process
from benchmarks.scanning import score_heads
from tests.gemma import gemma

LENGTHS = {"whole": (512, 1024, 2048, 4096), "blocks": (512, 1024, 2048, 4096, 8192)}
PAGE = Path(__file__).parent.parent / "docs" / "long.toml"


def scan(way: str, length: int) -> dict[str, float]:
    """What one text of that many tokens takes."""
    torch.set_num_threads(1)
    model = gemma().model
    tokens = torch.randint(4, 200_000, (1, length), generator=torch.Generator().manual_seed(0))

    def read(tokens: torch.Tensor) -> None:
        score_heads(model, tokens, in_blocks=way == "blocks")

    # The first pass of a process warms up.
    read(tokens[:, :64])
    start = time.process_time()
    extra = extra_megabytes(lambda: read(tokens))
    return {"seconds": time.process_time() - start, "megabytes": extra}


def main() -> None:
    lines = ["# Written by `python -m benchmarks.long`."]
    for way, lengths in LENGTHS.items():
        for length in lengths:
            found = in_process("benchmarks.long", f"{way} {length}", RETURN_FREED_MEMORY)
            lines += ["", "[[scan]]", f'way = "{way}"', f"tokens = {length}"]
            lines += [f"{name} = {value:.4g}" for name, value in found.items()]
            print(way, length, found, flush=True)
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asked, tokens = sys.argv[1].split()
        print(json.dumps(scan(asked, int(tokens))))
