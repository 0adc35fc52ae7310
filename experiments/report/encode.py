"""Numbers and text made safe and small enough to stand inside the page."""

import base64
import gzip
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from markupsafe import Markup

# An HTML parser ends a script at "</script" and JavaScript once ended a line at U+2028: none of
# these may appear as themselves, whatever the tokens are.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_UNSAFE_TABLE = str.maketrans(_UNSAFE)


def json_text(value: Any) -> Markup:
    """JSON that may stand inside a script element; NaN and infinity are refused with ValueError."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_UNSAFE_TABLE))


def compressed(text: str) -> Markup:
    """Base64 of the gzipped text, the same bytes for the same text: a quarter of most scripts."""
    return Markup(base64.b64encode(gzip.compress(text.encode("utf-8"), mtime=0)).decode("ascii"))


def script_text(source: str) -> Markup:
    """A JavaScript source that may stand inside a script element, its meaning unchanged."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return Markup(source.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def number(value: Any, digits: int = 5) -> float | None:
    """The value to that many significant digits; None where it is missing, NaN or infinite."""
    (rounded,) = numbers((value,), digits)
    return rounded


def numbers(values: Iterable[Any], digits: int = 5) -> list[float | None]:
    """`number` of each."""
    return [
        float(f"{float(value):.{digits}g}") if value is not None and math.isfinite(value) else None
        for value in values
    ]


def packed(values: np.ndarray, scale: int) -> str:
    """Base64 of the values times `scale` as little-endian 16-bit integers; NaN becomes -32768.

    A third of the size of the same numbers as text. Values must lie within 32767 / scale of zero.
    """
    scaled = np.clip(np.rint(np.asarray(values, dtype=np.float64) * scale), -32767, 32767)
    integers = np.where(np.isnan(scaled), -32768, scaled).astype("<i2")
    return base64.b64encode(integers.tobytes()).decode("ascii")


def packed_patterns(pattern: np.ndarray) -> list[list[str]]:
    """Base64 of each head's weights on the tokens it sees, 8 bits each: [layer][head].

    `pattern` is [layer head query key], weights from 0 to 1, which become 0 to 255. Only the lower
    triangle is kept, row by row: what a causal query cannot see needs no space.
    """
    rows, columns = np.tril_indices(pattern.shape[-1])
    seen = np.asarray(pattern)[:, :, rows, columns].astype(np.float64)
    integers = np.rint(255 * np.clip(seen, 0, 1)).astype(np.uint8)
    return [[base64.b64encode(h.tobytes()).decode("ascii") for h in layer] for layer in integers]


def nested(values: np.ndarray | np.generic, digits: int = 4) -> Any:
    """The array as lists within lists of `number`s."""
    values = np.asarray(values, dtype=np.float64)
    rounded = np.empty(values.size, dtype=object)
    rounded[:] = numbers(values.ravel().tolist(), digits)
    return rounded.reshape(values.shape).tolist()


def every(length: int, most: int) -> int:
    """The smallest step that leaves at most `most` of `length` points."""
    return max(1, -(-length // most))
