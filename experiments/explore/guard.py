"""What stands before every request: this machine, this page, its token, and a body that is small.

Other pages in the same browser can send requests to this machine, too. They do not know the token;
and a name of theirs that leads here, or a request of theirs, is told by its Host and its Origin.
"""

import hmac
import json
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from experiments.explore.asked import MOST_BYTES
from experiments.explore.port import LOCAL

_NAMES = (LOCAL, "localhost")
# The port that browsers leave out of Host and Origin.
_UNNAMED = 80


class Guard:
    """An ASGI application that lets through what its own page asks, and answers all else itself.

    Args:
        app: what is guarded.
        token: what the address of the page holds.
        port: what it is served at.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in _NAMES}
        if port == _UNNAMED:
            self._hosts |= {*_NAMES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket is closed before it opens
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = _refused(scope, self._token, self._hosts)
        # Of what is refused, too: who is still sending would see a broken connection, no reason.
        body = await _whole_body(receive)
        if refused is None:
            if body is not None:
                await self._app(scope, _given(body, receive), send)
                return
            refused = (413, f"the request has more than {MOST_BYTES} bytes: send a smaller one.")
        await _answer(send, *refused)


def _refused(scope: Scope, token: str, hosts: Collection[str]) -> tuple[int, str] | None:
    """Status and sentence for what is none of the page's own; None for what is."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    host, origin = headers.get("host", []), headers.get("origin", [])
    if len(host) != 1 or host[0] not in hosts:
        return 403, "the request names another host: open the address that the command printed."
    if any(one not in {f"http://{name}" for name in hosts} for one in origin):
        return 403, "the request comes from another page: open the address that was printed."
    given = headers.get("x-token", [])
    if scope["path"] == "/" and scope["method"] == "GET":
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
    if len(given) != 1 or not hmac.compare_digest(given[0].encode(), token.encode()):
        return 403, "the token is missing or wrong: open the address that the command printed."
    return None


async def _whole_body(receive: Receive) -> bytes | None:
    """The body; None where it is too large, once all of it has come."""
    body = b""
    while True:
        message = await receive()
        body = (body + message.get("body", b""))[: MOST_BYTES + 1]
        if not message.get("more_body", False):
            return body if len(body) <= MOST_BYTES else None


def _given(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, and then what comes, which is that the client has gone."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return messages.pop() if messages else await receive()

    return give


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"sentence": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
