"""How the tidy table names what an interchange of position codes did, and what it says.

Needs no torch.
"""

import pandas as pd

from experiments.results.code_ablation import SIZE_MATCHED

PROBE = "interchange"
# Of moved questions, the share answered as at the position whose code they got, as at their own, or
# in another way.
TOWARDS, STAYS, NEITHER = "towards", "stays", "neither"
# The share that goes towards, less that of the size-matched control.
NET = "net"
# The share of answers that are right, and what a model's is held against before anything is said of
# its codes.
ACCURACY = "accuracy"
GUESSER = "order-free guesser"
SHUFFLED_QUESTION = "question shuffled"


def of_next(code: str) -> str:
    """The name of the condition in which asking positions have this code of the next one."""
    return f"{code} of the next position"


def without_order(measurements: pd.DataFrame) -> str | None:
    """Why nothing is said of the codes of a model, where it has not learned order.

    Args:
        measurements: the tidy table with the rows of `order_rows`.

    Returns:
        A sentence; None where the model surely beats the guesser who does not know the order, and
        surely loses where the question's tokens are permuted.
    """
    rows = measurements[measurements["probe"] == PROBE].set_index(["metric", "control"])
    if (rows["ci_low"].loc[[("above_guesser", ""), ("lost_by_shuffle", "")]] > 0).all():
        return None
    accuracy = rows.loc[ACCURACY]["value"]
    own, guesser, shuffled = accuracy.loc[["", GUESSER, SHUFFLED_QUESTION]].tolist()
    return (
        f"the model has not learned order: {own:.0%} of its answers are right, {shuffled:.0%} on "
        f"shuffled questions, and {guesser:.0%} of an order-blind guesser's. Train it longer, or "
        "give another one."
    )


def followed(measurements: pd.DataFrame) -> pd.DataFrame:
    """How far answers follow each code, one row for a code at a site.

    Args:
        measurements: the tidy table with the rows of `interchange_rows`.

    Returns:
        code, layer, site; the shares of moved answers, 0 to 1, that go towards the next position's
        (`towards`), under the size-matched control (`size_matched`), the difference (`net`) with
        its 95% interval over sequences, and those that stay or do neither. The most followed first.
    """
    rows = measurements[measurements["probe"] == PROBE]
    rows = rows[rows["metric"].isin([TOWARDS, STAYS, NEITHER, NET])]
    keys = ["positions", "layer", "site"]
    own = rows[rows["control"] == ""].pivot(index=keys, columns="metric", values="value")
    control = rows[(rows["control"] == SIZE_MATCHED) & (rows["metric"] == TOWARDS)]
    ends = rows[rows["metric"] == NET].set_index(keys)
    found = own[[TOWARDS, STAYS, NEITHER, NET]].assign(
        size_matched=control.set_index(keys)["value"],
        net_low=ends["ci_low"],
        net_high=ends["ci_high"],
    )
    found = found.sort_values(NET, ascending=False, kind="stable").reset_index()
    found.insert(0, "code", found.pop("positions").str.removesuffix(of_next("")))
    shown = ["code", "layer", "site", TOWARDS, "size_matched", NET, "net_low", "net_high"]
    return found[[*shown, STAYS, NEITHER]].rename_axis(columns=None)
