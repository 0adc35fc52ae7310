"""One run's sequences, cut into shares that are read by workers, here or on a Ray cluster.

What is read is written once: shares go in, partial statistics come out and are merged in the order
of the shares. A single share, the plain case, is read in this process.

How many shards there are is no part of what a run is asked: values are those of a single one to
rounding, controls included, and the run folder is the same. Bootstrap intervals are of other
resamples, which the number of shards decides, and so is what `heads` draws from them. What it tells
of fewer sequences is of the first of each shard. The same number of shards gives the same bits.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from jaxtyping import Int
from joblib import cpu_count
from torch import Tensor

from experiments.runs.cells import Cells
from experiments.runs.finished import FinishedRun, Made
from experiments.runs.folder import RunConfig, RunFolder, fingerprint
from experiments.runs.ray_cluster import Run
from experiments.runs.steps import Steps
from experiments.runs.workers import HERE, Pool, pool_of, threads_beside
from nope_interp.devices import check_device
from nope_interp.hooked_model import HookedModel
from nope_interp.pretrained.spec import ModelSpec
from nope_interp.progress import progress

# What a model is under while it is read, such as `Ablation.of`.
Condition = Callable[[Any], AbstractContextManager[Any]]
# What is done with a share and the model; the last is the label of a progress bar, if any.
Work = Callable[[Any, Any, str | None], Any]

Finished = TypeVar("Finished", bound=FinishedRun)
Config = TypeVar("Config", bound=RunConfig)

_REMEDY = "ask for fewer --shards"


@dataclass(frozen=True)
class Shards:
    """Who reads the shares of a run's sequences.

    Attributes:
        n: how many shares there are.
        run: hands jobs to workers; None reads the only share in this process.
    """

    n: int = 1
    run: Run | None = None

    def map(
        self,
        work: Work,
        model: HookedModel | None,
        spec: ModelSpec | None,
        shares: Sequence[Any],
        description: str | None = None,
        condition: Condition = nullcontext,
    ) -> list[Any]:
        """What `work` gives for each share, in order.

        Args:
            work: what is done with the model and a share; to workers it is sent, and so it can be
                pickled, as shares and what it gives can.
            model: read in this process.
            spec: how workers make the same model, which they keep from one call to the next; only a
                single share needs none.
            shares: what there is to read.
            description: label of the progress bars; None draws none.
            condition: what the model is under while a share is worked on.

        Returns:
            As many results as there are shares.

        Raises:
            UserError: where a worker dies, and whatever `work` raises.
        """
        if self.run is None:
            with condition(model):
                return [work(model, share, description) for share in shares]
        assert spec is not None
        source = Path(spec.source)
        version = fingerprint(source) if source.exists() else ""
        jobs = [_Job(work, pickle.dumps(share), spec, version, condition) for share in shares]
        done = progress(self.run(_run_job, jobs), description, "share", len(jobs))
        return [pickle.loads(found) for found in done]


ONE_SHARD = Shards()


class NamedConfig(RunConfig, Protocol):
    """A config that more than one command may run."""

    @property
    def command_name(self) -> str:
        """The one that runs it."""


@dataclass(frozen=True)
class Reader(ABC, Generic[Config]):
    """Reads what a run asks for.

    Attributes:
        config: what is read.
        out: the folder of the folder of the run, where the model that it trains is kept.
        device: a torch device, or "auto".
        show_progress: draw progress bars on standard error.
        cells: the parts of the run.
        shards: who reads the sequences.
        draw: draws the page of what there is so far, and names what is missing.
        steps: tells which step runs, and how long is left.
    """

    config: Config
    out: Path
    device: str
    show_progress: bool
    cells: Cells
    shards: Shards
    draw: Callable[[Made, Sequence[str]], object]
    steps: Steps

    @abstractmethod
    def made(self) -> Made:
        """What the run comes to."""

    @property
    def notes(self) -> list[str]:
        """What a report has to say of the shards."""
        if self.shards.n == 1:
            return []
        return [
            f"The sequences were read in {self.shards.n} shards. With another number of them, "
            "values differ by rounding only. Intervals differ a little: the bootstrap draws other "
            "resamples."
        ]

    def label(self, words: str) -> str | None:
        """The label of a progress bar, where one is drawn."""
        return words if self.show_progress else None


def read_once(
    kind: type[Finished],
    reader: Callable[..., Reader[Any]],
    config: NamedConfig,
    *,
    out: Path | str,
    n: int,
    ray: str | None,
    device: str,
    show_progress: bool,
    pool: Pool = HERE,
) -> Finished:
    """The finished run of a config, whose cells are read in shards; see `FinishedRun.once`.

    Args:
        kind: what the run becomes.
        reader: a `Reader` that makes it.
        config: what is run.
        out: the folder that run folders are made in.
        n: how many shards.
        ray: HOST:PORT of a Ray cluster for the workers; None has them here.
        device: a torch device, or "auto".
        show_progress: draw progress bars on standard error.
        pool: where those cells are read that are asked for side by side.

    Returns:
        The finished run, read back where it was finished before.

    Raises:
        UserError: for a device or a cluster that cannot be had, and as `FinishedRun.once` does.
    """
    if device != "auto":
        check_device(device)

    def make(run: RunFolder) -> Made:
        with opened(n, ray, device) as shards, Steps(config.command_name, show_progress) as steps:
            # Cells that another number of shards read are of other resamples.
            cells = Cells(run.cells / f"{n}-shards", steps.done, pool)
            draw = partial(kind.draw_unfinished, run, config)
            how = (run.path.parent, device, show_progress, cells, shards, draw, steps)
            return reader(config, *how).made()

    return kind.once(config, out, make, device)


@contextmanager
def opened(n: int, ray: str | None, device: str) -> Iterator[Shards]:
    """Readers of `n` shares, while it is open.

    Args:
        n: how many shares; a single one is read in this process.
        ray: HOST:PORT of a Ray cluster for the workers; None has them here.
        device: on Ray, where it is one of CUDA's, each worker has a GPU of its own.

    Raises UserError for a cluster that cannot be used.
    """
    if n == 1:
        yield ONE_SHARD
        return
    at_once = min(n, cpu_count()) if ray is None else n
    gpus, threads = float(device.startswith("cuda")), threads_beside(at_once)
    pool = pool_of(at_once, ray, gpus, threads=threads, remedy=_REMEDY)
    with pool.opened() as run:
        yield Shards(n, run)


def cut(tokens: Int[Tensor, "sequence pos"], n: int) -> list[tuple[int, Tensor]]:
    """Sequences cut into shares of nearly equal size, each with the number of its first.

    Args:
        tokens: `[sequence pos]`.
        n: how many shares.

    Returns:
        Of each share the number of its first sequence, from 0, and its tokens.
    """
    parts = tokens.tensor_split(n)
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])]).tolist()
    return list(zip(starts, parts, strict=True))


def shard_seed(seed: int, shard: int) -> int:
    """The seed of a shard's bootstrap, another for each; the first has the run's own.

    Args:
        seed: of the run.
        shard: its number, from 0.

    Returns:
        The seed.
    """
    if shard == 0:
        return seed
    return int(np.random.SeedSequence([seed, shard]).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class _Job:
    """A share with everything that a process on another machine needs to work on it.

    Shares and what comes of them travel as bytes, since Ray gives arrays that cannot be written to.
    """

    work: Work
    share: bytes
    spec: ModelSpec
    version: str
    condition: Condition


def _run_job(job: _Job) -> bytes:
    model = _model(job.spec, job.version)
    with job.condition(model):
        return pickle.dumps(job.work(model, pickle.loads(job.share), None))


# A model and another variant of it take turns.
@lru_cache(maxsize=2)
def _model(spec: ModelSpec, version: str) -> HookedModel:
    """The model of a spec; `version` changes where the files behind it do."""
    return spec.make()
