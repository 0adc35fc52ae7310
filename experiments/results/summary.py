"""How a result introduces itself at a prompt: what it is, what it found, how to go on."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH = 100
_MOST_LINES = 10
_LONGEST_FACT = 200


def summary(title: str, facts: Mapping[str, Any], told: str, go_on: Sequence[str]) -> str:
    """At most ten lines: a title, a line for each fact, the start of a text, and what to ask next.

    Args:
        title: the first line.
        facts: what else stands on a line of its own, by its name.
        told: a text, cut short where it would take too many lines.
        go_on: attributes and methods of the result that lead on.

    Returns:
        The lines, none of them longer than about two hundred characters.
    """
    width = max(map(len, facts), default=0)
    lines = [title, *(f"  {name:<{width}}  {_short(value)}" for name, value in facts.items())]
    room = _MOST_LINES - len(lines) - 1
    if told:
        lines += textwrap.wrap(
            told,
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            max_lines=room,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, f"  Go on with {', '.join(go_on)}."])


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST_FACT else f"{text[: _LONGEST_FACT - 4]} ..."
