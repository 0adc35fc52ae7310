"""The same model with its positions taken away, and given back bit for bit.

    with ablate_positions(model, "rotary:none") as ablation:
        stream(model, tokens, listeners)
        ablation.verify()

Works on our HookedTransformer and on bridges of the families in `layers.FAMILIES`. What each
condition does stands in `conditions`. Whatever the encoding, the causal mask stays:
that is the condition of a model without positional encodings, but a model trained with them was
never trained for it, so measure its loss beside.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from nope_interp.errors import UserError
from nope_interp.fields import checked_seed, is_whole
from nope_interp.hooked_model import HookedModel, check_hooked, key_heads
from nope_interp.positions.changes import Change
from nope_interp.positions.conditions import Condition, parse_condition
from nope_interp.positions.hooks import bias_changes, embedding_changes, window_changes
from nope_interp.positions.layers import LayerPositions, edge_notes, layer_positions
from nope_interp.positions.rotation import rotary_changes, turning_frequencies
from nope_interp.sites import layer_ranges

Layers = list[LayerPositions]

_ADDED = ("learned", "sinusoidal")

# An encoding, or "window" where windows are lifted, and a layer.
Taken = set[tuple[str, int]]
# What is ablated at present, of each model.
_taken: WeakKeyDictionary[HookedModel, Taken] = WeakKeyDictionary()


def ablate_positions(
    model: HookedModel,
    how: str = "all",
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    lift_window: bool = False,
    seed: int = 0,
) -> "PositionAblation":
    """Take positions away from `model`, from now until `restore()` or the end of a `with` block.

    Args:
        model: a HookedTransformer or a bridge from `load_pretrained`.
        how: `"<encoding>:<condition>"` as in `conditions`, `none` where the condition is
            left out; "all" takes away every encoding that the model has.
        layers: only these; all of them where None. Not for encodings added to the embedding.
        heads: only these heads of the chosen layers. Where heads share keys (grouped-query
            attention) a rotation is ablated for whole groups only.
        lift_window: sliding-window layers, among the chosen ones, see all earlier tokens.
        seed: of the permutation of `shuffled`.

    Returns:
        What is ablated at present: `verify()` it after the model ran.

    Raises:
        UserError: for a malformed `how`, an encoding or window that the model (or a chosen layer)
            does not have, layers or heads out of range or not separable, a family whose positions
            are not known, what is no seed, and an encoding that is ablated in one of these layers
            already.
    """
    if not isinstance(how, str):
        raise UserError(f"positions to ablate are {how!r}: name them, such as 'rotary:none'.")
    check_hooked(model)
    condition, seed = parse_condition(how), checked_seed(seed)
    found = layer_positions(model)
    some_layers = _chosen("layer", layers, len(found))
    some_heads = _chosen("head", heads, model.cfg.n_heads)
    chosen = [found[layer] for layer in some_layers or range(len(found))]
    targets = _targets(condition, found, chosen, restricted=layers is not None)
    _check_keys(found, targets)
    if some_heads is not None and any(target.encoding == "rotary" for target in targets):
        _check_groups(model, targets, some_heads)
    if any(target.encoding in _ADDED for target in targets) and not (layers is heads is None):
        raise UserError(
            f"{targets[0].encoding} positions are added to the embedding, for all layers and heads "
            "at once: leave layers and heads out."
        )
    windowed = [layer for layer in chosen if layer.reach is not None] if lift_window else []
    if lift_window and not windowed:
        raise UserError("no chosen layer has a sliding window: leave lift_window out.")
    if lift_window and heads is not None:
        raise UserError("heads share one mask: lift the window without choosing heads.")
    taken = {(target.encoding, target.layer) for target in targets}
    taken |= {("window", layer.layer) for layer in windowed}
    _check_free(model, taken)
    changes = chain(
        _encoding_changes(model, condition, targets, some_heads, seed),
        *(window_changes(model, layer) for layer in windowed),
    )
    left = [layer for layer in found if layer.reach is not None and layer not in windowed]
    left += [layer for layer in found if layer.encoding == "recurrence"]
    added = any(target.encoding in _ADDED for target in targets)
    first = 0 if added else min(at.layer for at in (*targets, *windowed))
    idle = not windowed and all(_keeps_all(condition, target) for target in targets)
    return PositionAblation(str(condition), model, first, taken, changes, left, idle)


class PositionAblation(AbstractContextManager["PositionAblation", None]):
    """Positions that are taken away at present; made by `ablate_positions`.

    Attributes:
        name: encoding and condition in canonical form, such as "rotary:none".
    """

    def __init__(
        self,
        name: str,
        model: HookedModel,
        first: int,
        taken: Taken,
        changes: Iterable[Change],
        left: Layers,
        idle: bool,
    ) -> None:
        self.name = name
        self._left, self._idle = left, idle
        self._active, self._ran, self._reached = True, False, False
        self._fired: dict[str, int] = {}
        every = _taken.setdefault(model, set())
        with ExitStack() as undo:
            every.update(taken)
            undo.callback(every.difference_update, taken)
            undo.callback(model.blocks[0].register_forward_pre_hook(self._note_pass).remove)
            reached = model.blocks[first].attn
            undo.callback(reached.register_forward_pre_hook(self._note_reach).remove)
            for change in changes:
                self._attach(change, undo)
            self._undo = undo.pop_all()

    def __enter__(self) -> "PositionAblation":
        if not self._active:
            raise UserError(f"the ablation {self.name!r} is over: call ablate_positions again.")
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Give the model its positions back; nothing happens the second time."""
        self._active = False
        self._undo.close()

    @property
    def ran(self) -> bool:
        """Whether the model ran under it, however far."""
        return self._ran

    def verify(self) -> None:
        """Make sure that nothing was missed.

        Raises:
            UserError: where the model never ran, or where it ran, up to the first layer that this
                ablation acts in, and a part of it was never reached.
        """
        silent = [name for name, count in self._fired.items() if count == 0]
        if not self._ran and not any(self._fired.values()):
            raise UserError(
                f"the ablation {self.name!r} was never at work: run this model while it lasts."
            )
        if self._reached and silent:
            raise UserError(
                f"the ablation {self.name!r} never reached {silent[0]}"
                f"{f' and {len(silent) - 1} more sites' if len(silent) > 1 else ''}: "
                "positions are not gone, so do not report these numbers."
            )

    def caveats(self, seq_len: int) -> tuple[str, ...]:
        """What still shows position in sequences of `seq_len` tokens, in sentences."""
        recurrent = [layer.layer for layer in self._left if layer.encoding == "recurrence"]
        still = f"The recurrence in {layer_ranges(recurrent)} still tells order."
        idle = f"{self.name} keeps every frequency that turns: no position is taken away."
        return (
            *([idle] if self._idle else []),
            *edge_notes(self._left, seq_len),
            *([still] if recurrent else []),
        )

    def _note_pass(self, module: nn.Module, args: object) -> None:
        self._ran = True

    def _note_reach(self, module: nn.Module, args: object) -> None:
        # A layer may be run alone.
        self._ran = self._reached = True

    def _attach(self, change: Change, undo: ExitStack) -> None:
        if not change.gives_back:
            self._fired[change.name] = 0
        if change.undo is not None:
            undo.callback(change.undo)

        of_output = change.what == "output"

        # What comes after the arguments: a module's output, or its keyword arguments.
        def on_call(module: nn.Module, args: Any, further: Any) -> Any:
            changed = change.apply(further) if of_output else change.apply(args, further)
            if not change.gives_back:
                self._fired[change.name] += 1
            return changed

        if of_output:
            handle = change.module.register_forward_hook(on_call)
        else:
            handle = change.module.register_forward_pre_hook(on_call, with_kwargs=True)
        undo.callback(handle.remove)


def _encoding_changes(
    model: HookedModel, condition: Condition, targets: Layers, heads: list[int] | None, seed: int
) -> Iterator[Change]:
    if targets[0].encoding in _ADDED:
        yield from embedding_changes(model, condition, seed)
        return
    for layer in targets:
        if layer.encoding == "rotary":
            # A band that does not fit is refused now, not in the first forward pass.
            turning_frequencies(condition, (layer.rotary_dims or 0) // 2)
            yield from rotary_changes(model, layer, condition, heads, seed)
        else:
            yield from bias_changes(model, layer, condition, heads)


def _keeps_all(condition: Condition, layer: LayerPositions) -> bool:
    """Whether a condition changes nothing in a layer: all frequencies that turn still do."""
    if layer.encoding != "rotary" or condition.name == "shuffled":
        return False
    turning = turning_frequencies(condition, (layer.rotary_dims or 0) // 2)
    return bool(turning[: (layer.turning or 0) // 2].all())


def _chosen(what: str, given: Any, n: int) -> list[int] | None:
    """The layers or heads that are given, of `n`, or None; raises UserError for anything else."""
    if given is None:
        return None
    listed = given.tolist() if hasattr(given, "tolist") else given
    several: list[Any] = list(listed) if isinstance(listed, Iterable) else [None]
    if not all(map(is_whole, several)):
        raise UserError(f"{what}s are {given!r}: give whole numbers such as [0, 2, 5].")
    numbers = [int(one) for one in several]
    if not numbers:
        raise UserError(f"no {what}s are chosen: give at least one, or leave {what}s out.")
    for number in sorted(set(numbers) - set(range(n))):
        raise UserError(f"the model has no {what} {number}: choose from {what}s 0 to {n - 1}.")
    return sorted(set(numbers))


def _targets(
    condition: Condition, found: tuple[LayerPositions, ...], chosen: Layers, restricted: bool
) -> Layers:
    """The chosen layers that carry the encoding in question."""
    has = sorted({layer.encoding for layer in found} - {"none", "recurrence"})
    if not has:
        raise UserError("the model has no positional encoding: there is nothing to take away.")
    if condition.encoding not in (*has, "all"):
        raise UserError(
            f"the model has no {condition.encoding} positions: give {' or '.join(has)}, which it "
            "has."
        )
    wanted = has if condition.encoding == "all" else [condition.encoding]
    targets = [layer for layer in chosen if layer.encoding in wanted]
    without = [layer.layer for layer in chosen if layer not in targets]
    if restricted and without:
        raise UserError(
            f"{layer_ranges(without)} of the model has no {' or '.join(wanted)} positions: "
            "leave it out."
        )
    return targets


def _check_keys(layers: Iterable[LayerPositions], targets: Layers) -> None:
    """Raise UserError where keys would be rotated, and not the queries that meet them."""
    chosen = {target.layer for target in targets}
    for layer in layers:
        both = {layer.layer, layer.keys_of}
        if layer.keys_of is not None and len(both & chosen) == 1:
            raise UserError(
                f"layer {layer.layer} reads the keys of layer {layer.keys_of}: choose both layers, "
                "or neither."
            )


def _check_groups(model: HookedModel, targets: Layers, heads: list[int]) -> None:
    """Raise UserError where some heads are chosen of those that share their keys, and some not."""
    own = [n for target in targets if (n := key_heads(model, target.layer))]
    size = model.cfg.n_heads // min(own)
    for head in heads:
        group = range(head // size * size, head // size * size + size)
        if not set(group) <= set(heads):
            raise UserError(
                f"head {head} shares its keys with heads {group[0]} to {group[-1]}: "
                "ablate all of them, or none."
            )


def _check_free(model: HookedModel, taken: Taken) -> None:
    both = _taken.get(model, set()) & taken
    if both:
        encoding, layer = min(both)
        raise UserError(
            f"an ablation of this model's {encoding} is active already in layer {layer}: restore "
            "it first."
        )
