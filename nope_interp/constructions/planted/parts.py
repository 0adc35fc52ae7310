"""What planted models are put together from: a count, vectors, and what answers by them.

Components of the stream: three of Theorem 1, then one for each answer, then content.
"""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from nope_interp.constructions.kazemnejad import POSITION, absolute_position, counting_config
from nope_interp.constructions.planted.task import N_CTX
from nope_interp.models.blocks import MLP
from nope_interp.models.config import TransformerConfig
from nope_interp.models.encodings import LearnedPositions
from nope_interp.models.transformer import HookedTransformer

Curve = Float[np.ndarray, " pos"]
# The logit of each answer, at each position from 1 on.
AnswerTable = Float[np.ndarray, "pos answer"]

BEGIN_TOKEN = 0
# Logits of an answer far off lie this far below the right one's: being wrong costs little more than
# not knowing.
DEPTH = 3.0
ANSWERS = slice(3, 2 + N_CTX)
CONTENT = 2 + N_CTX
# The length of learned positions.
LENGTH = 4.0
# m at positions from 1 on.
COUNTS = np.arange(2.0, N_CTX + 1)
# Of `counter_with_room`: learned positions stand behind the content.
VECTORS = slice(112, 160)
N_VECTORS = VECTORS.stop - VECTORS.start
# Answers stand in the stream this much larger than in the logits, so that what disturbs activations
# a little does not reach them.
LOUD = 100.0
_D_VOCAB = 64


def silent(config: TransformerConfig) -> HookedTransformer:
    """A model in which nothing is written yet: all weights but the norms' are zero."""
    model = HookedTransformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.zero_()
    return model


def counter(seed: int, d_model: int = 128, *, d_mlp: int = N_CTX) -> HookedTransformer:
    """Two layers, of which the first writes m into `POSITION` (Theorem 1), over drawn content.

    Args:
        seed: of the content.
        d_model: width of the stream.
        d_mlp: of the MLPs.
    """
    config = counting_config(N_CTX, d_vocab=_D_VOCAB, d_model=d_model, d_mlp=d_mlp)
    config = replace(config, seed=seed)
    model = absolute_position(config, BEGIN_TOKEN).model.float()
    with torch.no_grad():
        model.W_E[:, POSITION + 1 : CONTENT] = 0
        model.W_E[:, CONTENT:] *= 10
        model.unembed.weight.zero_()
    return model


def counter_with_room(seed: int, *, d_mlp: int = N_CTX) -> HookedTransformer:
    """The same, without content in `VECTORS`, where learned positions are to stand: zero as yet."""
    model = like(counter(seed, VECTORS.stop, d_mlp=d_mlp), positions="learned")
    with torch.no_grad():
        model.W_E[:, VECTORS] = 0
    return model


def like(model: HookedTransformer, **changes: object) -> HookedTransformer:
    """A model of a config with these changes, and the same weights; others are zero."""
    changed = silent(replace(model.config, **changes))  # type: ignore[arg-type]
    changed.load_state_dict(model.state_dict(), strict=False)
    return changed


def learn_positions(
    model: HookedTransformer, vectors: Float[np.ndarray, "pos k"], where: slice
) -> None:
    """Adds a vector to each position from 1 on, of `LENGTH` times its own length."""
    assert isinstance(model.positions, LearnedPositions)
    with torch.no_grad():
        model.positions.table[1:, where] = LENGTH * torch.from_numpy(vectors)


def answer_by_vectors(
    model: HookedTransformer,
    vectors: Float[np.ndarray, "pos k"],
    where: slice,
    depth: float = 2 * DEPTH,
) -> None:
    """The unembedding tells positions by the vectors of `learn_positions`, if these alone stand
    there; `depth` is the right answer's logit, that of a vector at a right angle is 0."""
    with torch.no_grad():
        model.W_U[where, 1:N_CTX] = depth / LENGTH * torch.from_numpy(vectors.T)


def answer(
    model: HookedTransformer,
    layer: int,
    component: int,
    values: Curve,
    table: AnswerTable,
    *,
    read: float = 1.0,
    told: float = 1.0,
) -> None:
    """The MLP of this layer and the unembedding tell positions from 1 on by one component.

    At values[i] the logits of all answers are table[i], and in between they are linear.

    Args:
        model: its unembedding is overwritten.
        layer: the last one.
        component: of the stream.
        values: what it holds at each position from 1 on; they rise or fall.
        table: the logits there, such as `nearness`.
        read: what a norm before the MLP divides by.
        told: what a norm before the unembedding divides by.
    """
    interpolate(mlp(model, layer), component, values, LOUD * table, ANSWERS, read=read)
    with torch.no_grad():
        model.unembed.weight.zero_()
        model.W_U[ANSWERS, 1:N_CTX] = told / LOUD * torch.eye(N_CTX - 1)


def interpolate(
    into: MLP,
    component: int,
    values: Curve,
    table: Float[np.ndarray, "pos k"],
    to: slice,
    *,
    read: float = 1.0,
) -> None:
    """An MLP's first units write table[i] where a component holds values[i]; in between linearly.

    Args:
        into: of ReLUs, at least one for each value.
        component: of the stream.
        values: what it holds; beyond the ends the table's ends are written.
        table: what is written.
        to: to which components.
        read: what a norm before the MLP divides by.
    """
    order = np.argsort(values)
    knots, table = values[order], table[order]
    slopes = np.diff(table, axis=0) / np.diff(knots)[:, None]
    bends = np.diff(slopes, axis=0, prepend=0, append=0)
    n = len(knots)
    with torch.no_grad():
        into.into.weight[:n, component] = read
        into.into.bias[:n] = -torch.from_numpy(knots)
        into.out.weight[to, :n] = torch.from_numpy(bends.T)
        into.out.bias[to] = torch.from_numpy(table[0])


def loudness(table: AnswerTable) -> float:
    """The root of the summed squares of what `answer` writes, mean over positions."""
    return float(LOUD * np.sqrt((table**2).sum(axis=1)).mean())


def nearness(scale: Curve) -> AnswerTable:
    """-(scale[i] - scale[j])^2 / 2, down to -DEPTH: `scale` is the positions in units of how well
    a component tells them."""
    return -np.minimum((scale[:, None] - scale) ** 2 / 2, DEPTH)


def answer_kinds(model: HookedTransformer, component: int, depth: float) -> None:
    """Every answer's logits are doubled into one for each kind, told apart by a component's sign:
    where that is 1 in size, `depth` lies between the logits of the two kinds."""
    n = N_CTX - 1
    with torch.no_grad():
        model.W_U[:, 1 + n : 1 + 2 * n] = model.W_U[:, 1 : 1 + n]
        model.W_U[component, 1 : 1 + n] = -depth / 2
        model.W_U[component, 1 + n : 1 + 2 * n] = depth / 2


def drawn_vectors(k: int, generator: Generator) -> Float[np.ndarray, "pos k"]:
    """Random vectors of length 1, one for each position from 1 on, without any part that counts."""
    return without_counting(torch.randn(N_CTX - 1, k, generator=generator).double().numpy())


def without_counting(
    vectors: Float[np.ndarray, "pos k"], shared: Float[np.ndarray, "pos pos"] | None = None
) -> Float[np.ndarray, "pos k"]:
    """Vectors of length 1 whose components have no part along 1, t or 1/m over positions.

    Projections onto the two sets in turn; they meet long before the last of them. With `shared`, a
    projection that gives some positions one vector, onto that set, too.
    """
    t = np.arange(1, len(vectors) + 1)
    terms = np.column_stack((np.ones(len(t)), t, 1 / (t + 1)))
    terms = np.linalg.qr(terms if shared is None else shared @ terms)[0]
    for _ in range(1000):
        vectors = vectors if shared is None else shared @ vectors
        vectors = vectors - terms @ (terms.T @ vectors)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def mlp(model: HookedTransformer, layer: int) -> MLP:
    """The MLP of a layer that has one."""
    found = model.blocks[layer].mlp
    assert found is not None
    return found


def centred(x: Float[Tensor, "token k"]) -> Float[Tensor, "token k"]:
    """Rows whose mean is zero."""
    return x - x.mean(dim=0)


def of_length(x: Float[Tensor, "token k"], length: float) -> Float[Tensor, "token k"]:
    """Rows of this length, so that a norm divides all of them by the same."""
    return x * (length / torch.linalg.vector_norm(x, dim=1, keepdim=True))


def generator_of(seed: int) -> Generator:
    """A generator of this seed."""
    return Generator().manual_seed(seed)
