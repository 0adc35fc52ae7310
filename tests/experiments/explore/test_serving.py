"""The command and the function that open the page, and all that may be in their way."""

import json
import random
import socket
import threading
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import nope_interp as ni
from experiments.explore import serving
from experiments.explore.playground import Playground
from experiments.explore.serving import Explorer
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp import memory
from nope_interp.errors import UserError
from nope_interp.memory import check_weights
from tests import typecheck
from tests.byte_llama import byte_llama
from tests.experiments.cli.command import assert_one_sentence, nope_interp
from tests.experiments.explore.states import OTHER, PROMPT


def asked(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    """What a page's address answers to `read`."""
    home, token = url.split("?token=")
    given = {"Content-Type": "application/json", "X-Token": token, **headers}
    request = urllib.request.Request(f"{home}api/read", json.dumps(body).encode(), given)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths that position probes are asked for as a page opens; none is fitted."""
    found: list[int] = []
    monkeypatch.setattr(serving, "probes_for", lambda playground, n: found.append(n))
    return found


@pytest.fixture(autouse=True)
def _quickly(fitted: list[int]) -> None:
    """Pages open without fitting."""


def test_a_small_models_probes_are_ready_when_its_page_opens(
    embedded: Playground, llama: Playground, fitted: list[int]
) -> None:
    for playground, expected in ((embedded, [128]), (llama, [])):
        fitted.clear()
        ni.explore(playground.loaded).close()
        assert fitted == expected


def test_a_page_is_served_on_this_machine_until_it_is_closed(embedded: Playground) -> None:
    page = ni.explore(embedded.loaded)
    with urllib.request.urlopen(page.url) as response:
        assert response.status == 200
        assert "server" not in response.headers
    status, found = asked(page.url, {"prompt": PROMPT})
    assert (status, "".join(found["tokens"][1:])) == (200, PROMPT)
    # Another name of this machine, and what another machine's name would say.
    port = page.url.split(":")[2].split("/")[0]
    assert asked(page.url, {"prompt": PROMPT}, Host=f"10.0.0.7:{port}")[0] == 403
    own = page._door.getsockname()
    assert own[0] == "127.0.0.1"
    page.close()
    page.close()
    with pytest.raises(urllib.error.URLError):
        asked(page.url, {"prompt": PROMPT})


def test_closing_a_page_ends_what_still_runs(embedded: Playground) -> None:
    page = ni.explore(embedded.loaded)
    reached, ended = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        reached.set()
        while not page._turns._closed:
            pass

    handle = embedded.model.blocks[0].register_forward_pre_hook(wait)

    def ask() -> None:
        found = asked(page.url, {"prompt": "never asked before"})
        assert found[0] == 409
        ended.set()

    try:
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        reached.wait()
        page.close()
        thread.join()
    finally:
        handle.remove()
    assert ended.is_set()


def test_positions_are_those_that_one_says_the_checkpoint_has(tmp_path: Path) -> None:
    folder = byte_llama(tmp_path / "tiny")
    shown = {}
    for positions in ("none", "auto"):
        page = ni.explore(folder, positions=positions, out=tmp_path)
        try:
            status, found = asked(page.url, {"prompt": PROMPT})
        finally:
            page.close()
        assert status == 200
        model = ni.load(folder, positions=positions).model
        logits = model(model.to_tokens(PROMPT))[0, -1]
        likeliest = [one["probability"] for one in found["before"]["predictions"]]
        expected = logits.softmax(dim=0).sort(descending=True).values[: len(likeliest)]
        assert likeliest == pytest.approx(expected.tolist(), rel=1e-3)
        shown[positions] = likeliest
    assert shown["none"] != pytest.approx(shown["auto"], rel=1e-2)


def test_a_pretrained_model_may_be_spread_over_all_devices(tmp_path: Path) -> None:
    folder = byte_llama(tmp_path / "tiny")
    how = {"device": "auto", "dtype": "float32", "revision": None, "positions": "auto"}
    page = serving.opened_page(folder, port=0, out=tmp_path, framed=False, text=None, **how)
    page.close()
    with pytest.raises(UserError, match="'auto' is for pretrained models"):
        serving.opened_page(EMBEDDED_MODEL, port=0, out=tmp_path, framed=False, text=None, **how)


def test_twenty_killed_connections_leave_the_server_right(embedded: Playground) -> None:
    page, draw = ni.explore(embedded.loaded), random.Random(0)
    home, token = page.url.split("/?token=")
    host, port = home.removeprefix("http://").split(":")
    try:
        expected = asked(page.url, {"prompt": PROMPT})
        for number in range(20):
            name = draw.choice(["read", "head", "patch", "move", "save"])
            state = {"prompt": f"{PROMPT} {number}", "other_prompt": f"{OTHER} {number}"}
            move = {"code": "t", "layer": 0, "site": "resid_post", "moves": {"9": 12}}
            state |= {"layer": 1, "head": 1, "patch": {"at": "head_out"}, "move": move}
            body = json.dumps(state).encode()
            head = (
                f"POST /api/{name} HTTP/1.1\r\nHost: {host}:{port}\r\nX-Token: {token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            whole = head.encode() + body
            with socket.create_connection((host, int(port))) as line:
                # Cut off within the request, or as soon as it is sent.
                line.sendall(whole[: draw.choice([len(whole), len(whole) - 9, 60])])
        assert asked(page.url, {"prompt": PROMPT}) == expected
    finally:
        page.close()


def test_two_pages_have_two_tokens_and_ports(embedded: Playground) -> None:
    first, second = ni.explore(embedded.loaded), ni.explore(embedded.loaded)
    try:
        assert first.url != second.url
        stolen = second.url.split("?token=")[0] + "?token=" + first.url.split("?token=")[1]
        assert asked(stolen, {"prompt": PROMPT})[0] == 403
    finally:
        first.close()
        second.close()


def test_a_notebook_shows_the_page_in_a_frame(embedded: Playground) -> None:
    page = ni.explore(embedded.loaded)
    try:
        assert f'<iframe src="{page.url}"' in page._repr_html_()
        assert 'allow="clipboard-write"' in page._repr_html_()
        assert page.url in repr(page)
    finally:
        page.close()


@pytest.fixture
def taken() -> Any:
    """A port that something listens at."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        yield door.getsockname()[1]


def test_a_port_that_is_taken_is_one_sentence(taken: int, tmp_path: Path) -> None:
    run = nope_interp("explore", "--port", str(taken), cwd=tmp_path)
    assert_one_sentence(run, f"the port {taken} cannot be used", "--port")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--port", "70000"], ["the port is 70000", "1 to 65535"]),
        (["absent/model"], ["absent/model"]),
        (["--device", "gpu"], ["the device 'gpu'", "cpu"]),
        (["--dtype", "int8"], ["unknown dtype 'int8'"]),
        (["--text", "absent.txt"], ["absent.txt"]),
        (["--pot", "1"], ["--pot", "--port"]),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    tmp_path: Path, options: list[str], parts: list[str]
) -> None:
    assert_one_sentence(nope_interp("explore", *options, cwd=tmp_path), *parts)


@pytest.mark.parametrize("name", ["fastapi", "uvicorn"])
def test_without_its_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    find = serving.find_spec
    monkeypatch.setattr(serving, "find_spec", lambda asked: None if asked == name else find(asked))
    run = nope_interp("explore", cwd=tmp_path)
    assert_one_sentence(run, f"needs {name}", "pip install 'nope-interp[explore]'")


def test_a_model_that_is_too_large_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights_of(tmp_path / "big" / "model.safetensors", 3 * 2**30)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2.0**30)
    run = nope_interp("explore", "big", cwd=tmp_path)
    assert_one_sentence(run, "takes 6.0 GiB in float32, more than the 1.0 GiB", "smaller model")


def test_a_model_that_is_larger_than_this_machine_is_refused_too(tmp_path: Path) -> None:
    """Such a file cannot even be mapped into memory."""
    weights_of(tmp_path / "big" / "model.safetensors", 2**42)
    run = nope_interp("explore", "big", cwd=tmp_path)
    assert_one_sentence(run, "takes 8,192.0 GiB in float32", "smaller model")


def weights_of(file: Path, size: int) -> None:
    """A file that says it holds so many bytes of bfloat16: a hole, which takes no room."""
    tensor = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    header = json.dumps({"weight": tensor}).encode()
    file.parent.mkdir(exist_ok=True)
    (file.parent / "config.json").touch()  # without one it is no model's folder
    with file.open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + size)


def test_what_a_model_takes_depends_on_its_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights_of(tmp_path / "model.safetensors", 3 * 2**20)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 4.0 * 2**20)
    check_weights(tmp_path, "cpu", "bfloat16")
    with pytest.raises(UserError, match="in float32"):
        check_weights(tmp_path, "cpu", "float32")
    # Weights in other forms, which are not loaded.
    for name in ("consolidated.safetensors", "model.fp16.safetensors", "pytorch_model.bin"):
        weights_of(tmp_path / name, 3 * 2**20)
    check_weights(tmp_path, "cpu", "bfloat16")
    check_weights(Path("someone/on-the-hub"), "cpu", "float32")
    # No weights, which is refused when they are read.
    (tmp_path / "model.safetensors").write_bytes(b"no")
    check_weights(tmp_path, "cpu", "float32")
    for header in (b"", b"[]", b"{1", b'{"weight": 5}', b'{"weight": {"shape": 5}}', b"[" * 9999):
        (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        check_weights(tmp_path, "cpu", "float32")


class Served:
    """Runs of the command that ends as soon as it would serve."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, embedded: Playground) -> None:
        self.opened: list[str] = []
        monkeypatch.setattr(serving, "load", lambda name, **how: embedded.loaded)
        monkeypatch.setattr(Explorer, "run", self._interrupted)
        monkeypatch.setattr(webbrowser, "open", self._open)
        self.works = True

    def _interrupted(self, page: Explorer | None = None) -> None:
        raise KeyboardInterrupt

    def _open(self, url: str) -> bool:
        self.opened.append(url)
        return self.works


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, embedded: Playground) -> Served:
    return Served(monkeypatch, embedded)


@pytest.mark.parametrize("no_open", [True, False])
def test_the_command_prints_its_address_and_opens_it(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_open: bool
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    run = nope_interp("explore", *(["--no-open"] if no_open else []), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    url = run.stdout.splitlines()[0].removeprefix("Explore: ")
    assert url.startswith("http://127.0.0.1:")
    assert served.opened == ([] if no_open else [url])
    assert "this machine only" in run.stdout
    assert "No browser" not in run.stdout


def test_without_a_display_or_a_browser_it_says_so_and_serves(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with mock.patch.dict("os.environ"):
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
        run = nope_interp("explore", cwd=tmp_path)
        assert served.opened == []
        assert "No browser could be opened here" in run.stdout
        monkeypatch.setenv("DISPLAY", ":0")
        served.works = False
        run = nope_interp("explore", cwd=tmp_path)
    assert len(served.opened) == 1
    assert (run.returncode, run.stderr) == (0, "")
    assert "No browser could be opened here" in run.stdout


def test_a_wrong_port_is_refused_in_python_too(
    embedded: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typecheck, "ON", False)  # as for a user
    for port in (-1, "80"):
        with pytest.raises(UserError, match=f"the port is {port!r}"):
            ni.explore(embedded.loaded, port=port)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how", [{"text": "mine.txt"}, {"device": "cuda"}, {"positions": "none"}, {"dtype": "bfloat16"}]
)
def test_how_to_load_a_model_that_is_loaded_is_refused(
    embedded: Playground, how: dict[str, str]
) -> None:
    with pytest.raises(UserError, match=f"{next(iter(how))} is given for a model that is loaded"):
        ni.explore(embedded.loaded, **how)  # type: ignore[arg-type]
