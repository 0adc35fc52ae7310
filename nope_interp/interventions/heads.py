"""What the heads of a layer put out, head by head, whatever a model's hook point shows."""

from jaxtyping import Float
from torch import Tensor


def head_outputs(layer: int) -> str:
    """The hook name of what all heads of a layer put out, before it is written to the stream.

    Args:
        layer: which block, from 0.
    """
    return f"blocks.{layer}.attn.hook_z"


def by_head(
    z: Float[Tensor, "batch pos *head_d"], n_heads: int
) -> Float[Tensor, "batch pos head d"]:
    """What heads put out, apart from one another: some bridges show all of them in one row.

    Args:
        z: as the hook point shows it.
        n_heads: how many.

    Returns:
        A view of it.
    """
    return z.view(*z.shape[:2], n_heads, -1)
