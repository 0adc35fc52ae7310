"""What position codes are called. Needs no torch."""

VARIANCE, SIMILARITY, MEAN_RESIDUAL = "variance", "similarity", "mean residual"
# The mean residual is the sum of what t and 1/m explain of it, and of what is left.
HALVES = SMOOTH, IRREGULAR = "smooth trend", "irregular part"
# A smooth trend that 1/m predicts, and the probe that reads 1/m.
COUNTING = "counting"

CODES = (VARIANCE, SIMILARITY, *HALVES)  # taken away
JUDGED = (MEAN_RESIDUAL, *HALVES, VARIANCE)  # moved from one position to another
