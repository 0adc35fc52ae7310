"""`patch`: what of a clean prompt, put into the run of a corrupted one, brings its prediction back.

The map is the library's (`nope_interp.interventions.patching`); others come between its passes.
"""

from collections.abc import Iterator

from experiments.explore.answers import PatchMap, Progress
from experiments.explore.asked import State
from experiments.explore.playground import Playground
from experiments.explore.turns import Taking
from nope_interp.errors import UserError
from nope_interp.interventions.patching import Patched, patch_in_steps


def patch(playground: Playground, state: State, turn: Taking) -> Iterator[Progress | PatchMap]:
    """Patch every cell; the map that was made last is kept.

    Args:
        playground: whose model.
        state: the prompt is clean, the other prompt corrupted; `patch` says where.
        turn: what has to be open while the model runs; others come between.

    Yields:
        How far it is, and at last the map.

    Raises:
        UserError: without a patch or another prompt, and as `patch_in_steps`.
    """
    if state.patch is None or not state.other_prompt:
        raise UserError("patching takes two prompts: type another one of as many tokens.")
    at, prompts = state.patch.at, (state.prompt, state.other_prompt)
    kept = playground.made.get("patched", {})
    if (at, *prompts) not in kept:
        clean, corrupted = map(playground.tokens, prompts)
        for found in patch_in_steps(playground.model, clean, corrupted, at, turn):
            yield Progress(done=found.n_done, total=found.n_cells)
        shown = _shown(playground, state, found)
        kept = playground.made["patched"] = {(at, *prompts): shown}
    yield kept[at, *prompts]


def _shown(playground: Playground, state: State, found: Patched) -> PatchMap:
    assert state.patch is not None
    return PatchMap(
        columns="position" if state.patch.at == "resid_pre" else "head",
        recovered=found.recovered.tolist(),
        clean=found.clean,
        corrupted=found.corrupted,
        answer=playground.variant.token_string(found.answer),
        other=playground.variant.token_string(found.other),
        clean_tokens=playground.token_strings(playground.tokens(state.prompt)),
    )
