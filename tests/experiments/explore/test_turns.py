"""One request at a time; the newest of a page wins, and leaves the model as it was."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from experiments.explore.playground import Playground
from experiments.explore.reading import read
from experiments.explore.turns import Cancelled, Turn, Turns
from tests.experiments.explore.pages import Page
from tests.experiments.explore.states import OTHER, PROMPT, changing, head_change, state
from tests.small_models import model as small_model


def ended_in_layer(playground: Playground, layer: int, turns: Turns) -> None:
    """A reading under a change that a newer request ends when it reaches a layer."""

    def end(*_: object) -> None:
        with turns.ask("a", "read"):
            pass

    change = changing(head_change(0, 1, "uniform"), head_change(1, 0, "ablated"))
    handle = playground.model.blocks[layer].register_forward_pre_hook(end)
    try:
        with turns.ask("a", "read") as turn, turn.taken(playground.model):
            read(playground, change.model_copy(update={"prompt": f"{PROMPT} {random.random()}"}))
    finally:
        handle.remove()


def test_a_newer_request_ends_an_older_one_between_two_layers(embedded: Playground) -> None:
    with torch.no_grad():
        before = embedded.model(embedded.tokens(PROMPT))
    reached: list[int] = []
    watch = embedded.model.blocks[3].register_forward_pre_hook(lambda *_: reached.append(1))
    turns = Turns()
    for layer in (0, 1, 2):
        with pytest.raises(Cancelled):
            ended_in_layer(embedded, layer, turns)
    watch.remove()
    assert reached == []
    hooks = [len(module._forward_hooks) for module in embedded.model.hook_dict.values()]
    blocks = [len(block._forward_pre_hooks) for block in embedded.model.blocks]
    assert sum(hooks) + sum(blocks) == 0
    with torch.no_grad():
        assert torch.equal(embedded.model(embedded.tokens(PROMPT)), before)
    with turns.ask("a", "read") as turn, turn.taken(embedded.model):
        read(embedded, state())


@pytest.mark.parametrize(
    ("older", "newer", "page", "ended"),
    [
        ("head", "head", "a", True),
        ("patch", "read", "a", True),
        ("head", "read", "a", True),
        ("read", "head", "a", False),
        ("patch", "head", "a", False),
        ("read", "read", "b", False),
    ],
)
def test_a_read_ends_all_of_its_page_and_others_their_own_name(
    older: str, newer: str, page: str, ended: bool
) -> None:
    turns = Turns()
    with turns.ask("a", older) as first, turns.ask(page, newer) as second:
        second.check()
        if ended:
            with pytest.raises(Cancelled):
                first.check()
        else:
            first.check()


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_turns_are_taken_one_at_a_time_in_the_order_of_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, order, inside = Turns(), list[str](), list[int]()
    model = small_model()
    waiting = threading.Semaphore(0)
    wait = turns._changed.wait

    def waits(timeout: float | None = None) -> bool:
        waiting.release()
        return wait(timeout)

    monkeypatch.setattr(turns._changed, "wait", waits)

    def take(name: str) -> None:
        with turns.ask(name, "head") as turn, turn.taken(model):
            inside.append(1)
            assert len(inside) == 1
            order.append(name)
            inside.pop()

    threads = []
    with turns.ask("first", "patch") as turn, turn.taken(model):
        for name in "bcd":
            threads.append(in_thread(lambda name=name: take(name)))  # type: ignore[misc]
            waiting.acquire()
    for thread in threads:
        thread.join()
    assert order == ["b", "c", "d"]


def test_one_that_waits_is_ended_too() -> None:
    turns, ended = Turns(), list[bool]()
    model = small_model()
    asked = threading.Event()

    def wait(turn: Turn) -> None:
        try:
            with turn.taken(model):
                ended.append(False)
        except Cancelled:
            ended.append(True)

    def older() -> None:
        with turns.ask("a", "read") as turn:
            asked.set()
            wait(turn)

    with turns.ask("b", "read") as holder, holder.taken(model):
        thread = in_thread(older)
        asked.wait()
        with turns.ask("a", "read"):
            thread.join()
    assert ended == [True]


def test_a_queue_that_is_closed_ends_what_runs_and_what_comes() -> None:
    model, turns = small_model(), Turns()

    def run(close: bool) -> None:
        with turns.ask("a", "read") as turn, turn.taken(model):
            if close:
                turns.close()
            model(torch.zeros(1, 3, dtype=torch.long))

    run(close=False)
    for close in (True, False):
        with pytest.raises(Cancelled):
            run(close)


def test_twenty_requests_of_two_pages_at_once_leave_the_server_right(embedded: Playground) -> None:
    """Whatever is ended, each answer is its own prompt's, and those after are as those before."""
    page, draw = Page(embedded), random.Random(0)
    expected = page.post("read", {"prompt": PROMPT}).json()
    found: list[tuple[str, Any]] = []

    def ask(number: int) -> None:
        prompt = f"{draw.choice([PROMPT, OTHER])} {number}"
        name = draw.choice(["read", "head", "save"])
        asked = {"prompt": prompt, "layer": 1, "head": 1}
        found.append((prompt, page.post(name, asked, page="ab"[number % 2])))

    threads = [in_thread(lambda n=n: ask(n)) for n in range(20)]  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert {response.status_code for _, response in found} <= {200, 409}
    told = [
        (prompt, response.json())
        for prompt, response in found
        if response.status_code == 200 and "json" in response.headers["content-type"]
    ]
    assert told
    for prompt, answer in told:
        assert "".join(answer["tokens"][1:]) == prompt
    assert page.post("read", {"prompt": PROMPT}).json() == expected
