"""One held-out sequence, token by token, out of a run's arrays."""

from typing import Any

import numpy as np

from experiments.results.measurements import FIRST_POSITION

PREFIX = "example"


def example_of(info: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the report shows of the example.

    Args:
        info: how the run was made.
        arrays: those of the run.

    Returns:
        Tokens, and predictions and patterns by variant and layer.
    """
    example: dict[str, Any] = {
        "tokens": info["example_tokens"],
        "predictions": {},
        "patterns": {},
    }
    for key, array in arrays.items():
        if key.startswith(f"{PREFIX}/"):
            _, variant, kind, label = key.split("/")
            # Position 0 was not probed: it has no prediction.
            values = [None] * FIRST_POSITION + array.tolist() if kind == "prediction" else array
            example[f"{kind}s"].setdefault(variant, {})[label] = values
    return example
