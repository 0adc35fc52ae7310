"""Ray clusters as a place where joblib runs jobs. Ray is optional, and imported when asked for."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from joblib import parallel_config

from nope_interp.errors import UserError

_SECONDS_TO_CONNECT, _SECONDS_TO_ANSWER = 4.0, 2.0


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
        from ray.util.joblib import register_ray
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
    register_ray()
    held = ray.cluster_resources()
    jobs = int(held.get("CPU", 0))
    if gpus_per_job:
        jobs = min(jobs, int(held.get("GPU", 0) / gpus_per_job))
    # joblib makes a pool of two at the least.
    if jobs < 2:
        raise UserError(
            f"the Ray cluster at {address!r} has room for {jobs} workers at once, and two are "
            "needed: leave --ray out and stay on one machine."
        )
    return jobs


@contextmanager
def backend_of(gpus_per_job: float) -> Iterator[None]:
    """The context in which joblib runs one job on each CPU of the cluster, or on its GPUs.

    Raises UserError where the cluster cannot run any, as without this project on its machines.
    """
    from ray.exceptions import RayError

    kept = {"num_cpus": 1, "num_gpus": gpus_per_job}
    with parallel_config("ray", ray_remote_args=kept):
        try:
            yield
        except RayError as error:
            raise UserError(
                f"the Ray cluster cannot run this ({str(error).splitlines()[-1]}): each of its "
                "machines needs this version of nope-interp."
            ) from error


def deaths() -> tuple[type[Exception], ...]:
    """What Ray raises where a worker, or its machine, is gone."""
    from ray.exceptions import OutOfMemoryError, RayActorError, WorkerCrashedError

    return (RayActorError, WorkerCrashedError, OutOfMemoryError)
