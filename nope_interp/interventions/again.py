"""Each layer's attention once more on what it just read, under another condition.

What comes before a layer does not change while it alone is changed. So one pass through the model
as it is shows what every layer's attention would do with that layer alone ablated, or with other
queries, for the price of that attention.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel
from nope_interp.streams import Listener

Condition = Callable[[HookedModel], AbstractContextManager[Any]]

_NOBODY: Mapping[str, Listener] = {}


class AttentionAgain:
    """Tells the listeners of a pass whether they hear a layer as it is, or as it would be.

    Args:
        model: a HookedTransformer or a bridge.
        conditions: by layer and by their names, what its attention runs under once more each.
    """

    def __init__(
        self, model: HookedModel, conditions: Mapping[int, Mapping[str, Condition]]
    ) -> None:
        self._model, self._conditions = model, conditions
        self._now: str | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open, attention of the layers runs again; the model goes on with the first.

        A pass that ends inside the last layer's attention does not run that again.

        Raises UserError, while the model runs, as the conditions do.
        """
        with ExitStack() as undo:
            for layer, conditions in self._conditions.items():
                again = partial(self._again, conditions)
                attention = self._model.blocks[layer].attn
                undo.callback(attention.register_forward_hook(again, with_kwargs=True).remove)
            yield

    def listener(self, as_it_is: Listener, under: Mapping[str, Listener] = _NOBODY) -> Listener:
        """A listener for all.

        Args:
            as_it_is: hears the layer as it is.
            under: hear it under the conditions of these names; nobody hears it under others.

        Returns:
            What hands activations to the one or the other.
        """

        def hear(activations: Tensor) -> None:
            if self._now is None:
                as_it_is(activations)
            elif self._now in under:
                under[self._now](activations)

        return hear

    def _again(
        self,
        conditions: Mapping[str, Condition],
        attention: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
    ) -> None:
        if self._now is not None:
            return
        try:
            for name, condition in conditions.items():
                self._now = name
                with condition(self._model):
                    attention(*args, **kwargs)
        finally:
            self._now = None
