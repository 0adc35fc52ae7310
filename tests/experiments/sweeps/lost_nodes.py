"""A sweep on four Ray nodes of this machine, which are killed at random. Run it by hand:

    python -m tests.experiments.sweeps.lost_nodes --cells 200 --kills 12

It takes minutes and much of the machine, so the suite runs `tests/experiments/test_ray.py` instead.
"""

import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.main import main
from experiments.papers.config import ReproduceConfig
from experiments.sweeps.registry import EXPERIMENTS, Experiment
from experiments.sweeps.sweep import read_sweep
from tests.experiments.sweeps import sweep_experiment, sweep_process
from tests.paths import ROOT

# What Ray's own processes read. A node is missed after seconds, and workers are not held back.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}
_MEMORY = 10**8


def run(config: ReproduceConfig, **how: Any) -> None:
    """A cell of a second: long enough to be running when its node is killed. What it began is
    known by then."""
    with (Path(how["out"]) / "began").open("a") as began:
        began.write(f"{config.seed}\n")
    time.sleep(1)
    sweep_experiment.run(config, **how)


def command_line() -> None:
    """The command line of a process that knows these cells."""
    EXPERIMENTS["quick"] = Experiment("quick", "", ReproduceConfig, (__name__, "run"))
    main()


def lose_nodes(
    cells: Annotated[int, typer.Option(help="Cells of the sweep.")] = 200,
    kills: Annotated[int, typer.Option(help="Nodes to kill; all but the first come back.")] = 12,
    seed: Annotated[int, typer.Option(help="Of which node is killed, and when.")] = 0,
) -> None:
    """Kill nodes while a sweep runs, and see that nothing is lost and nothing done twice."""
    os.environ |= _ENVIRONMENT
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": _MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=_MEMORY) for _ in range(4)]
    cluster.wait_for_nodes()
    EXPERIMENTS["quick"] = Experiment("quick", "", ReproduceConfig, (__name__, "run"))
    sweep_process.COMMAND = f"from {__spec__.name} import command_line; command_line()"
    folder, chance = Path(tempfile.mkdtemp()), random.Random(seed)
    out = folder / "runs"
    sweep_process.write_sweep(folder, **sweep_process.swept(cells))
    driver = sweep_process.start(folder, "--ray", cluster.address)
    seen: dict[str, tuple[int, int]] = {}
    killed = 0
    while driver.poll() is None:
        time.sleep(chance.uniform(2, 8))
        now = sweep_process.finished_files(out)
        assert now.items() >= seen.items(), "a finished cell ran twice"
        seen = now
        # Spread over the sweep.
        if killed < kills and len(seen) >= cells * (killed + 1) // (kills + 2):
            cluster.remove_node(nodes.pop(chance.randrange(len(nodes))), allow_graceful=False)
            killed += 1
            print(f"{len(seen)} cells are finished; node {killed} is killed", flush=True)
            if killed > 1:
                nodes.append(cluster.add_node(num_cpus=1, object_store_memory=_MEMORY))
    assert sweep_process.finished_files(out).items() >= seen.items(), "a finished cell ran twice"
    print((folder / "stderr").read_text()[-200:])
    [found] = out.glob("sweep-*")
    states = Counter(read_sweep(found).states().values())
    began = Counter((out / "began").read_text().split())
    print(f"{dict(states)}; {killed} nodes killed; {began.total()} starts of {cells} cells")
    cluster.shutdown()
    assert states == {"done": cells}, "a cell is lost"


if __name__ == "__main__":
    typer.run(lose_nodes)
