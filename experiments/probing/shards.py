"""One run's sequences, read in shares by several workers at once, here or on a Ray cluster.

How many shards there are is no part of what a run is asked: values are those of one process to
rounding, controls included, and the run folder is the same. Bootstrap intervals alone are of other
resamples, which the number of shards decides. The same number of shards gives the same bits: shares
are cut by number, and what workers bring back is merged in the order of the shares.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from joblib import cpu_count
from torch import Tensor
from tqdm import tqdm

from experiments.probing.measure import Reading, Site, Split, Stage, feed, make_probes, reading_of
from experiments.runs.folder import fingerprint
from experiments.runs.workers import Pool, Run, WorkerDied, pool_of, settle
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.pretrained.spec import ModelSpec
from probes.nonlinear import TwoLayerProbe
from probes.streaming import StreamingProbe

Probes = dict[Site, list[StreamingProbe]]


@dataclass(frozen=True)
class Shards:
    """Workers that share the sequences of a run.

    Attributes:
        n: how many shares there are.
        pool: where the workers are.
        run: hands jobs to them.
    """

    n: int
    pool: Pool
    run: Run

    def map(
        self,
        work: Callable[[HookedModel, Any], Any],
        spec: ModelSpec,
        shares: Sequence[Any],
        description: str | None = None,
    ) -> list[Any]:
        """What `work(model, share)` gives for each share, in order.

        Everything has to be picklable. Workers keep the model from one call to the next. Raises
        UserError where a worker dies, and whatever `work` raises.
        """
        here, source = Path.cwd(), Path(spec.source)
        version = fingerprint(source) if source.exists() else ""
        about = (spec, version, self.pool.threads, here, self.pool.parent)
        jobs = [_Job(work, pickle.dumps(share), *about) for share in shares]
        bar = tqdm(jobs, description, unit="share", disable=description is None, leave=False)
        try:
            return [pickle.loads(found) for found in self.run(_run_job, bar)]
        except WorkerDied as error:
            why = next(iter(str(error).splitlines()), "without a word").rstrip(".")
            raise UserError(
                f"a worker died ({why}): give it more memory, or fewer --shards; what was "
                "finished is kept."
            ) from error


@contextmanager
def opened(n: int, ray: str | None, device: str) -> Iterator[Shards | None]:
    """Workers for `n` shards, while it is open; None for a single one, which needs none.

    On Ray, where the device is one of CUDA's, each has a GPU of its own. Raises UserError for a
    cluster that cannot be used.
    """
    if n == 1:
        yield None
        return
    if ray is None:
        pool = pool_of(min(n, cpu_count()), None)
    else:
        pool = pool_of(n, ray, gpus=float(device.startswith("cuda")))
    with pool.opened(pool.at_once) as run:
        yield Shards(n, pool, run)


def note_on(shards: Shards | None) -> tuple[str, ...]:
    """What a report has to say of the shards."""
    if shards is None:
        return ()
    return (
        f"The sequences were read in {shards.n} shards: with another number of them, values differ "
        "by rounding only, but the bootstrap draws other resamples, so that intervals differ a "
        "little.",
    )


def cut(tokens: Int[Tensor, "sequence pos"], n: int) -> list[tuple[int, Tensor]]:
    """Sequences cut into n shares of nearly equal size, each with the number of its first."""
    parts = tokens.tensor_split(n)
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])]).tolist()
    return list(zip(starts, parts, strict=True))


def shard_seed(seed: int, shard: int) -> int:
    """The seed of a shard's bootstrap, another for each; the first has the run's own."""
    if shard == 0:
        return seed
    return int(np.random.SeedSequence([seed, shard]).generate_state(1, np.uint64)[0])


def measure_in_shards(
    shards: Shards,
    spec: ModelSpec,
    split: Split,
    where: list[Site],
    *,
    context: dict[str, Any],
    seed: int = 0,
    batch_size: int = 32,
    description: str | None = None,
) -> Reading:
    """What `measure` finds of the model that `recipe` makes, in the shards' workers.

    Sums are taken of shares and added up. Gradient descent leaves no sums: each worker trains the
    two-layer probes of some of the places, on all sequences to fit on.

    Raises UserError as `measure` does, and where a worker dies.
    """
    run = partial(shards.map, partial(_fed, batch_size=batch_size), spec)
    summed, trained = _by_kind({site: make_probes(site, seed) for site in where})
    alone = [
        _Share("update", split.fit, dict(list(trained.items())[shard :: shards.n]))
        for shard in range(min(shards.n, len(trained)))
    ]
    fits = [
        _Share("update", tokens, _handed_out(summed, seed, start))
        for start, tokens in cut(split.fit, shards.n)
    ]
    # What takes longest goes first.
    found = run([*alone, *fits], description=description and f"{description}, update")
    fitted = _merged(found[len(alone) :])
    for probes in found[: len(alone)]:
        for site, of_place in probes.items():
            fitted[site] += of_place
    held_out = [
        _Share("evaluate", tokens, _handed_out(fitted, shard_seed(seed, shard), start))
        for shard, (start, tokens) in enumerate(cut(split.held_out, shards.n))
    ]
    scored = run(held_out, description=description and f"{description}, evaluate")
    return reading_of(_merged(scored), context)


@dataclass(frozen=True)
class _Share:
    stage: Stage
    tokens: Int[Tensor, "sequence pos"]
    probes: Probes


def _fed(model: HookedModel, share: _Share, batch_size: int) -> Probes:
    feed(model, share.tokens, share.probes, share.stage, batch_size=batch_size)
    return share.probes


def _by_kind(probes: Probes) -> tuple[Probes, Probes]:
    """The probes whose fits can be added up, and those that see all sequences themselves."""
    summed: Probes = {}
    trained: Probes = {}
    for site, of_place in probes.items():
        summed[site] = [probe for probe in of_place if not isinstance(probe, TwoLayerProbe)]
        if len(summed[site]) < len(of_place):
            trained[site] = [probe for probe in of_place if isinstance(probe, TwoLayerProbe)]
    return summed, trained


def _handed_out(probes: Probes, seed: int, start: int) -> Probes:
    return {
        site: [probe.for_shard(seed, start) for probe in of_place]
        for site, of_place in probes.items()
    }


def _merged(parts: Sequence[Probes]) -> Probes:
    whole, *rest = parts
    for part in rest:
        for site, of_place in whole.items():
            for probe, other in zip(of_place, part[site], strict=True):
                probe.merge(other)
    return whole


@dataclass(frozen=True)
class _Job:
    """A share with everything that a process on another machine needs to work on it.

    Shares and what comes of them travel as bytes, since Ray gives arrays that cannot be written to.
    """

    work: Callable[[HookedModel, Any], Any]
    share: bytes
    spec: ModelSpec
    version: str
    threads: int
    working_folder: Path
    parent: int | None


def _run_job(job: _Job) -> bytes:
    settle(job.threads, job.working_folder, job.parent)
    return pickle.dumps(job.work(_model(job.spec, job.version), pickle.loads(job.share)))


# A model and its twin take turns.
@lru_cache(maxsize=2)
def _model(spec: ModelSpec, version: str) -> HookedModel:
    """The model of a recipe; `version` changes where the files behind it do."""
    return spec.make()
