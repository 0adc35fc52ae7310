"""How long a user waits for the verdict of the model that ships with the package.

`nope-interp compare` says which of its steps are done. What it finds here is thrown away.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks.contest import Claim

LIMIT_S = 180.0
_MOVED = "(done: positions moved"


def claims() -> list[Claim]:
    return [Claim("compare: verdict of the model that ships / 3 minutes", waited() / LIMIT_S, 1.0)]


def waited() -> float:
    """Seconds from the command to moved positions, which the verdict waits for."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "experiments.cli", "compare", "--out", folder]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as run:
            assert run.stderr is not None
            for line in run.stderr:
                if _MOVED in line:
                    seconds = time.perf_counter() - start
                    os.killpg(run.pid, signal.SIGTERM)  # its workers too
                    return seconds
    raise RuntimeError(f"compare ended without a verdict, exit code {run.returncode}")
