"""How the tidy table names what interchange did on text, and what it says. Needs no torch."""

import pandas as pd

PROBE = "interchange on text"
# What is lost per token, by the model and by whom it is held against.
NATS, NATS_AT_ENDS = "nats", "nats at ends"
BIGRAM = "bigram"
PERMUTED = "earlier tokens permuted"
ABOVE_BIGRAM, LOST_BY_PERMUTATION = "above_guesser", "lost_by_shuffle"


def without_order_on_text(measurements: pd.DataFrame) -> str | None:
    """Why nothing is said of the codes of a language model, where it has not learned order.

    Args:
        measurements: the tidy table with the rows of `text_order_rows`.

    Returns:
        A sentence; None where the model surely beats the bigram guesser, and surely loses where the
        earlier tokens are permuted and the last one is kept.
    """
    rows = measurements[measurements["probe"] == PROBE].set_index(["metric", "control"])
    gates = [(ABOVE_BIGRAM, ""), (LOST_BY_PERMUTATION, "")]
    if (rows["ci_low"].loc[gates] > 0).all():
        return None
    told = [(NATS, ""), (NATS, BIGRAM), (LOST_BY_PERMUTATION, "")]
    own, bigram, lost = rows["value"].loc[told].tolist()
    return (
        f"the model has not learned order: it loses {own:.3g} nats per token, a bigram guesser "
        f"{bigram:.3g}. Permuting earlier tokens adds {lost:.2g}. Train it longer, or give another "
        "one."
    )
