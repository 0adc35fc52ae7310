"""Language modelling on text: Python's language reference, or a file of the user's."""

import hashlib
import lzma
from importlib.resources import files

import torch
from einops import rearrange
from torch import Generator

from nope_interp.errors import UserError
from nope_interp.shapes import Marked, Tokens
from nope_interp.tasks.sources import TextSource, UniformSource
from nope_interp.tasks.tokenizer import ByteTokenizer

# The rest of the text is never trained on: probes are fitted and scored there.
_TRAINING_SHARE = 0.7


def python_documentation() -> str:
    """The language reference that `help()` of Python 3.11.7 prints: 460 kB of English prose.

    It ships with this package, so that every Python reads, and trains on, the same text.

    Returns:
        Its topics, in the order of their names.
    """
    kept = files("nope_interp.tasks") / "documentation" / "python-3.11.7.txt.xz"
    return lzma.decompress(kept.read_bytes()).decode()


class TextTask:
    """Next-byte prediction. Half of each batch begins with the begin token, half does not.

    Both halves are needed: a model that always saw a begin token could not fairly be read
    without one, and the mechanisms differ (Kazemnejad et al. 2023, Theorem 1, needs it).
    """

    name = "text"

    def __init__(self, text: str | None = None) -> None:
        self.tokenizer = ByteTokenizer()
        tokens = self.tokenizer.encode_corpus(python_documentation() if text is None else text)
        cut = int(len(tokens) * _TRAINING_SHARE)
        self.training_tokens = tokens[:cut]
        self._probing_tokens = tokens[cut:]

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the text that is trained on."""
        return hashlib.sha256(self.training_tokens.byte().numpy().tobytes()).hexdigest()

    @property
    def d_vocab(self) -> int:
        """How many tokens there are."""
        return self.tokenizer.d_vocab

    def source(self) -> TextSource:
        """The text that training never sees."""
        return TextSource(self._probing_tokens, self.tokenizer.begin_id, self.training_tokens)

    def uniform_source(self) -> UniformSource:
        """All 256 bytes, equally likely."""
        return UniformSource(torch.arange(256), self.tokenizer.begin_id)

    def batch(self, n: int, seq_len: int, generator: Generator) -> tuple[Tokens, Marked]:
        """Windows at random positions, and which tokens are to be predicted (all but the first).

        The very last window of the text is never drawn: to train on that one byte more would give
        every text model other weights.

        Args:
            n: windows.
            seq_len: tokens in each, begin token included.
            generator: what chance is drawn from.

        Returns:
            Tokens and which of them are predicted, `[batch pos]` each.
        """
        last_start = len(self.training_tokens) - seq_len
        if last_start < 1:
            raise UserError(
                f"the text is too short to train on: {len(self.training_tokens)} tokens for "
                f"sequences of {seq_len}: give a longer text or shorter sequences."
            )
        starts = torch.randint(last_start, (n,), generator=generator)
        offsets = torch.arange(seq_len)
        tokens = self.training_tokens[rearrange(starts, "batch -> batch 1") + offsets]
        half = n // 2
        if n % 2:  # rounded up or down
            half += int(torch.randint(2, (), generator=generator))
        tokens[:half, 0] = self.tokenizer.begin_id
        predicted = torch.ones_like(tokens, dtype=torch.bool)
        predicted[:, 0] = False
        return tokens, predicted
