"""The command line in the tests' own process, or in one of its own where that is the point."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

from experiments.cli.main import main
from tests.paths import ROOT

# Values that may stand anywhere in JSON or YAML.
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def nope_interp(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """What `nope-interp` with these arguments prints, and its exit code; run in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["nope-interp", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def in_a_process(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The same in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def assert_one_sentence(run: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    """Refused: exit code 2 and one line, which holds the parts."""
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, run.stderr
    for part in parts:
        assert part in lines[0]
