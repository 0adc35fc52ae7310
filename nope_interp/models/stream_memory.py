"""What reached a block when some tokens were last run, so that it need not be computed again."""

import torch
from torch import Tensor

from nope_interp.shapes import Tokens


class StreamMemory:
    """What reached a block, by the tokens that it came of.

    Args:
        layer: which block.
    """

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self._kept: dict[tuple[bytes, torch.Size], Tensor] = {}

    def of(self, tokens: Tokens) -> Tensor | None:
        """`[batch pos d_model]`; None where these tokens did not come before."""
        return self._kept.get(self._key(tokens))

    def keep(self, tokens: Tokens, stream: Tensor) -> None:
        """Remember what reached the block."""
        self._kept[self._key(tokens)] = stream

    @staticmethod
    def _key(tokens: Tokens) -> tuple[bytes, torch.Size]:
        return tokens.cpu().numpy().tobytes(), tokens.shape
