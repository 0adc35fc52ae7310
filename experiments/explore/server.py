"""The server of the page: thin, since each request is one call of a function of this room."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from experiments.explore.answers import Sorry
from experiments.explore.asked import State, said
from experiments.explore.fitting import fit
from experiments.explore.guard import Guard
from experiments.explore.heads import feeds, head
from experiments.explore.model import model
from experiments.explore.moving import move
from experiments.explore.patching import patch
from experiments.explore.playground import Playground
from experiments.explore.python import code
from experiments.explore.reading import read
from experiments.explore.saving import save
from experiments.explore.turns import Cancelled, Taking, Turn, Turns
from experiments.report.explore_page import explore_page, live_policy
from nope_interp.errors import UserError
from nope_interp.files import file_slug
from probes.errors import ProbeError

_LOG = logging.getLogger(__name__)
_REPLACED = "a newer request took the place of this one."
_NO_PAGE = "this server has no such page: open the printed address."
_UNREADABLE = "the request cannot be read: send JSON in UTF-8."
_MEMORY = "the memory is too small for this: give a shorter prompt, or a smaller model."
# Each takes the playground and a state, and gives an answer.
_ASKED: dict[str, Callable[[Playground, State], BaseModel]] = {
    "read": read,
    "head": head,
    "feeds": feeds,
    "move": move,
}
# Each takes what has to be open while the model runs, too, and tells how far it is.
_IN_STEPS: dict[str, Callable[[Playground, State, Taking], Iterator[BaseModel]]] = {
    "fit": fit,
    "patch": patch,
}
Answer = TypeVar("Answer")
# How often it is asked whether a page still waits for an answer.
_LOOKS_EVERY_S = 0.2
Page = Annotated[str, Header(alias="X-Page", max_length=64)]


def served(
    playground: Playground,
    token: str,
    port: int,
    *,
    framed: bool = False,
    turns: Turns | None = None,
) -> ASGIApp:
    """The page and its answers as a web application, behind its guard.

    Args:
        playground: whose model.
        token: what every request has to know.
        port: what it is served at.
        framed: whether other pages of this machine, a notebook's, may show it in a frame.
        turns: the queue in front of the model; None makes one.

    Returns:
        The application.
    """
    # Without pages about itself, which would fetch their scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.turns = turns or Turns()
    _add_page(app, playground, framed)
    _add_answers(app, playground)
    for kind in (Exception, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _sorry)
    return Guard(_Caught(app), token, port)


def _add_page(app: FastAPI, playground: Playground, framed: bool) -> None:
    frames = "http://localhost:* http://127.0.0.1:*" if framed else "'none'"

    @app.get("/")
    def page() -> Response:
        nonce = secrets.token_urlsafe(16)
        headers = {
            "Content-Security-Policy": f"{live_policy(nonce)}; frame-ancestors {frames}",
            "Cache-Control": "no-store",
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
        }
        shown = explore_page({"name": playground.variant.name}, nonce)
        return HTMLResponse(shown, headers=headers)


def _add_answers(app: FastAPI, playground: Playground) -> None:
    # Turns are asked for here: in threads the older of two could ask last, and end the newer.
    turns: Turns = app.state.turns

    def add(name: str, answer: Callable[[Playground, State], BaseModel]) -> None:
        @app.post(f"/api/{name}", name=name)
        async def respond(request: Request, state: State, page: Page = "") -> Response:
            with turns.ask(page, name) as turn:
                return await _while_asked(request, turn, answered, state)

        def answered(turn: Turn, state: State) -> Response:
            with turn.taken(playground.model):
                return _json(answer(playground, state))

    for name, answer in _ASKED.items():
        add(name, answer)

    @app.post("/api/model")
    def of_model(page: Page = "") -> Response:
        with turns.ask(page, "model") as turn, turn.taken(playground.model):
            return _json(model(playground))

    @app.post("/api/code")
    def of_code(state: State) -> Response:
        return _json(code(playground, state))

    def add_in_steps(name: str) -> None:
        @app.post(f"/api/{name}", name=name)
        async def respond(state: State, page: Page = "") -> Response:
            asked = ExitStack()
            return _Lines(lines(state, asked.enter_context(turns.ask(page, name))), asked)

        def lines(state: State, turn: Turn) -> Iterator[str]:
            try:
                taking = partial(turn.taken, playground.model)
                for answer in _IN_STEPS[name](playground, state, taking):
                    yield f"{answer.model_dump_json()}\n"
            except Exception as error:
                yield f"{_told(error)[1].model_dump_json()}\n"

    for name in _IN_STEPS:
        add_in_steps(name)

    @app.post("/api/save")
    async def of_save(request: Request, state: State, page: Page = "") -> Response:
        def saving(turn: Turn, state: State) -> str:
            return save(playground, state, partial(turn.taken, playground.model))

        with turns.ask(page, "save") as turn:
            saved = await _while_asked(request, turn, saving, state)
        name = file_slug(playground.variant.name) or "model"
        told = {"Content-Disposition": f'attachment; filename="explore-{name}.html"'}
        return HTMLResponse(saved, headers=told)


async def _while_asked(
    request: Request, turn: Turn, answer: Callable[[Turn, State], Answer], state: State
) -> Answer:
    """What a thread answers, which is ended where nobody waits for it any more."""

    async def look() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(_LOOKS_EVERY_S)
        turn.cancel()

    looking = asyncio.create_task(look())
    try:
        return await run_in_threadpool(answer, turn, state)
    finally:
        looking.cancel()


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


class _Lines(StreamingResponse):
    """Lines of JSON; what was asked for them ends with them, or with who reads them."""

    def __init__(self, lines: Iterator[str], asked: ExitStack) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._asked:
            await super().__call__(scope, receive, send)


class _Caught:
    """Answers what no handler has answered, before anything was sent; the server goes on."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            # Starlette raises again what its handler for Exception has answered.
            _LOG.debug("answered already", exc_info=True)


async def _sorry(request: Request, error: Exception) -> Response:
    status, sorry = _told(error)
    return JSONResponse(sorry.model_dump(), status)


def _told(error: Exception) -> tuple[int, Sorry]:
    """Status and sentence of an error; what only we can put right is logged, with its trace."""
    if isinstance(error, Cancelled):
        return 409, Sorry(sentence=_REPLACED)
    if isinstance(error, (UserError, ProbeError)):
        return 400, Sorry(sentence=" ".join(str(error).split()))
    if isinstance(error, RequestValidationError):
        return 422, Sorry(sentence=said(error.errors()))
    if isinstance(error, HTTPException):
        status = error.status_code if 400 <= error.status_code < 500 else 400
        return status, Sorry(sentence=_NO_PAGE if status in (404, 405) else _UNREADABLE)
    if isinstance(error, MemoryError) or re.search("allocate memory|out of memory", str(error)):
        return 413, Sorry(sentence=_MEMORY)
    _LOG.error("a request failed", exc_info=error)
    kind = type(error).__name__
    return 400, Sorry(sentence=f"this failed in a way nobody foresaw ({kind}): ask something else.")
