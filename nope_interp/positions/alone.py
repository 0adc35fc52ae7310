"""Each layer's attention once more on what it just read, with that layer alone ablated.

What comes before a layer does not change while it alone is ablated. So one pass through the intact
model shows what every layer's attention would do without its own positions, for the price of that
attention.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from nope_interp.hooked_model import HookedModel
from nope_interp.streams import Listener

Ablated = Callable[[HookedModel], AbstractContextManager[Any]]


class AloneAblated:
    """Tells the listeners of a pass whether they hear a layer as it is, or as it would be.

    Args:
        model: a HookedTransformer or a bridge, intact.
        conditions: by layer, what it is under the second time.
    """

    def __init__(self, model: HookedModel, conditions: Mapping[int, Ablated]) -> None:
        self._model, self._conditions = model, conditions
        self._ablated = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open, attention of the layers runs twice; the model goes on with the first.

        Raises UserError, while the model runs, as the conditions do.
        """
        with ExitStack() as undo:
            for layer, condition in self._conditions.items():
                again = partial(self._again, condition)
                attention = self._model.blocks[layer].attn
                undo.callback(attention.register_forward_hook(again, with_kwargs=True).remove)
            yield

    def listener(self, intact: Listener, ablated: Listener | None = None) -> Listener:
        """A listener for both.

        Args:
            intact: hears the layer as it is.
            ablated: hears it ablated; None for nobody.

        Returns:
            What hands activations to the one or the other.
        """

        def hear(activations: Tensor) -> None:
            chosen = ablated if self._ablated else intact
            if chosen is not None:
                chosen(activations)

        return hear

    def _again(
        self, condition: Ablated, attention: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if self._ablated:
            return
        self._ablated = True
        try:
            with condition(self._model):
                attention(*args, **kwargs)
        finally:
            self._ablated = False
