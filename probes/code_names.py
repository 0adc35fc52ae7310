"""The position codes that can be taken away. Needs no torch."""

COUNTING = "counting"
SIMILARITY = "similarity"
CODES = ("variance", SIMILARITY, COUNTING, "positional vectors")

# What is moved from one position to another. The mean residual is the sum of what t and 1/m explain
# of it, a smooth trend, and of what is left, positional vectors.
MEAN_RESIDUAL, SMOOTH, VARIANCE = "mean residual", "smooth trend", "variance"
HALVES = (SMOOTH, "positional vectors")
JUDGED = (MEAN_RESIDUAL, *HALVES, VARIANCE)
