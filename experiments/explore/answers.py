"""What the page is answered. Numbers are those of the library; NaN becomes null in JSON.

An answer with a status of 4xx is a `Sorry`. `/api/patch` and `/api/fit` give lines of JSON:
`Progress` lines, and then one `PatchMap`, `FitAnswer` or `Sorry`. `/api/save` gives a page as a
download.
"""

import base64
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sorry(_Answer):
    """Why there is no answer: one sentence that names the culprit and the remedy."""

    sentence: str


class Packed(_Answer):
    """An array, row by row: little-endian numbers in base64.

    float32 are the numbers themselves; uint8 are shares of 0 to 1, times 255.
    """

    shape: list[int]
    dtype: Literal["float32", "uint8"]
    base64: str

    @classmethod
    def exact(cls, values: np.ndarray) -> "Packed":
        """The numbers in single precision."""
        raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
        return cls(shape=[*values.shape], dtype="float32", base64=_base64(raw))

    @classmethod
    def shares(cls, values: np.ndarray) -> "Packed":
        """Shares from 0 to 1 with 8 bits each."""
        raw = np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8).tobytes()
        return cls(shape=[*values.shape], dtype="uint8", base64=_base64(raw))


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


class Finished(_Answer):
    """A finished run of `heads` of the same model: its folder's name, and `[layer][head]`."""

    folder: str
    labels: list[list[str]]


class ModelAnswer(_Answer):
    """What there is to play with.

    Tables by layer and head have no heads in layers that are not among `attending`. conditions are
    values of `Change.positions` (those that take a number have one already), codes
    and sites of `Move`. pairs are prompts of one number of tokens to patch between, clean and
    corrupted. `labels` are all names that a head may have. As many heads as `heads_sharing_keys`,
    one after the other, read the same keys, so that they lose positions together. `kept` says, in a
    sentence, what is kept in memory.
    """

    name: str
    layers: int
    attending: list[int]
    heads: int
    heads_sharing_keys: int
    conditions: list[str]
    codes: list[str]
    sites: list[str]
    prompts: list[str]
    pairs: list[tuple[str, str]]
    labels: list[str]
    finished: Finished | None
    kept: str


class Prediction(_Answer):
    """A token that may come next, and its probability."""

    id: int
    token: str
    probability: float


class Reading(_Answer):
    """A prompt read by the model as it is, or as it is changed.

    surprisal is in nats, null for the first token; loss is its mean. thumbnails has for each layer
    the patterns of its heads, `[head query key]`, each at most 32 by 32, the greatest weights of
    their cells. labels and scores are live: of this prompt and of repeated tokens, without
    intervals; `[layer][head]`, scores by metric, null where the prompt is too short for one.
    """

    surprisal: list[float | None]
    loss: float | None
    predictions: list[Prediction]
    thumbnails: list[Packed]
    labels: list[list[str]]
    scores: dict[str, list[list[float | None]]]


class Difference(_Answer):
    """What a change did: after minus before, of surprisal and loss in nats.

    patterns is the mean total-variation distance between each head's attention before and after,
    from 0 to 1, `[layer][head]`. predictions has both probabilities of all tokens that are among
    the ten likeliest before or after.
    """

    surprisal: list[float | None]
    loss: float | None
    patterns: list[list[float]]
    predictions: list["Both"]


class Both(_Answer):
    """A next token's probability before and after."""

    id: int
    token: str
    before: float
    after: float


class ReadAnswer(_Answer):
    """`read`: the prompt's tokens, how it is read, and what a change does.

    notes are sentences: what a change leaves of positions, say.
    """

    tokens: list[str]
    before: Reading
    after: Reading | None
    difference: Difference | None
    notes: list[str]


class Frequencies(_Answer):
    """Which rotary frequencies a head uses on this prompt.

    share is of |q| |k|, the highest frequency first, and sums to 1; radians is how far each turns
    per token. high is the share of the highest quarter, chance that of equal use.
    """

    radians: list[float]
    share: list[float]
    high: float
    chance: float


class Feed(_Answer):
    """An earlier head that this one may read: K-composition, a correlation of weights, 0 to 1."""

    layer: int
    head: int
    label: str
    score: float


class FeedsAnswer(_Answer):
    """`feeds`: the earlier heads with the highest score, the highest first.

    chance is what a tenth of all earlier heads' scores with this layer's heads exceed. why says why
    there are no feeds, where there are none.
    """

    feeds: list[Feed]
    chance: float | None
    why: str


class HeadAnswer(_Answer):
    """`head`: one head on this prompt. before and after are patterns `[query key]`.

    Which earlier heads feed it takes longer, and is asked for by `feeds`.
    """

    layer: int
    head: int
    tokens: list[str]
    label: str
    scores: dict[str, float | None]
    before: Packed
    after: Packed | None
    frequencies: Frequencies | None


class Probed(_Answer):
    """Where a layer's linear probe reads a moved position to be, before and after.

    In positions; `to` is where it is told to be, control the mean over the control's draws.
    """

    position: int
    to: int
    before: float
    after: float
    control: float


class ProbedLayer(_Answer):
    """A layer's position probe at the moved tokens; error is its mean error on held-out text."""

    layer: int
    error: float
    moved: list[Probed]


class MoveAnswer(_Answer):
    """`move`: what follows a moved position code.

    patterns and control_patterns are mean total-variation distances to the unmoved attention, from
    0 to 1, `[layer][head]`. The control changes the same positions as much, in directions that aim
    at no code; its numbers are means over `draws` of them, control_low and control_high the least
    and greatest. distance is the total-variation distance between the predictions of the token
    after the prompt, unmoved and moved. probes are of the stream behind each layer.
    """

    patterns: list[list[float]]
    control_patterns: list[list[float]]
    probes: list[ProbedLayer]
    predictions: list[Both]
    distance: float
    control_distance: float
    control_low: float
    control_high: float
    draws: int
    notes: list[str]


class Progress(_Answer):
    """How far patching or fitting is, in patches or sequences."""

    done: int
    total: int


class FitAnswer(_Answer):
    """`fit`: all that a move needs is fitted."""

    fitted: Literal[True]


class PatchMap(_Answer):
    """`patch`: the share of the logit difference that each patch recovers, `[layer][column]`.

    clean is the prompt, corrupted the other one. The logit difference is that of `answer`, the
    clean prompt's likeliest next token, less `other`, the corrupted one's. A share of 0 is the
    corrupted run, 1 the clean one. columns are positions, or heads.
    """

    columns: Literal["position", "head"]
    recovered: list[list[float]]
    clean: float
    corrupted: float
    answer: str
    other: str
    clean_tokens: list[str]


class CodeAnswer(_Answer):
    """`code`: lines of Python that print the same numbers."""

    code: str
