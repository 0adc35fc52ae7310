"""The metrics of heads, and the table of rules that give labels by them. Needs no torch.

The thresholds are our choices and no paper's: they say how strong a habit must be to be worth a
name.
"""

from dataclasses import dataclass
from typing import Final

# The share of false labels, among the labels given, that is put up with.
FALSE_DISCOVERY_RATE = 0.05

# The metrics, by what each kind of tokens is read for.
FEEDS = {
    "text": ("diagonal", "previous_token", "first_token", "local", "uniform", "entropy"),
    "repeated": ("induction", "duplicate_token"),
    "scores": ("positional_share", "token_share"),
    "copies": ("repeated_token",),
}
METRICS = tuple(metric for metrics in FEEDS.values() for metric in metrics)

NONE = "none"
SHUFFLED_OFFSETS = "shuffled offsets"
SHUFFLED_TOKENS = "shuffled key tokens"
RANDOM_INIT: Final = "random-init"
NULLS = (SHUFFLED_OFFSETS, SHUFFLED_TOKENS, RANDOM_INIT)


@dataclass(frozen=True)
class Rule:
    """A label is given where `metric` is above `threshold` and beats all the `nulls`.

    The threshold, above 0, is tested too, by a one-sided t-test over sequences. Of `induction` and
    `duplicate_token` what natural text has at the same offset, above chance, is left out first.

    * shuffled offsets: each query's weights permuted over the keys it sees. The expected score is
      then the chance level exactly, so no shuffling is done: a one-sided t-test over sequences.
    * shuffled key tokens: the same, for tokens permuted over the keys; the expected share is 0.
    * random-init: the same architecture untrained. The score is compared with those of all heads of
      the random-init model, by a one-sided t-test for one more draw from their distribution.

    A rule without nulls is tested against its threshold alone.
    """

    label: str
    metric: str
    threshold: float
    nulls: tuple[str, ...]
    says: str

    @property
    def condition(self) -> str:
        """When the rule holds, as text."""
        return f"{self.metric} > {self.threshold}"


_OFFSETS = (SHUFFLED_OFFSETS, RANDOM_INIT)


# The first rule that holds gives the label: the specific stand before the general. A head that
# matches equal tokens attends to itself too, and one that looks one back is local, too.
RULES = (
    Rule(
        "induction",
        "induction",
        0.4,
        _OFFSETS,
        "on repeated random tokens it attends to the token after the earlier copy of its own "
        "token. What it puts as far back in text does not count.",
    ),
    Rule(
        "duplicate-token",
        "duplicate_token",
        0.3,
        _OFFSETS,
        "on repeated random tokens it attends to the earlier copy of its own token. Half is the "
        "most for a head that matches tokens, since it matches itself as well. What it puts as far "
        "back in text does not count.",
    ),
    Rule("previous-token", "previous_token", 0.4, _OFFSETS, "it attends to the token before"),
    Rule("diagonal", "diagonal", 0.4, _OFFSETS, "it attends to its own token"),
    Rule(
        "local",
        "local",
        0.6,
        _OFFSETS,
        "it attends to its own token and the seven before",
    ),
    Rule(
        "first-token",
        "first_token",
        0.5,
        _OFFSETS,
        "half its attention or more rests on the first token",
    ),
    Rule(
        "uniform",
        "uniform",
        0.8,
        (),
        "it spreads over all tokens alike: at most a fifth of its weight would have to move. This "
        "claims the absence of a preference, and neither null can refute it: shuffling keeps it, "
        "and untrained heads are like it. So the test is against the bound itself.",
    ),
    Rule(
        "content",
        "token_share",
        0.25,
        (SHUFFLED_TOKENS, RANDOM_INIT),
        "which token the key is, wherever it stands, explains a quarter or more of its scores' "
        "variance. It rises where positions no longer vary scores",
    ),
)


LABELS = (*(rule.label for rule in RULES), NONE)
