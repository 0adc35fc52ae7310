"""`python -m benchmarks`: every claim in one table; exit code 1 where one is missed."""

import sys

from benchmarks import (
    explore,
    forward,
    heads,
    interventions,
    memory,
    probing,
    start,
    sweeps,
    training,
    verdict,
)


def main() -> int:
    missed = 0
    modules = (
        *(start, sweeps, forward, training, memory, interventions, probing, heads, explore),
        verdict,  # the longest
    )
    for module in modules:
        for claim in module.claims():
            print(claim, flush=True)
            missed += not claim.met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
