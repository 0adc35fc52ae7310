"""The server: thin, behind its guard, and going on whatever it is asked."""

import asyncio
import json
import random
import string
import threading
from typing import Any

import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from experiments.explore import saving, server
from experiments.explore.answers import Progress
from experiments.explore.asked import MOST_BYTES, State
from experiments.explore.guard import Guard
from experiments.explore.heads import feeds, head
from experiments.explore.model import model
from experiments.explore.moving import move
from experiments.explore.playground import Playground
from experiments.explore.python import code
from experiments.explore.reading import read
from experiments.explore.server import served
from experiments.explore.turns import Turns
from nope_interp.interventions import patched_runs
from tests.experiments.explore.pages import HOME, PORT, TOKEN, Page
from tests.experiments.explore.states import OTHER, PROMPT

pytestmark = pytest.mark.usefixtures("one_thread")
STATE = {
    "prompt": PROMPT,
    "other_prompt": OTHER,
    "layer": 1,
    "head": 2,
    "change": {"head_changes": [{"layer": 0, "head": 1, "to": "uniform"}]},
    "move": {"code": "mean residual", "layer": 0, "site": "resid_post", "moves": {"12": 20}},
    "patch": {"at": "head_out"},
}
NAMES = ("model", "read", "head", "feeds", "fit", "move", "patch", "code", "save")


@pytest.fixture(scope="module")
def page(embedded: Playground) -> Page:
    return Page(embedded)


def sentence(response: Any) -> str:
    """The one sentence of a refusal."""
    assert 400 <= response.status_code < 500, response.text
    (told,) = response.json().values()
    assert response.json() == {"sentence": told}
    assert told
    assert "\n" not in told
    assert "Traceback" not in told
    return told


def test_each_request_is_one_call_of_the_library(page: Page, embedded: Playground) -> None:
    asked = State.model_validate(STATE)
    expected = {
        "model": model(embedded),
        "read": read(embedded, asked),
        "head": head(embedded, asked),
        "feeds": feeds(embedded, asked),
        "move": move(embedded, asked),
        "code": code(embedded, asked),
    }
    for name, answer in expected.items():
        response = page.post(name, None if name == "model" else STATE)
        assert response.status_code == 200
        assert response.json() == json.loads(answer.model_dump_json()), name


def test_patching_comes_in_lines(
    page: Page, embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patched_runs, "_MOST_TOKENS", 1)  # a column in each pass
    embedded.made.pop("patched", None)
    response = page.post("patch", STATE)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *steps, found = map(json.loads, response.text.splitlines())
    assert [step["done"] for step in steps] == [0, 4, 8, 12, 16]
    assert len(found["recovered"]) == 4
    *_, fitted = map(json.loads, page.post("fit", STATE).text.splitlines())
    assert fitted == {"fitted": True}
    refused = page.post("patch", {**STATE, "other_prompt": "short"})
    assert "the prompts have 39 and 6 tokens" in json.loads(refused.text)["sentence"]


def test_a_new_prompt_ends_a_map_that_is_made(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked between two cells, of which the second is never run."""
    page, run = Page(embedded), list[str]()

    def cells(playground: Playground, state: Any, turn: Any) -> Any:
        for cell in ("first", "second"):
            with turn():
                run.append(cell)
            yield Progress(done=len(run), total=2)
            assert page.post("head", STATE).status_code == 200  # comes between
            assert page.post("read", STATE).status_code == 200

    monkeypatch.setitem(server._IN_STEPS, "patch", cells)
    *_, last = map(json.loads, page.post("patch", STATE).text.splitlines())
    assert last == {"sentence": "a newer request took the place of this one."}
    assert run == ["first"]


def test_what_is_saved_is_a_page_of_its_own_with_the_same_numbers(page: Page) -> None:
    response = page.post("save", STATE)
    assert response.status_code == 200
    assert response.headers["content-disposition"].startswith('attachment; filename="explore-')
    assert response.text.startswith("<!DOCTYPE html>")
    assert TOKEN not in response.text
    assert str(PORT) not in response.text.split("</head>")[0]


def test_a_move_or_patch_that_is_refused_leaves_the_rest_to_be_saved(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "saved_page", lambda state, answers: json.dumps(answers))
    whole = page.post("save", STATE).json()
    assert whole["read"] == page.post("read", STATE).json()
    assert {"move", "patch"} <= whole.keys()
    less = {**STATE, "other_prompt": "short", "move": {**STATE["move"], "layer": 99}}
    assert sentence(page.post("move", less))
    found = page.post("save", less).json()
    assert found["read"] == whole["read"]
    assert not {"move", "patch"} & found.keys()


def test_who_goes_away_ends_what_was_asked(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is made until nobody waits for it."""
    gone = threading.Event()

    def answer(playground: Playground, asked: State) -> Any:
        gone.set()
        for _ in range(2_000):  # a model's layers look whether to go on
            playground.model(torch.zeros(1, 2, dtype=torch.long))
        return pytest.fail("it ran to its end")

    async def is_disconnected(request: Request) -> bool:
        return gone.is_set()

    monkeypatch.setitem(server._ASKED, "read", answer)
    monkeypatch.setattr(Request, "is_disconnected", is_disconnected)
    told = sentence(Page(embedded).post("read", STATE))
    assert told == "a newer request took the place of this one."


def test_the_page_runs_its_own_script_only_and_reaches_nothing_else(page: Page) -> None:
    first, second = page.get(), page.get()
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    nonce = policy.split("'nonce-")[1].split("'")[0]
    assert f'nonce="{nonce}"' in first.text
    assert nonce not in second.text
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-store"


def test_a_notebook_of_this_machine_may_frame_it(embedded: Playground) -> None:
    policy = Page(embedded, framed=True).get().headers["content-security-policy"]
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in policy


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": f"evil.example:{PORT}"},
        {"Host": "127.0.0.1"},
        {"Host": f"192.168.1.7:{PORT}"},
        {"Host": f"127.0.0.1:{PORT}.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Origin": f"http://127.0.0.1:{PORT + 1}"},
    ],
)
def test_other_hosts_and_other_pages_are_refused(page: Page, headers: dict[str, str]) -> None:
    for response in (page.post("read", STATE, **headers), page.get(**headers)):
        assert response.status_code == 403
        assert "open the address" in sentence(response)


def test_its_own_page_is_let_in_by_both_names(page: Page) -> None:
    for name in ("127.0.0.1", "localhost"):
        own = {"Host": f"{name}:{PORT}", "Origin": f"http://{name}:{PORT}"}
        assert page.post("code", STATE, **own).status_code == 200


def test_at_port_80_clients_leave_the_port_out(embedded: Playground) -> None:
    for name in ("127.0.0.1", "localhost"):
        client = TestClient(served(embedded, TOKEN, 80), base_url=f"http://{name}")
        assert client.get(f"/?token={TOKEN}", headers={"Origin": f"http://{name}"}).is_success


def test_turns_are_asked_for_in_the_order_of_coming(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server's own loop: in threads the older of two could ask last, and end the newer."""
    page, ask, named = Page(embedded), Turns.ask, list[str]()

    def asked(turns: Turns, page: str, name: str) -> Any:
        asyncio.get_running_loop()
        assert turns._open == []  # the one before is done
        named.append(name)
        return ask(turns, page, name)

    monkeypatch.setattr(Turns, "ask", asked)
    names = ["read", "head", "feeds", "move", "fit", "patch", "save"]
    for name in names:
        assert page.post(name, STATE).status_code == 200
    assert named == names


@pytest.mark.parametrize("token", ["", "Jx7-secre", "Jx7-secrets", "ä", "jx7-secret"])
def test_without_the_token_there_is_nothing(page: Page, token: str) -> None:
    headers = {"X-Token": token.encode("latin-1").decode("latin-1")}
    for name in NAMES:
        response = page.client.post(
            f"/api/{name}", json=STATE, headers={k: v.encode("latin-1") for k, v in headers.items()}
        )
        assert response.status_code == 403
        assert "token" in sentence(response)
    assert page.get(f"/?token={token}").status_code == 403
    assert page.get("/").status_code == 403
    assert page.get(f"/?token={TOKEN}&token={TOKEN}").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../etc/passwd",
        "/static/x.js",
        "/docs",
        "/openapi.json",
        "/api",
        "/api/x",
    ],
)
def test_no_file_can_be_read_through_it(page: Page, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        response = page.client.request(method, f"{HOME}{path}", headers={"X-Token": TOKEN})
        assert 400 <= response.status_code < 500, (method, path)
        assert b"root:" not in response.content


def test_a_web_socket_is_closed(page: Page) -> None:
    with pytest.raises(WebSocketDisconnect) as closed, page.client.websocket_connect("/"):
        pass
    assert closed.value.code == 1008


def test_bodies_and_prompts_are_limited(page: Page) -> None:
    large = json.dumps({"prompt": "x" * MOST_BYTES}).encode()
    response = page.post("read", large)
    assert response.status_code == 413
    assert str(MOST_BYTES) in sentence(response)
    assert "at most 4096 characters" in sentence(page.post("read", {"prompt": "x" * 5000}))
    assert "the prompt has 201 tokens" in sentence(page.post("read", {"prompt": "x" * 200}))
    many = {str(n): n for n in range(65)}
    assert "at most 64" in sentence(
        page.post("move", {**STATE, "move": {**STATE["move"], "moves": many}})
    )  # type: ignore[dict-item]


def test_what_is_left_out_is_said_with_what_to_give(page: Page) -> None:
    for name in ("head", "feeds"):
        for lacking in ({"prompt": PROMPT}, {"prompt": PROMPT, "layer": 1}):
            told = sentence(page.post(name, lacking))
            assert told == "no head is looked at: give a layer and a head."
    assert sentence(page.post("read", {"prompt": ""})) == "the prompt is empty: give some text."


@pytest.mark.parametrize(("token", "status"), [(TOKEN, 413), ("wrong", 403)])
def test_who_is_refused_has_sent_everything_before_it_is_told(token: str, status: int) -> None:
    """Else it sees a broken connection in place of the sentence."""
    happened: list[Any] = []

    async def receive() -> Any:
        happened.append("read")
        more = happened.count("read") < 3
        return {"type": "http.request", "body": b"x" * MOST_BYTES, "more_body": more}

    async def send(message: Any) -> None:
        happened.append(message.get("status", "sentence"))

    headers = [(b"host", f"127.0.0.1:{PORT}".encode()), (b"x-token", token.encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/read", "headers": headers}
    asyncio.run(Guard(Starlette(), TOKEN, PORT)(scope, receive, send))
    assert happened == ["read", "read", "read", status, "sentence"]


def test_an_error_of_ours_is_a_sentence_and_the_server_goes_on(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(playground: Playground, state: Any) -> Any:
        raise ZeroDivisionError("a secret of the machine")

    monkeypatch.setitem(server._ASKED, "read", broken)
    page = Page(embedded)
    told = sentence(page.post("read", STATE))
    assert "ZeroDivisionError" in told
    assert "secret" not in told
    assert "a secret of the machine" in caplog.text  # where the server was started
    assert page.post("head", STATE).status_code == 200


def test_too_little_memory_is_a_sentence(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):

        def full(playground: Playground, state: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setitem(server._ASKED, "read", full)
        response = Page(embedded).post("read", STATE)
        assert response.status_code == 413
        assert "memory" in sentence(response)


def test_hostile_names_stay_text(page: Page) -> None:
    hostile = "</script><script>alert(1)</script>"
    found = page.post("read", {"prompt": hostile})
    assert "".join(found.json()["tokens"][1:]) == hostile
    assert found.headers["content-type"] == "application/json"
    saved = page.post("save", {"prompt": hostile})
    assert hostile not in saved.text


def nonsense(draw: random.Random, depth: int = 0) -> Any:
    """Any JSON."""
    kinds = ["number", "text", "name", "none", "flag"] + ["list", "object"] * (depth < 3)
    kind = draw.choice(kinds)
    if kind == "number":
        return draw.choice([0, -1, 3, 2**70, 1e308, 0.5, float("nan"), float("-inf")])
    if kind == "text":
        return "".join(draw.choices(string.printable + "ä\u2028\ud800\0🙂", k=draw.randrange(30)))
    if kind == "name":
        return draw.choice(["rotary:none", "all", "uniform", "resid_pre", "mean residual", "t5"])
    if kind == "list":
        return [nonsense(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == "object":
        words = [*STATE, "layers", "heads", "positions", "head_changes", "to", "at", "moves", "x"]
        chosen = draw.sample(words, draw.randrange(5))
        return {word: nonsense(draw, depth + 1) for word in chosen}
    return {"none": None, "flag": draw.random() < 0.5}[kind]


def malformed(draw: random.Random) -> bytes:
    """A state in which something is wrong, or no state at all, or no JSON."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(draw.randrange(200))
    if kind == 1:
        return json.dumps(nonsense(draw)).encode()
    wrong: dict[str, Any] = json.loads(json.dumps(STATE))
    if kind == 2:
        wrong[draw.choice([*wrong])] = nonsense(draw)
    else:
        part = draw.choice([of for of in wrong.values() if isinstance(of, dict)])
        part[draw.choice([*part, "x"])] = nonsense(draw)
    text = json.dumps(wrong)
    return (text[: draw.randrange(len(text))] if draw.random() < 0.2 else text).encode()


def is_refused(name: str, body: bytes, playground: Playground) -> bool:
    """Whether the library refuses it too, so that an answer would be wrong."""
    try:
        State.model_validate(json.loads(body))
    except (ValueError, RecursionError):
        return True
    return False


def test_a_thousand_malformed_requests_are_each_one_sentence(
    page: Page, embedded: Playground
) -> None:
    draw, refused = random.Random(0), 0
    while refused < 1000:
        name, body = draw.choice(NAMES[1:]), malformed(draw)
        if not is_refused(name, body, embedded):
            continue  # what is whole by chance is asked elsewhere
        response = page.post(name, body)
        assert 400 <= response.status_code < 500, (name, body, response.text)
        sentence(response)
        refused += 1
    assert page.post("read", STATE).status_code == 200


def test_whole_requests_that_mean_nothing_are_sentences_too(page: Page) -> None:
    """States of the right shape with any numbers and names in them: an answer or a sentence."""
    draw, answered = random.Random(1), 0
    for _ in range(60):
        asked = {
            "prompt": draw.choice(["ab", PROMPT, "\0\u2028", " ", "x" * 200]),
            "layer": draw.choice([None, 0, 3, 4, 4095]),
            "head": draw.choice([None, 0, 3, 4]),
            "other_prompt": draw.choice([None, "", OTHER, "ab"]),
            "change": {
                "positions": draw.choice([None, "rotary", "all", "x", "rotary:band=0-999"]),
                "layers": draw.choice([None, [0], [99]]),
                "head_changes": [
                    {
                        "layer": draw.randrange(6),
                        "head": draw.randrange(6),
                        "to": draw.choice(["ablated", "uniform", "other_prompt"]),
                    }
                ],
            },
        }
        response = page.post(draw.choice(["read", "head", "code"]), asked)
        answered += response.status_code == 200
        if response.status_code != 200:
            sentence(response)
    assert 5 < answered < 55


def test_deep_json_is_refused(page: Page) -> None:
    sentence(page.post("read", b"[" * 30000 + b"]" * 30000))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\xff", "the request cannot be read: send JSON in UTF-8."),
        (b'{"layer": ' + b"9" * 5000 + b"}", "the request cannot be read: send JSON in UTF-8."),
        (b"{x", "1: JSON decode error."),
    ],
    ids=["bytes", "number", "text"],
)
def test_a_body_that_is_no_json_is_told_so(page: Page, body: bytes, told: str) -> None:
    assert sentence(page.post("read", body)) == told


def test_limits_are_in_words(page: Page) -> None:
    told = sentence(page.post("read", {"prompt": "a", "change": {"heads": [[1]]}}))
    assert told.startswith("change.heads.0: list should have at least 2 items")
    told = sentence(page.post("read", {"prompt": "a", "other_prompt": "x" * 5000}))
    assert told.startswith("other prompt: string should have at most 4096")
