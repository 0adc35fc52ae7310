"""The live page, whose scripts ask a server, and the same page saved with what was answered."""

from collections.abc import Mapping
from typing import Any

from experiments.report import shell
from experiments.report.heads_page import LOOK_OF_HEADS

_SCRIPTS = (
    "explore_asking.js",
    "explore_reading.js",
    "explore_heads.js",
    "explore_head.js",
    "explore_change.js",
    "explore_move.js",
    "explore_patch.js",
    "explore.js",
)


def live_policy(nonce: str) -> str:
    """The content security policy that the live page is sent with: its script, its server, no more.

    Styles are those in the page; Plotly sets some. They can reach nothing either.
    """
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def explore_page(info: Mapping[str, Any], nonce: str) -> str:
    """The live page: a prompt, its heads, and what is changed, all asked of the server.

    Args:
        info: the model's `name`.
        nonce: what `live_policy` calls this page's script by. Nothing runs without it.

    Returns:
        The page, which holds no number yet.
    """
    return _page(info["name"], {"live": True}, nonce)


def saved_page(state: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
    """The live page as a file of its own, with what it showed: no server, no network.

    Args:
        state: what the page showed, as its address has it.
        answers: the server's answers to that state by the names of the requests: `model`, `read`
            and `code`, and of `head`, `feeds`, `move` and `patch` those that there are.

    Returns:
        The page.
    """
    data = {"live": False, "state": dict(state), "answers": dict(answers)}
    return _page(answers["model"]["name"], data, nonce="")


def _page(name: str, page_data: Mapping[str, Any], nonce: str) -> str:
    return shell.drawn(
        "explore.html",
        shell.page_script(*LOOK_OF_HEADS, *_SCRIPTS),
        [shell.PLOTLY, shell.CIRCUITS],
        page_data,
        name=name,
        live=page_data["live"],
        nonce=nonce,
        style=shell.page_style("explore.css"),
    )
