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
    first = (start, sweeps, forward, training, memory)
    for module in (*first, interventions, probing, heads, explore, verdict):
        for claim in module.claims():
            print(claim, flush=True)
            missed += not claim.met
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
