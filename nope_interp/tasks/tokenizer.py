"""One token per byte, and one more to begin a sequence with: no vocabulary to download."""

import torch
from jaxtyping import Int
from torch import Tensor


class ByteTokenizer:
    """Bytes of UTF-8 as ids 0..255; id 256 is the begin token.

    Example:
        >>> ByteTokenizer().decode(ByteTokenizer().encode("no position"))
        'no position'
    """

    begin_id = 256
    d_vocab = 257

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode("utf-8"))

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; the begin token shows as `<begin>`, broken UTF-8 as replacements."""
        if self.begin_id in ids:
            cut = ids.index(self.begin_id)
            return self.decode(ids[:cut]) + "<begin>" + self.decode(ids[cut + 1 :])
        return bytes(ids).decode("utf-8", errors="replace")

    def encode_corpus(self, text: str) -> Int[Tensor, " token"]:
        """The same as `encode`, as one long tensor."""
        return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8).long()
