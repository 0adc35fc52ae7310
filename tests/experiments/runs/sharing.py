"""Runs in shards and what they are compared with."""

import os
import pickle
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.comparison.config import CompareConfig
from experiments.probing.shards import ONE_SHARD, Shards
from experiments.runs.finished import FinishedRun
from experiments.runs.workers import Pool
from nope_interp.models.config import TransformerConfig
from nope_interp.training.config import TrainingConfig

COMPARE = CompareConfig(
    transformer=TransformerConfig(n_layers=1, d_model=32, n_heads=2, d_vocab=257, n_ctx=16),
    training=TrainingConfig(steps=4, batch_size=4, seq_len=16, warmup=2),
    seq_len=16,
    n_fit=45,
    n_held_out=38,
    batch_size=16,
    uses="stream",
)


def travelled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@contextmanager
def pickling(n: int, ray: str | None, device: str) -> Iterator[Shards]:
    """As `opened`, in this process; what comes and goes is pickled, as on the way to a worker."""

    def run(function: Any, jobs: Iterable[Any]) -> Iterator[Any]:
        return (travelled(travelled(function)(travelled(job))) for job in jobs)

    yield ONE_SHARD if n == 1 else Shards(n, run)


class PicklingPool(Pool):
    """Workers as joblib has them, in this process: jobs are pickled on their way."""

    def run(self, function: Any, jobs: Iterable[Any], at_once: int | None = None) -> Iterator[Any]:
        return (function(travelled(job)) for job in jobs)


def drowned(model: Any, share: object, description: str | None) -> None:
    """Work on a share that its worker does not survive."""
    os.kill(os.getpid(), signal.SIGKILL)


def seen(model: Any, share: object, description: str | None) -> tuple[int, int, str]:
    """Who works on a share, with which model and in which folder."""
    return os.getpid(), id(model), os.getcwd()


def with_weights_of(run: FinishedRun, out: Path) -> Path:
    """A folder of runs in which the model of `run` is trained, and nothing is measured."""
    trained = (run.folder.parent / run.info["trained_model"]).parent
    shutil.copytree(trained, out / trained.name)
    return out


def assert_same_bits(one: FinishedRun, other: FinishedRun) -> None:
    pd.testing.assert_frame_equal(one.measurements, other.measurements, check_exact=True)
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])
