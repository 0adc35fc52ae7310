"""`patch`: activations of the clean prompt put into the run of the corrupted one, cell by cell.

TransformerLens's conventions (`transformer_lens.patching`): all of the stream at one position, or
one head's output or pattern at all positions. What is shown is the share of the logit difference
that comes back. Cells that cannot differ are not run: before the first token that differs a causal
model's two streams are the same. One pass patches some columns in every layer.
"""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.explore.answers import PatchMap, Progress
from experiments.explore.asked import State
from experiments.explore.patched_runs import Runs, Site, fastest, name_of
from experiments.explore.playground import Playground
from experiments.explore.turns import Taking
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.heads import is_causal
from nope_interp.models.losses import next_log_probabilities

# How little the logit differences may lie apart, in nats.
_LEAST = 1e-4


def patch(playground: Playground, state: State, turn: Taking) -> Iterator[Progress | PatchMap]:
    """Patch every cell; the map that was made last is kept.

    Args:
        playground: whose model.
        state: the prompt is clean, the other prompt corrupted; `patch` says where.
        turn: what has to be open while the model runs; others come between.

    Yields:
        How far it is, and at last the map.

    Raises:
        UserError: without a patch or another prompt, for prompts of other lengths or that are the
            same, for two prompts that the logit difference does not tell apart, and, of patterns,
            for a model that goes on without them.
    """
    if state.patch is None or not state.other_prompt:
        raise UserError("patching takes two prompts: type another one of as many tokens.")
    asked = (state.patch.at, state.prompt, state.other_prompt)
    kept = playground.made.get("patched", {})
    if asked not in kept:
        for found in _cells(playground, *asked, turn):
            if isinstance(found, PatchMap):
                kept = playground.made["patched"] = {asked: found}
            else:
                yield found
    yield kept[asked]


@torch.no_grad()
def _cells(
    playground: Playground, at: Site, prompt: str, other_prompt: str, turn: Taking
) -> Iterator[Progress | PatchMap]:
    """Progress, pass by pass, and then the map."""
    clean, corrupted = playground.tokens(prompt), playground.tokens(other_prompt)
    _check(clean, corrupted)
    with turn():
        if at == "pattern" and playground.idle_layer is not None:
            raise UserError("this model computes attention past its pattern hooks: patch outputs.")
        runs, of_clean = _two_runs(playground, at, clean, corrupted)
        patched = fastest(runs)
    n_layers, columns = playground.model.cfg.n_layers, _columns(playground, at, clean, corrupted)
    width = clean.shape[1] if at == "resid_pre" else playground.model.cfg.n_heads
    recovered = torch.zeros(n_layers, width)
    total = n_layers * len(columns)
    while columns:
        yield Progress(done=total - n_layers * len(columns), total=total)
        with turn():
            found = patched(columns)
        done, columns = columns[: found.shape[1]], columns[found.shape[1] :]
        recovered[:, done] = (found - runs.corrupted) / (of_clean - runs.corrupted)
    yield Progress(done=total, total=total)
    decode = playground.variant.tokenizer.decode
    yield PatchMap(
        at=at,
        columns="position" if at == "resid_pre" else "head",
        recovered=recovered.tolist(),
        clean=of_clean,
        corrupted=runs.corrupted,
        answer=decode([runs.answer]),
        other=decode([runs.other]),
        clean_tokens=playground.token_strings(clean),
        corrupted_tokens=playground.token_strings(corrupted),
    )


def _check(clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 other"]) -> None:
    n, other = clean.shape[1], corrupted.shape[1]
    if n != other:
        raise UserError(f"the prompts have {n} and {other} tokens: type two of one length.")
    if torch.equal(clean, corrupted):
        raise UserError("the two prompts are the same: change a token of one of them.")


def _two_runs(
    playground: Playground, at: Site, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> tuple[Runs, float]:
    """Both runs, and the logit difference of the clean one."""
    model = playground.model
    device = next(model.parameters()).device
    seen, of_clean = _run(model, clean.to(device), at)
    streams, of_corrupted = _run(model, corrupted.to(device), "resid_pre")
    answer = int(of_clean.argmax())
    # The likeliest of the corrupted run that is not the answer.
    other = next(id for id in of_corrupted.topk(2).indices.tolist() if id != answer)
    ends = [float(one[answer] - one[other]) for one in (of_clean, of_corrupted)]
    if abs(ends[0] - ends[1]) < _LEAST:
        raise UserError(
            "both prompts have the same logit difference: choose prompts whose next tokens differ."
        )
    return Runs(model, at, corrupted.to(device), seen, streams, answer, other, ends[1]), ends[0]


def _run(
    model: HookedModel, ids: Int[Tensor, "1 pos"], at: Site
) -> tuple[list[Tensor], Float[Tensor, " d_vocab"]]:
    """What stood at a site of each layer, and what is predicted behind the last token."""
    found: dict[int, Tensor] = {}

    def keep(x: Tensor, hook: object, layer: int) -> None:
        found[layer] = x[0].clone()

    layers = range(model.cfg.n_layers)
    hooks = [(name_of(layer, at), partial(keep, layer=layer)) for layer in layers]
    with model.hooks(fwd_hooks=hooks):
        predicted = next_log_probabilities(model, ids, ids.shape[1] - 1)[0, 0]
    return [found[layer] for layer in layers], predicted.cpu()


def _columns(
    playground: Playground, at: str, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> list[int]:
    """The columns that are run: all heads, or positions from the first that differs on."""
    if at != "resid_pre":
        return list(range(playground.model.cfg.n_heads))
    first = int((clean != corrupted)[0].int().argmax()) if is_causal(playground.model) else 0
    return list(range(first, clean.shape[1]))
