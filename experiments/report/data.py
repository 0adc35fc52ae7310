"""What a run folder is read into before the report draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from experiments.results.answer import Answer
from experiments.results.measurements import COLUMNS
from experiments.results.readability import Verdict
from experiments.results.usage import UseVerdict
from nope_interp.errors import UserError


@dataclass(frozen=True)
class ReportData:
    """Everything that the page shows; the page computes nothing beyond it.

    measurements is the tidy table (`COLUMNS`); arrays are keyed
    "variant/tokens/begin|nobegin/layer/site/probe/name". example holds one sequence: "tokens"
    [pos], "predictions" {variant: {layer label: predicted position per token, None where there is
    none}} and "patterns" {variant: {layer: [head query key]}}; it may be empty. info is JSON-able;
    its "command" and "notes" are shown apart from the rest. verdicts say what can be read, uses
    what is used: the page shows those of settings that the table has. followed has a row for each
    code that was moved, as `experiments.results.interchange.followed` gives it. answer is what is
    said first.

    Raises:
        UserError: a column of the table is missing, or a prediction or pattern of the example has
            another length than its tokens.
    """

    title: str
    measurements: pd.DataFrame = field(repr=False)
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    info: Mapping[str, Any] = field(repr=False)
    verdicts: Sequence[Verdict] = field(repr=False)
    answer: Answer
    uses: Sequence[UseVerdict] = ()
    followed: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    mechanism: str | None = None
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """The sentence under the title."""
        return self.answer.sentence

    def __post_init__(self) -> None:
        missing = [column for column in COLUMNS if column not in self.measurements.columns]
        if missing:
            raise UserError(
                f"the measurements lack the column {missing[0]!r}: "
                "the report draws tables written by nope-interp; run the experiment again."
            )
        length = len(self.example.get("tokens", ()))
        for what in ("predictions", "patterns"):
            for variant, layers in self.example.get(what, {}).items():
                for layer, values in layers.items():
                    if np.shape(values)[-1:] != (length,):
                        raise UserError(
                            f"the example's {what} of {variant}, layer {layer}, have shape "
                            f"{np.shape(values)} for {length} tokens: give one value per token."
                        )
