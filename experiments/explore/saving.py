"""`save`: what the page shows, as a page of its own that needs no server and no network."""

import json
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from experiments.explore.asked import State
from experiments.explore.heads import feeds, head
from experiments.explore.model import model
from experiments.explore.moving import move
from experiments.explore.patching import patch
from experiments.explore.playground import Playground
from experiments.explore.python import code
from experiments.explore.reading import read
from experiments.explore.turns import Taking
from experiments.report.explore_page import saved_page
from nope_interp.errors import UserError
from probes.errors import ProbeError


def save(playground: Playground, state: State, turn: Taking) -> str:
    """Everything that is shown of a state, answered as for the page, in one file.

    Args:
        playground: whose model.
        state: what the page shows.
        turn: what has to be open while the model runs.

    Returns:
        HTML.

    Raises:
        UserError: as each of the answers; a move or a patch that is refused is left out.
    """
    answers: dict[str, Any] = {}
    with turn():
        answers["model"] = _plain(model(playground))
        answers["read"] = _plain(read(playground, state))
        if state.layer is not None and state.head is not None:
            answers["head"] = _plain(head(playground, state))
            answers["feeds"] = _plain(feeds(playground, state))
        with suppress(UserError, ProbeError):
            if state.move is not None:
                answers["move"] = _plain(move(playground, state))
    with suppress(UserError, ProbeError):
        if state.patch is not None and state.other_prompt:
            *_, found = patch(playground, state, turn)
            answers["patch"] = _plain(found)
    answers["code"] = _plain(code(playground, state))
    return saved_page(state.model_dump(mode="json"), answers)


def _plain(answer: BaseModel) -> Any:
    # By way of JSON, in which NaN is null.
    return json.loads(answer.model_dump_json())
