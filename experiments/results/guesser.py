"""What a model is judged by, beside a guesser who does not know the order of earlier tokens."""

from dataclasses import dataclass

from experiments.results.intervals import Interval
from experiments.results.percent import percent

# The unit of a score that is a share, 0 to 1.
OF_ANSWERS = "of answers"


def guesser_words(tokens: str) -> str:
    """Who guesses without knowing the order of earlier tokens, as sentences name it.

    Args:
        tokens: as the tidy table has them. On text the token before is known.

    Returns:
        Words that fit within a sentence.
    """
    return "a bigram guesser" if tokens == "text" else "an order-blind guesser"


@dataclass(frozen=True)
class Score:
    """How well a model does what it was judged on, and what a guess without order does.

    Attributes:
        name: what is scored, "loss".
        unit: of the numbers, "nats per token".
        value: value, low, high.
        chance: the same of the best guesser who knows no order.
        guesser: what that guesser is called.
    """

    name: str
    unit: str
    value: Interval
    chance: float
    guesser: str = guesser_words("task")

    @property
    def sentence(self) -> str:
        """The score with its interval, against the guesser's."""
        value, low, high, chance = self._told
        own = f"Its {self.name} is {value} [{low}, {high}] {self.unit}"
        return f"{own}; {self.guesser}'s is {chance}."

    @property
    def brief(self) -> str:
        """The score against the guesser's, for a line of 50 characters."""
        value, *_, chance = self._told
        unit = "" if self.unit == OF_ANSWERS else " nats"
        guesser = self.guesser.partition(" ")[2]
        return f"{self.name} {value}{unit}, {guesser} {chance}."

    @property
    def _told(self) -> list[str]:
        told = percent if self.unit == OF_ANSWERS else "{:#.3g}".format
        return [told(of) for of in (*self.value, self.chance)]
