"""States that a page may show, in few words."""

from typing import Any

from experiments.explore.asked import State

PROMPT = "When Mary and John went out, John gave"
OTHER = "When Mary and John went out, Mary gave"


def state(prompt: str = PROMPT, **parts: Any) -> State:
    return State.model_validate({"prompt": prompt, **parts})


def head_change(layer: int, head: int, to: str) -> dict[str, Any]:
    return {"layer": layer, "head": head, "to": to}


def changing(*heads: dict[str, Any], **change: Any) -> State:
    """A state that changes positions or heads."""
    return state(change={**change, "head_changes": list(heads)}, other_prompt=OTHER)
