"""Ray clusters as a place where jobs run. Ray is optional, and imported when asked for."""

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from nope_interp.errors import UserError

# What runs a function on many jobs.
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]

_SECONDS_TO_CONNECT, _SECONDS_TO_ANSWER = 4.0, 10.0


def check_answers(address: str) -> None:
    """Raise UserError, after seconds, where no Ray head answers: Ray itself waits for a minute.

    A head speaks first, as servers of gRPC do: what stays silent is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(f"the Ray address is {address!r}: give HOST:PORT, as `ray start` says it.")
    try:
        place = (host, int(port))
        with socket.create_connection(place, timeout=_SECONDS_TO_CONNECT) as connection:
            connection.settimeout(_SECONDS_TO_ANSWER)
            if not connection.recv(1):
                raise ConnectionError("it hung up")
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({error}): start one with `ray start --head`, "
            "or leave --ray out."
        ) from error


def room(address: str, gpus_per_job: float) -> int:
    """How many jobs a cluster holds at once; connects to it.

    Raises UserError where Ray is not installed, the cluster cannot be used or is too small.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'nope-interp[ray]'.") from error
    try:
        ray.init(address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    # Where it gives up on a cluster, Ray leaves the process.
    except (OSError, ValueError, RuntimeError, SystemExit) as error:
        raise UserError(
            f"cannot use the Ray cluster at {address!r} ({error}): this machine has to be part of "
            "it, and RAY_AUTH_MODE has to be the cluster's."
        ) from error
    held = ray.cluster_resources()
    jobs = int(held.get("CPU", 0))
    if gpus_per_job:
        jobs = min(jobs, int(held.get("GPU", 0) / gpus_per_job))
    if jobs < 1:
        raise UserError(
            f"the Ray cluster at {address!r} has room for {jobs} workers at once: leave --ray out "
            "and stay on one machine."
        )
    return jobs


@contextmanager
def on_ray(gpus_per_job: float, at_once: int) -> Iterator[Run]:
    """Tasks of a cluster, on a CPU or GPUs each, so many at once.

    Machines may come and go: a task waits for room. Where a worker dies, what the others are doing
    is finished, and nothing new is begun.

    Its function raises UserError where the cluster cannot run any, as without this project on its
    machines; one of `deaths`; and what a job raises.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    # Workers keep what they have loaded from one task to the next, GPUs or not.
    how = {"num_cpus": 1, "num_gpus": gpus_per_job, "max_retries": 0, "max_calls": 0}
    task = ray.remote(**how)(_done)

    def run(function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        left, sent = iter(jobs), ray.put(function)
        in_order: deque[Any] = deque()
        pending: set[Any] = set()
        try:
            while True:
                for job in islice(left, at_once - len(pending)):
                    in_order.append(task.remote(sent, job))
                    pending.add(in_order[-1])
                if not in_order:
                    return
                if in_order[0] in pending:
                    finished, _ = ray.wait(list(pending))
                    pending.difference_update(finished)
                    # A death is known at once; what a job raises is, when it is its turn.
                    with suppress(RayTaskError):
                        ray.get(finished)
                else:
                    yield ray.get(in_order.popleft())
        except RayTaskError as error:
            if isinstance(error.cause, ImportError):
                raise _unusable(error.cause) from error
            raise error.cause from error
        except deaths():
            if pending:
                ray.wait(list(pending), num_returns=len(pending))
                pending.clear()
            raise
        except RayError as error:
            raise _unusable(error) from error
        finally:
            for one in pending:
                ray.cancel(one, force=True)

    yield run


def _done(function: Callable[[Any], Any], job: Any) -> Any:
    return function(job)


def _unusable(error: Exception) -> UserError:
    return UserError(
        f"the Ray cluster cannot run this ({str(error).splitlines()[-1]}): each of its machines "
        "needs this version of nope-interp."
    )


def deaths() -> tuple[type[Exception], ...]:
    """What Ray raises where a worker, or its machine, is gone."""
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    return (WorkerCrashedError, NodeDiedError, OutOfMemoryError)
