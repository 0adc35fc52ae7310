"""Activations changed while a model runs, and the model as it was afterwards.

    with intervene(model, {"blocks.2.hook_resid_post": change}, slice(1, None)) as intervention:
        losses = sequence_losses(model, tokens)
        intervention.verify()

Works on our HookedTransformer and on bridges, around anything that runs them: `stream` and its
listeners see the changed activations. The changes sit on torch modules and not in TransformerLens's
lists of hooks, so that contexts of hooks inside, and `reset_hooks`, leave them alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from nope_interp.errors import UserError, shown
from nope_interp.hooked_model import HookedModel, check_hooked
from nope_interp.query_blocks import all_queries_at_once
from nope_interp.sites import missing_hook
from nope_interp.streams import is_finite

Function = Callable[[Tensor], Tensor]
# Positions of sequences: all from one on, say, or a list of them.
Where = slice | Int[Tensor, " chosen"]


class Running:
    """What is changed at present, and whether it was reached; made by `intervene`."""

    def __init__(self, names: list[str]) -> None:
        self._fired = dict.fromkeys(names, 0)

    def verify(self) -> None:
        """Make sure that nothing was missed.

        Raises:
            UserError: where one of the hook points never fired: this model did not run, or not
                through it.
        """
        silent = [name for name, count in self._fired.items() if count == 0]
        if silent:
            raise UserError(
                f"the intervention never reached {silent[0]}"
                f"{f' and {len(silent) - 1} more sites' if len(silent) > 1 else ''}: "
                "the model ran unchanged there, so do not report these numbers."
            )


@contextmanager
def intervene(
    model: HookedModel,
    functions: Mapping[str, Function],
    positions: Where | Mapping[str, Where] = slice(None),
) -> Iterator[Running]:
    """A context in which activations pass through functions on their way.

    Args:
        model: a HookedTransformer or a TransformerBridge.
        functions: one for each hook name. It gets the hook point's activations at `positions`, at
            residual sites `[batch pos d_model]`, and gives tensors of the same shape back; it must
            not write into what it gets. They return in the activations' precision and on their
            device.
        positions: activations elsewhere stay as they are, bit for bit; the same at all hook
            points, or by their names. For hook points whose second axis is no position, such as
            `attn.hook_pattern`, leave it at all.

    Yields:
        What says, by `verify()`, whether every hook point was reached.

    Raises:
        UserError: for an unknown hook name; when the model runs, a function's own; and then, with
            the name of the hook point: for a function that gives another shape, NaN or infinite
            values, for any other ValueError of a function, and for activations that lack the
            positions, as when tokens are decoded one by one.
    """
    check_hooked(model)
    for name in functions:
        if name not in model.hook_dict:
            raise missing_hook(name, model.hook_dict)
    intervention = Running(list(functions))
    where = positions if isinstance(positions, Mapping) else dict.fromkeys(functions, positions)
    for name in functions:
        if name not in where:
            raise UserError(
                f"no positions are given for {name}: give some, or slice(None) for all."
            )
        if isinstance(where[name], str | int | None) or getattr(where[name], "ndim", 1) == 0:
            raise UserError(f"positions are {shown(where[name])}: give a list or a slice.")

    def on_output(module: nn.Module, args: object, x: Tensor, name: str) -> Tensor:
        intervention._fired[name] += 1
        return changed_at(x, functions[name], name, where[name])

    with ExitStack() as stack:
        # What a block's attention puts out is one of its hooks, too, by another name.
        if any("attn" in name for name in functions):
            stack.enter_context(all_queries_at_once(model))
        for name in functions:
            point = model.hook_dict[name]
            hook = partial(on_output, name=name)
            stack.callback(point.register_forward_hook(hook).remove)
            stack.enter_context(firing(point))
        yield intervention


@contextmanager
def firing(point: HookPoint) -> Iterator[None]:
    """While it is open, a hook point fires, whoever listens to it.

    The blocks of Granite's bridges pass by hook points on which TransformerLens has no hook. Its
    own is permanent here, so that `reset_hooks` leaves it.

    Args:
        point: of a model.

    Yields:
        Nothing.
    """
    handle = point.add_hook(_look, is_permanent=True)
    try:
        yield
    finally:
        handle.hook.remove()
        with suppress(ValueError):  # permanent hooks were reset, too
            point.fwd_hooks.remove(handle)


def _look(activations: Tensor, hook: HookPoint) -> None:
    """Changes nothing."""


def _ends_beyond(positions: Where, n: int) -> bool:
    """Whether a slice names positions that n of them lack: it would be cut without a word."""
    if not isinstance(positions, slice):
        return False
    if positions.step is not None and positions.step < 1:
        raise UserError(f"positions are {positions}: give a step of 1 or more.")
    ends = (positions.start, positions.stop)
    return any(end is not None and not -n <= end <= n for end in ends)


def changed_at(x: Tensor, function: Function, name: str, positions: Where) -> Tensor:
    """Activations with a function applied at some positions, checked as `intervene` says.

    Args:
        x: `[batch pos ...]`.
        function: of the activations at these positions.
        name: of the hook point, for errors.
        positions: elsewhere activations stay.

    Returns:
        As `x`.

    Raises:
        UserError: as `intervene` says of a running model.
    """
    try:
        beyond = _ends_beyond(positions, x.shape[1])
        given = x[:, positions]
    except IndexError:
        beyond, given = True, x[:, :0]
    if not given.shape[1] or beyond:
        raise UserError(
            f"the activations at {name} have {x.shape[1]} positions and lack some of those to "
            "change: give longer sequences, all tokens at once."
        )
    try:
        changed = function(given)
    except UserError:  # it names its culprit
        raise
    except ValueError as error:
        raise UserError(f"the function at {name}: {error}") from error
    if not isinstance(changed, Tensor) or changed.shape != given.shape:
        got = f"shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else repr(changed)
        raise UserError(
            f"the function at {name} gave {got} for activations of shape {tuple(given.shape)}: "
            "give back the same shape."
        )
    if not is_finite(changed, name):
        raise UserError(f"the function at {name} gave NaN or infinite values.")
    if isinstance(positions, slice) and positions.stop is None and positions.step is None:
        kept = x.shape[1] - given.shape[1]
        # What libraries lay out anew they take as they made it: in one piece.
        return (
            torch.cat((x[:, :kept], changed.to(x)), dim=1) if kept else changed.to(x).contiguous()
        )
    every = x.clone()
    every[:, positions] = changed.to(x)
    return every
