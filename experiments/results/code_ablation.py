"""How the tidy table names what a code ablation did."""

from experiments.results.measurements import INTACT

SIZE_MATCHED = "size-matched"
RANDOM_SUBSPACE = "random subspace"
RANDOM_RESCALING = "random rescaling"
# Two controls of a condition, and how much more it costs than each, in nats.
OVER_CONTROL = {SIZE_MATCHED: "over_size_matched", RANDOM_RESCALING: "over_rescaled"}
NONE_KEPT = "without all four codes"
INTACT_CONDITION = (INTACT, "")
SIDE_EFFECT = "side effect"
# The layer of rows about the whole stream, and their site.
EVERYWHERE, STREAM = -1, "resid_post"
# By how many positions the mean residual is shifted.
OFFSET = 8
SHIFTED = f"mean residual of {OFFSET} positions on"
PROBE = "shift"
MIXED = "mixed"


def without(code: str) -> str:
    """The name of the condition in which this code is taken away."""
    return f"without {code}"


def only(code: str) -> str:
    """The name of the condition in which, of the four codes, this one alone is kept."""
    return f"only {code}"
