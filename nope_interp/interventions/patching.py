"""Patching: activations of a clean prompt put into the run of a corrupted one, cell by cell.

TransformerLens's conventions (`transformer_lens.patching`): all of the stream at one position, or
one head's output or pattern at all positions. What is told is the share of the logit difference
that comes back. Cells that cannot differ are not run: before the first token that differs a causal
model's two streams are the same. One pass patches some columns in every layer.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.errors import UserError, unknown_name
from nope_interp.hooked_model import HookedModel, layers_without_attention
from nope_interp.interventions.attention_weights import check_patterns_act
from nope_interp.interventions.heads import is_causal
from nope_interp.interventions.patched_runs import HOOKS, Runs, fastest, name_of
from nope_interp.models.losses import next_log_probabilities
from nope_interp.sites import layer_ranges

# How little the logit differences may lie apart, in nats, and in steps of its precision at 1.
# Of fewer a patch brings back all or nothing, as it happens to round.
_LEAST, _STEPS = 1e-4, 16


@dataclass(frozen=True)
class Patched:
    """What patching recovers, and how much of the map is made.

    Attributes:
        recovered: share of the logit difference that a patch brings back, by layer and column:
            position of `resid_pre`, else head. 0 is the corrupted run and 1 the clean one; cells
            that cannot differ, and those that are still to be made, are 0.
        clean: the clean run's logit difference: of `answer` less `other`, behind the last token.
        corrupted: that of the corrupted run.
        answer: the clean run's likeliest next token.
        other: the corrupted run's likeliest one that is not the answer.
        n_done: cells that are made.
        n_cells: cells that are to be made.
    """

    recovered: Float[Tensor, "layer column"] = field(repr=False)
    clean: float
    corrupted: float
    answer: int
    other: int
    n_done: int
    n_cells: int


@torch.no_grad()
def patch_in_steps(
    model: HookedModel,
    clean: Int[Tensor, "1 pos"],
    corrupted: Int[Tensor, "1 other"],
    at: str,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Patched]:
    """Patch every cell of a map, some columns in each step.

    Args:
        model: a HookedTransformer or a bridge.
        clean: the prompt whose activations are put in.
        corrupted: the prompt into whose run they are put.
        at: "resid_pre", "head_out" or "pattern".
        turn: what is to be open while the model runs.

    Yields:
        The map so far; the last one is whole.

    Raises:
        UserError: for an unknown place, prompts of other lengths or that are the same, two prompts
            that the logit difference does not tell apart, of heads for a model that has none in
            some layers, and of patterns for one that goes on without them.
    """
    if at not in HOOKS:
        raise unknown_name("place to patch", at, HOOKS)
    _check(clean, corrupted)
    with turn():
        if at != "resid_pre" and (without := layers_without_attention(model)):
            raise UserError(
                f"the model has no heads to patch in {layer_ranges(without)}: patch the residual "
                "stream (resid_pre)."
            )
        if at == "pattern":
            check_patterns_act(model)
        runs, of_clean = _two_runs(model, at, clean, corrupted)
        patched = fastest(runs)
    columns, n_layers = _columns(model, at, clean, corrupted), model.cfg.n_layers
    width = clean.shape[1] if at == "resid_pre" else model.cfg.n_heads
    recovered, n_cells = torch.zeros(n_layers, width), n_layers * len(columns)

    def so_far() -> Patched:
        n_done = n_cells - n_layers * len(columns)
        ends = of_clean, runs.corrupted
        return Patched(recovered.clone(), *ends, runs.answer, runs.other, n_done, n_cells)

    while columns:
        yield so_far()
        with turn():
            found = patched(columns)
        done, columns = columns[: found.shape[1]], columns[found.shape[1] :]
        recovered[:, done] = (found - runs.corrupted) / (of_clean - runs.corrupted)
    yield so_far()


def _check(clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 other"]) -> None:
    n, other = clean.shape[1], corrupted.shape[1]
    if n != other:
        raise UserError(f"the prompts have {n} and {other} tokens: give two of one length.")
    if torch.equal(clean, corrupted):
        raise UserError("the two prompts are the same: change a token of one of them.")


def _two_runs(
    model: HookedModel, at: str, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> tuple[Runs, float]:
    """Both runs, and the logit difference of the clean one."""
    device = next(model.parameters()).device
    seen, of_clean = _run(model, clean.to(device), at)
    streams, of_corrupted = _run(model, corrupted.to(device), "resid_pre")
    answer = int(of_clean.argmax())
    other = next(id for id in of_corrupted.topk(2).indices.tolist() if id != answer)
    ends = [float(one[answer] - one[other]) for one in (of_clean, of_corrupted)]
    _check_apart(abs(ends[0] - ends[1]), streams[0].dtype)
    return Runs(model, at, corrupted.to(device), seen, streams, answer, other, ends[1]), ends[0]


def _check_apart(apart: float, dtype: torch.dtype) -> None:
    """Raise UserError where a share of so little would be of rounding."""
    remedy = "choose prompts whose next tokens differ"
    if apart < _LEAST:
        raise UserError(f"both prompts have the same logit difference: {remedy}.")
    if apart < _STEPS * torch.finfo(dtype).eps:
        raise UserError(
            "both prompts have the same logit difference, but for the rounding of "
            f"{str(dtype).removeprefix('torch.')}: {remedy}, or load the model in float32."
        )


def _run(
    model: HookedModel, ids: Int[Tensor, "1 pos"], at: str
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
    model: HookedModel, at: str, clean: Int[Tensor, "1 pos"], corrupted: Int[Tensor, "1 pos"]
) -> list[int]:
    """The columns that are run: all heads, or positions from the first that differs on."""
    if at != "resid_pre":
        return list(range(model.cfg.n_heads))
    first = int((clean != corrupted)[0].int().argmax()) if is_causal(model) else 0
    return list(range(first, clean.shape[1]))
