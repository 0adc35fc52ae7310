"""A language model written by hand, the text that it reads, and the truth about its codes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from nope_interp.constructions.planted.parts import BEGIN_TOKEN
from nope_interp.constructions.planted.task import NOT_USED, USED, Truth, Weights, truth
from nope_interp.models.transformer import HookedTransformer
from nope_interp.shapes import Sequences

# So many windows of text that each of its splits holds whole ones.
N_WINDOWS = 600


@dataclass(frozen=True)
class PlantedLanguage:
    """A language model, the text that it reads, and the truth about its codes.

    Attributes:
        kind: its name in `LANGUAGES`.
        model: in single precision, for sequences of `N_CTX` tokens.
        truth: of each code that interchange judges on text, whether the model uses it. Of the mean
            residual it does where it uses a half of it.
        windows: by a seed, `N_WINDOWS` windows of N_CTX - 1 tokens, each of which tells what comes
            next by itself.
        reads: the weights that read a used code: without them it is not used.
        writes: the weights that write an unread code: without them it is not there.
    """

    kind: str
    model: HookedTransformer = field(repr=False)
    truth: Truth
    windows: Callable[[int], Sequences] = field(repr=False)
    reads: Mapping[str, Weights] = field(default_factory=dict, repr=False)
    writes: Mapping[str, Weights] = field(default_factory=dict, repr=False)

    @property
    def begin_token(self) -> int:
        """What every sequence starts with."""
        return BEGIN_TOKEN

    def text(self, seed: int) -> Int[Tensor, " token"]:
        """All windows, one after the other.

        Args:
            seed: of what they hold.

        Returns:
            Its tokens in reading order, of which sequences of `N_CTX` tokens are to be drawn behind
            the begin token.
        """
        return self.windows(seed).flatten()


def truth_on_text(**used: str) -> Truth:
    """The truth about all codes: those named, `_` for a space, have these words, others are not
    used; the mean residual is where a half of it is."""
    halves = USED if used.keys() & {"smooth_trend", "irregular_part"} else NOT_USED
    return {"mean residual": halves, **truth(**used)}
