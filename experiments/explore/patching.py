"""`patch`: activations of the clean prompt put into the run of the corrupted one, cell by cell.

TransformerLens's conventions (`transformer_lens.patching`): all of the stream at one position, or
one head's output or pattern at all positions. What is shown is the share of the logit difference
that comes back. Cells that cannot differ are not run: before the first token that differs a causal
model's two streams are the same. Layers before the patched one give what they gave in the
corrupted run, and are skipped where that is shown to change nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from experiments.explore.answers import PatchMap, Progress
from experiments.explore.asked import State
from experiments.explore.playground import Playground
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.heads import by_head
from nope_interp.interventions.intervene import Function, intervene
from nope_interp.models.losses import next_log_probabilities
from nope_interp.models.transformer import HookedTransformer

# Sequences in a forward pass, and how little the logit differences may lie apart, in nats.
_BATCH, _LEAST = 16, 1e-4
# What skipping layers may change of the logit difference: the rounding of a few products.
_ROUNDING = 1e-3
Site = Literal["resid_pre", "head_out", "pattern"]
Turn = Callable[[], AbstractContextManager[object]]
_HOOKS = {"resid_pre": "hook_resid_pre", "head_out": "attn.hook_z", "pattern": "attn.hook_pattern"}


@dataclass(frozen=True)
class _Runs:
    """The two runs, and what is asked of a third."""

    model: HookedModel = field(repr=False)
    corrupted_ids: Int[Tensor, "1 pos"] = field(repr=False)
    clean: dict[str, Tensor] = field(repr=False)
    corrupted: dict[str, Tensor] = field(repr=False)
    answer: int
    other: int

    def difference(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, " batch"]:
        """The logit difference behind the last token, as the model is at present."""
        found = next_log_probabilities(self.model, ids, ids.shape[1] - 1)[:, 0]
        return (found[:, self.answer] - found[:, self.other]).cpu()


def patch(playground: Playground, state: State, turn: Turn) -> Iterator[Progress | PatchMap]:
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
    playground: Playground, at: Site, prompt: str, other_prompt: str, turn: Turn
) -> Iterator[Progress | PatchMap]:
    """Progress, cell by cell, and then the map."""
    clean, corrupted = playground.tokens(prompt), playground.tokens(other_prompt)
    _check(clean, corrupted)
    with turn():
        if at == "pattern" and playground.idle_layer is not None:
            raise UserError("this model computes attention past its pattern hooks: patch outputs.")
        runs, ends = _two_runs(playground, at, clean, corrupted)
        skips = _skipping_is_exact(runs, ends[1])
    n_layers, columns = playground.model.cfg.n_layers, _columns(playground, at, clean, corrupted)
    width = clean.shape[1] if at == "resid_pre" else playground.model.cfg.n_heads
    recovered = torch.zeros(n_layers, width)
    done, total = 0, n_layers * len(columns)
    for layer in range(n_layers):
        for some in torch.tensor(columns).split(_BATCH):
            yield Progress(done=done, total=total)
            with turn():
                found = _patched(runs, at, layer, some.tolist(), skips)
            recovered[layer, some] = (found - ends[1]) / (ends[0] - ends[1])
            done += len(some)
    yield Progress(done=total, total=total)
    decode = playground.variant.tokenizer.decode
    yield PatchMap(
        at=at,
        columns="position" if at == "resid_pre" else "head",
        recovered=recovered.tolist(),
        clean=ends[0],
        corrupted=ends[1],
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
    playground: Playground, at: str, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> tuple[_Runs, tuple[float, float]]:
    """Both runs, and their logit differences."""
    model = playground.model
    device = next(model.parameters()).device
    seen: list[dict[str, Tensor]] = []
    predicted: list[Tensor] = []
    for ids in (clean, corrupted):
        found: dict[str, Tensor] = {}

        def keep(x: Tensor, hook: object, name: str, found: dict[str, Tensor] = found) -> None:
            found[name] = x[0].clone()

        names = [
            _name(layer, of) for layer in range(model.cfg.n_layers) for of in {at, "resid_pre"}
        ]
        with model.hooks(fwd_hooks=[(name, partial(keep, name=name)) for name in names]):
            last = next_log_probabilities(model, ids.to(device), ids.shape[1] - 1)
        seen.append(found)
        predicted.append(last[0, 0].cpu())
    answer = int(predicted[0].argmax())
    # The likeliest of the corrupted run that is not the answer.
    other = next(id for id in predicted[1].topk(2).indices.tolist() if id != answer)
    ends = tuple(float(one[answer] - one[other]) for one in predicted)
    if abs(ends[0] - ends[1]) < _LEAST:
        raise UserError(
            "both prompts have the same logit difference: choose prompts whose next tokens differ."
        )
    runs = _Runs(model, corrupted.to(device), seen[0], seen[1], answer, other)
    return runs, (ends[0], ends[1])


def _name(layer: int, at: str) -> str:
    return f"blocks.{layer}.{_HOOKS[at]}"


def _columns(
    playground: Playground, at: str, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> list[int]:
    """The columns that are run: all heads, or positions from the first that differs on."""
    if at != "resid_pre":
        return list(range(playground.model.cfg.n_heads))
    model = playground.model
    causal = not isinstance(model, HookedTransformer) or model.config.causal
    first = int((clean != corrupted)[0].int().argmax()) if causal else 0
    return list(range(first, clean.shape[1]))


def _patched(
    runs: _Runs, at: str, layer: int, columns: Sequence[int], skips: bool
) -> Float[Tensor, " column"]:
    """The logit difference with each of some columns patched in one layer."""
    ids = repeat(runs.corrupted_ids, "1 pos -> batch pos", batch=len(columns))
    functions: dict[str, Function] = {}
    if skips:
        functions[_name(layer, "resid_pre")] = partial(_all_corrupted, runs, layer)
    if at == "resid_pre":
        functions[_name(layer, at)] = partial(_stream_of, runs, layer, columns)
    else:
        functions[_name(layer, at)] = partial(_head_of, runs, layer, at, columns)
    with ExitStack() as stack:
        if skips:
            stack.enter_context(_skipped(runs.model, layer))
        running = stack.enter_context(intervene(runs.model, functions))
        found = runs.difference(ids)
        running.verify()
    return found


def _all_corrupted(runs: _Runs, layer: int, x: Tensor) -> Tensor:
    return runs.corrupted[_name(layer, "resid_pre")].expand_as(x)


def _stream_of(runs: _Runs, layer: int, columns: Sequence[int], x: Tensor) -> Tensor:
    name = _name(layer, "resid_pre")
    patched = runs.corrupted[name].expand_as(x).clone()
    patched[range(len(columns)), columns] = runs.clean[name][columns]
    return patched


def _head_of(runs: _Runs, layer: int, at: str, columns: Sequence[int], x: Tensor) -> Tensor:
    """One head in each row of the batch: its output, or its pattern `[batch head query key]`."""
    clean, patched = runs.clean[_name(layer, at)][None], x.clone()
    if at == "pattern":
        patched[range(len(columns)), columns] = clean[0, columns]
        return patched
    n_heads = runs.model.cfg.n_heads
    apart, own = by_head(patched, n_heads), by_head(clean, n_heads)
    for row, head in enumerate(columns):
        apart[row, :, head] = own[0, :, head]
    return patched


def _skipping_is_exact(runs: _Runs, corrupted: float) -> bool:
    """Whether a run that begins in the last layer ends as the whole run does.

    Not so where layers share what the first one computes, such as T5's bias.
    """
    last = runs.model.cfg.n_layers - 1
    with _skipped(runs.model, last):
        functions: dict[str, Function] = {
            _name(last, "resid_pre"): partial(_all_corrupted, runs, last)
        }
        try:
            with intervene(runs.model, functions):
                found = float(runs.difference(runs.corrupted_ids)[0])
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return False
    return abs(found - corrupted) < _ROUNDING


@contextmanager
def _skipped(model: HookedModel, n: int) -> Iterator[None]:
    """While it is open, the first n layers give back what they are given."""
    with ExitStack() as undo:
        for block in list(model.blocks)[:n]:
            # Set as a plain attribute it would go to the module that a bridge wraps.
            own = block.__dict__
            own["forward"] = _given_back
            undo.callback(own.pop, "forward")
        yield


def _given_back(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    return x
