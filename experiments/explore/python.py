"""`code`: lines of Python that print the numbers that the page shows."""

from collections.abc import Iterator

from experiments.explore.answers import CodeAnswer
from experiments.explore.asked import HeadChange, State
from experiments.explore.changed import ablations
from experiments.explore.moving import n_coded
from experiments.explore.playground import Playground
from experiments.explore.text import fitted_on
from experiments.variants.embedded import EMBEDDED_MODEL
from nope_interp.hooked_model import check_head

_SHOWN = "print(lm.read(prompt))"
# How a model is loaded where nothing is said of it.
LOADED = {"device": "cpu", "revision": None, "dtype": "float32", "positions": "auto", "text": None}


def code(playground: Playground, state: State) -> CodeAnswer:
    """Python that reads the prompt, and once more under the change, the move and the patch.

    Args:
        playground: whose model.
        state: what the page shows.

    Returns:
        Lines to be run where nope-interp is installed.

    Raises:
        UserError: for a prompt or a change that cannot be read.
    """
    playground.tokens(state.prompt)  # refuses what cannot be read
    lines = [
        "import nope_interp as ni",
        "",
        f"lm = ni.load({_load(playground)})",
        f"prompt = {state.prompt!r}",
        _SHOWN,
    ]
    if state.changes is not None:
        lines += _changed(playground, state)
    if state.move is not None:
        lines += _moved(playground, state)
    if state.patch is not None and state.other_prompt:
        playground.tokens(state.other_prompt)
        lines.append(f"print(lm.patch(prompt, {state.other_prompt!r}, {state.patch.at!r}))")
    return CodeAnswer(code="\n".join(lines) + "\n")


def _load(playground: Playground) -> str:
    config = playground.loaded.config
    given = vars(config) | {"device": playground.variant.spec.device}
    words = [f"{name}={given[name]!r}" for name, usual in LOADED.items() if given[name] != usual]
    own = [] if config.model == str(EMBEDDED_MODEL) else [repr(config.model)]
    return ", ".join([*own, *words])


def _changed(playground: Playground, state: State) -> list[str]:
    assert state.changes is not None
    lines: list[str] = []
    opened = []
    for one in ablations(state.changes):
        words = [repr(one.how)]
        words += [] if one.layers is None else [f"layers={[*one.layers]}"]
        words += [] if one.heads is None else [f"heads={[*one.heads]}"]
        opened.append(f"ni.ablate_positions(lm.model, {', '.join(words)})")
    changes = state.changes.head_changes
    if any(change.to == "other_prompt" for change in changes):
        other = state.other_prompt or ""
        playground.tokens(other)
        lines.append(f"cache = lm.model.run_with_cache(lm.read({other!r}).ids)[1]")
    if changes:
        opened.append(f"lm.change_heads({{{', '.join(_given(playground, *changes))}}})")
    return [*lines, f"with {', '.join(opened)}: {_SHOWN}"]


def _given(playground: Playground, *changes: HeadChange) -> Iterator[str]:
    for change in changes:
        layer, head = check_head(playground.model, change.layer, change.head)
        of_other = f'cache["blocks.{layer}.attn.hook_pattern"][0, {head}]'
        to = of_other if change.to == "other_prompt" else repr(change.to)
        yield f"({layer}, {head}): {to}"


def _moved(playground: Playground, state: State) -> list[str]:
    move = state.move
    assert move is not None
    n = n_coded(playground.tokens(state.prompt).shape[1], move)
    words = ", ".join(f"{name}={value!r}" for name, value in fitted_on(playground, n).items())
    site = f"site={move.site!r}"
    return [
        f"text = lm.variant.sources[0].sequences({words})",
        f"code = ni.fit_code(lm.model, text, {move.code!r}, layer={move.layer}, {site})",
        f"with ni.set_position(lm.model, code, {move.positions}): {_SHOWN}",
    ]
