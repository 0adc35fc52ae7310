"""What one reading of a model's heads showed, and the same as named arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from probes.heads.detectors import METRICS, HeadScores
from probes.scores import Score

_SCORE_ARRAYS = [f.name for f in fields(HeadScores) if f.name != "metrics"]
_LOSS_NUMBERS = ("value", "ci_low", "ci_high", "chance", "n")


@dataclass(frozen=True)
class HeadCell:
    """What one variant of a model, under one condition, showed.

    Attributes:
        scores: one `HeadScores` for each layer.
        frequencies: "query_norm" and "key_norm" `[layer head freq]` and "high_share"
            `[layer head (value, ci_low, ci_high, chance)]`, NaN in layers that do not rotate; empty
            where none does.
        loss: next-token loss on the text, in nats; chance is that of knowing how often each token
            occurs and nothing of the context.
        patterns: attention on each prompt, `[layer head query key]`.
    """

    scores: list[HeadScores]
    frequencies: dict[str, np.ndarray]
    loss: Score
    patterns: list[np.ndarray]

    def arrays(self) -> dict[str, np.ndarray]:
        """The cell as named arrays; `of_arrays` reads them back."""
        arrays = {
            f"scores/{name}": np.stack([getattr(layer, name) for layer in self.scores])
            for name in _SCORE_ARRAYS
        }
        arrays |= {f"frequencies/{name}": array for name, array in self.frequencies.items()}
        arrays |= {f"patterns/{i:03}": pattern for i, pattern in enumerate(self.patterns)}
        numbers = [getattr(self.loss, name) for name in _LOSS_NUMBERS]
        return arrays | {"loss": np.array(numbers, dtype=float)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "HeadCell":
        """The cell that `arrays` made these of."""
        value, low, high, chance, n = arrays["loss"].tolist()
        return cls(
            scores=[
                HeadScores(METRICS, **{name: arrays[f"scores/{name}"][i] for name in _SCORE_ARRAYS})
                for i in range(len(arrays["scores/value"]))
            ],
            frequencies=_under(arrays, "frequencies/"),
            loss=Score("loss", value, low, high, chance, int(n)),
            patterns=list(_under(arrays, "patterns/").values()),
        )


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(prefix): array
        for key, array in sorted(arrays.items())
        if key.startswith(prefix)
    }
