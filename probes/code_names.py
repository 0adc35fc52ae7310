"""The position codes that can be taken away. Needs no torch."""

COUNTING = "counting"
SIMILARITY = "similarity"
CODES = ("variance", SIMILARITY, COUNTING, "positional vectors")

# What is moved from one position to another. The mean residual is the sum of what t and 1/m explain
# of it, a smooth trend, and of what is left, positional vectors.
MEAN_RESIDUAL, SMOOTH, VARIANCE = "mean residual", "smooth trend", "variance"
HALVES = (SMOOTH, "positional vectors")
JUDGED = (MEAN_RESIDUAL, *HALVES, VARIANCE)


def overlap(code: str, other: str) -> bool:
    """Whether to move one of these codes moves what the other is made of, too."""
    if SIMILARITY in (code, other):  # activations resemble one another by all that they tell
        return True
    return code == other or {code, other} in ({MEAN_RESIDUAL, half} for half in HALVES)
