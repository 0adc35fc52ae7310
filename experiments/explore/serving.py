"""The page on this machine: its address, its server, and its frame in a notebook.

FastAPI and uvicorn are an extra, `nope-interp[explore]`: they are looked for before a model is
loaded.
"""

import html
import secrets
import socket
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.explore.playground import Playground
from experiments.explore.port import LOCAL, check_port
from experiments.explore.python import LOADED
from experiments.explore.text import probes_for
from experiments.loaded import LoadedModel, load
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp.devices import check_device
from nope_interp.errors import UserError
from nope_interp.files import given_path
from nope_interp.models.transformer import HookedTransformer

_NEEDED = ("fastapi", "uvicorn")
_FRAME = "width:100%;height:900px;border:0"
_STOPS_WITHIN_S = 5


class Explorer:
    """A page that is served; made by `explore`.

    Attributes:
        playground: what it plays with.
        url: its address, which holds its token: who has it can ask the model.
    """

    def __init__(self, playground: Playground, door: socket.socket, *, framed: bool) -> None:
        import uvicorn

        from experiments.explore.server import served
        from experiments.explore.turns import Turns

        token, port = secrets.token_urlsafe(24), int(door.getsockname()[1])
        self.playground = playground
        self.url = f"http://{LOCAL}:{port}/?token={token}"
        self._turns = Turns()
        app: Any = served(playground, token, port, framed=framed, turns=self._turns)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._door, self._server = door, uvicorn.Server(config)
        stop = self._server.handle_exit

        def end(number: int, frame: Any) -> None:
            """Of Ctrl-C: what still runs would go on without the page."""
            self._turns.close()
            stop(number, frame)

        self._server.handle_exit = end  # type: ignore[method-assign, assignment]
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run(sockets=[self._door])

    def start(self) -> "Explorer":
        """Serve in a thread, until `close`.

        Returns:
            This page.
        """
        self._thread = threading.Thread(target=self.run, daemon=True, name="nope-interp explore")
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving, and end what still runs; nothing happens the second time."""
        self._turns.close()
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_STOPS_WITHIN_S)
        self._door.close()

    def __repr__(self) -> str:
        return f"Explorer({self.playground.variant.name!r}): {self.url}\n.close() stops it."

    def _repr_html_(self) -> str:
        """The page in a notebook's cell."""
        name = html.escape(f"explore {self.playground.variant.name}")
        return (
            f'<iframe src="{html.escape(self.url)}" style="{_FRAME}" title="{name}" '
            'allow="clipboard-write"></iframe>'
        )


def explore(
    model: str | Path | LoadedModel = EMBEDDED_MODEL,
    *,
    device: str = "cpu",
    revision: str | None = None,
    dtype: str = "float32",
    positions: str = "auto",
    text: str | Path | None = None,
    out: Path | str = "runs",
    port: int = 0,
) -> Explorer:
    """A live page: type a prompt, see its heads, take positions away, move them and patch.

    It is served on this machine only, until `close()` or the end of the process. In a notebook the
    result shows the page.

    Args:
        model: as `load` takes it, or what `load` gave; by default the embedded small model.
        device: as `load` takes it.
        revision: as `load` takes it.
        dtype: as `load` takes it.
        positions: as `load` takes it.
        text: as `load` takes it.
        out: the folder where finished runs of `heads` lie, whose labels are shown.
        port: of this machine; 0 takes a free one.

    Returns:
        The page, served already: `.url` is its address.

    Raises:
        UserError: without FastAPI and uvicorn, for a port that is taken, for a model that cannot be
            loaded, for one that is too large for the memory, and for words of how to load one that
            is loaded.
    """
    how: dict[str, Any] = {"device": device, "revision": revision, "dtype": dtype}
    how |= {"positions": positions, "text": text}
    if isinstance(model, LoadedModel):
        _refuse_given(how)
    return opened_page(model, port=port, out=given_path(out), framed=True, **how).start()


def _refuse_given(how: dict[str, Any]) -> None:
    for name, usual in LOADED.items():
        if how[name] != usual:
            raise UserError(
                f"{name} is given for a model that is loaded and has its own: leave it out, or "
                "give the model's name."
            )


def opened_page(
    model: str | Path | LoadedModel, *, port: int, out: Path, framed: bool, **how: Any
) -> Explorer:
    """A page that is not served yet. What can be refused is refused before a model is loaded.

    Of a model of ours, which is small, position probes are fitted now; of others at the first move.

    Args:
        model: as `explore` takes it.
        port: of this machine; 0 takes a free one.
        out: the folder where finished runs lie.
        framed: whether a notebook may show it in a frame.
        how: what `load` takes beside a name.

    Returns:
        The page.

    Raises:
        UserError: as `explore`.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise UserError(
                f"the live page needs {name}, which is not installed: "
                "pip install 'nope-interp[explore]'."
            )
    door = _listening(port)
    try:
        if not isinstance(model, LoadedModel):
            if how["device"] != "auto":
                check_device(how["device"])
            model = load(model, **how)
        playground = Playground(model, out)
        if isinstance(playground.model, HookedTransformer):
            with suppress(UserError):  # which is said where a position is moved
                probes_for(playground, playground.most_tokens)
        return Explorer(playground, door, framed=framed)
    except BaseException:
        door.close()
        raise


def _listening(port: int) -> socket.socket:
    check_port(port)
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((LOCAL, port))
        door.listen()
    except OSError as error:
        door.close()
        raise UserError(
            f"the port {port} cannot be used ({error.strerror}): choose another one, or leave "
            "--port out."
        ) from error
    return door
