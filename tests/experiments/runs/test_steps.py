"""What a run tells of its steps: which of how many, how long is left; nothing where it is quiet."""

import pytest

from experiments.runs import steps as steps_module
from experiments.runs.steps import Steps, duration
from nope_interp.progress import progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(steps_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_steps_are_announced_and_weighed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Steps("compare", show=True) as steps:
        steps.plan({"a/x": 10, "a/y": 10, "moved": 40}, seconds=2.0, at_once=2)
        said = capsys.readouterr().err
        told = "compare: 3 steps (a (2), moved); about 60 s by a short measurement."
        assert told in said
        assert steps.line() == "compare: step 1 of 3, about 60 s left"
        clock.now += 5  # half of what was expected
        steps.done("a/x")
        assert steps.line() == "compare: step 2 of 3, about 25 s left"
        clock.now += 15
        steps.done("a/y")
        assert steps.line() == "compare: step 3 of 3, about 40 s left"
        steps.done("a/x")  # read back: no step of its own
        assert steps.line() == "compare: step 3 of 3, about 40 s left"
        steps.done("moved")
        assert steps.line() == "compare: 3 steps done"


def test_a_file_gets_a_line_for_each_step(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Steps("compare", show=True, total=2) as steps:
        steps.expect(["a"])  # no line of its own
        steps.done("a")
        steps.done("b")
    told = ["step 2 of at least 3 (done: a)", "step 3 of at least 3 (done: b)"]
    assert capsys.readouterr().err.splitlines() == [f"compare: {line}" for line in told]


def test_a_terminal_has_one_line_that_changes(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with Steps("compare", show=True, total=2) as steps:
        assert [*progress(range(2), "text", "batch")] == [0, 1]
        steps.done("a")
        with progress(None, "moves", "site", total=7) as bar:
            bar.update()
        steps.done("b")
    said = capsys.readouterr().err
    for part in (
        "step 1 of 2 (text: batch 2 of 2)",
        "(moves: site 1 of 7)",
        "2 steps done (done: b)",
    ):
        assert part in said, part
    assert "\n" not in said
    monkeypatch.undo()
    assert list(progress(range(2), "text", "batch")) == [0, 1]  # alone, and on no terminal
    assert capsys.readouterr().err == ""


def test_what_was_kept_says_nothing_of_how_long_others_take(clock: Clock) -> None:
    with Steps("emergence", show=False, total=4) as steps:
        assert steps.line() == "emergence: step 1 of 4"
        clock.now += 2  # large ones take their time
        steps.done("seed 0", kept=True)
        assert steps.line() == "emergence: step 2 of 4"
        clock.now += 60
        steps.done("seed 1")
        assert steps.line() == "emergence: step 3 of 4, about 2 min left"


def test_steps_that_come_to_be_known_are_counted_as_they_do(clock: Clock) -> None:
    with Steps("chi2023", show=False) as steps:
        steps.expect(["a", "b"])
        assert steps.line() == "chi2023: step 1 of at least 2"
        clock.now += 60
        steps.done("a")
        assert steps.line() == "chi2023: step 2 of at least 2"
        steps.expect(["b", "c"])  # one of them anew
        assert steps.line() == "chi2023: step 2 of at least 3"
        steps.done("b")
        steps.done("c")
        assert steps.line() == "chi2023: 3 steps done so far"


def test_where_nobody_knows_how_many_there_are_the_number_is_told(clock: Clock) -> None:
    with Steps("chi2023", show=False) as steps:
        clock.now += 60
        steps.done("a part")
        assert steps.line() == "chi2023: step 2"


@pytest.mark.parametrize(
    ("titles", "listed"),
    [
        (
            ("a, as long, 64 tokens", "a, as long at step 1", "yarn, 128 tokens"),
            "a, as long (2), yarn",
        ),
        (
            ("probing, both of two, seed 1", "probing, a, seed 2", "DAS, a, seed 1"),
            "probing (2), DAS",
        ),
        (("seed 0", "seed 1"), "seed (2)"),
    ],
)
def test_steps_are_listed_by_kind(
    titles: tuple[str, ...], listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Steps("run", show=True) as steps:
        steps.plan(dict.fromkeys(titles, 1.0), seconds=1.0)
        assert f"steps ({listed}); about" in capsys.readouterr().err


def test_a_quiet_run_prints_nothing(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    with Steps("compare", show=False) as steps:
        steps.plan({"a": 1, "b": 1}, seconds=1.0)
        clock.now += 1
        steps.done("a")
    assert capfd.readouterr() == ("", "")


def test_durations_are_told_in_the_unit_that_fits() -> None:
    assert [duration(s) for s in (3.4, 89, 95, 5399, 9000)] == [
        "3 s",
        "89 s",
        "2 min",
        "90 min",
        "2.5 h",
    ]
