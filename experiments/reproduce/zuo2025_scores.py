"""What is read of the rows of a model: adjacency scores, mean cosines and variances."""

from functools import partial

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from nope_interp.sites import hook_name
from nope_interp.streams import stream
from nope_interp.transformer import HookedTransformer
from probes.similarity import adjacency_a, adjacency_b, adjacency_c, cosine_similarity
from probes.variance import row_variance

Array = np.ndarray

SCORES = {"A": adjacency_a, "B": adjacency_b, "C": adjacency_c}
_SITES = {
    "attn_out": "attention",
    "resid_mid": "after it",
    "mlp_out": "MLP",
    "resid_post": "block",
}
# The embedding, then four sites of three layers.
PLACES = (
    "embedding",
    *(f"{layer} {site}" for layer in ("first", "middle", "last") for site in _SITES.values()),
)


def read_rows(
    model: HookedTransformer, tokens: Int[Tensor, "sequence pos"], *, first: int = 0
) -> dict[str, Array]:
    """Means over sequences, of rows from position `first` on.

    * places [place score], blocks [layer score]: scores A, B, C at `PLACES` and after every block.
    * cosines [place pos pos]: matrices at `PLACES`.
    * variance [layer pos]: of a row's components, after every block.
    """
    n_layers = model.config.n_layers
    places = _hooks(n_layers)
    blocks = [hook_name(layer, "resid_post") for layer in range(n_layers)]
    scores: dict[str, Float[Array, " score"]] = {}
    matrices: dict[str, Float[Array, "pos pos"]] = {}
    variances: dict[str, Float[Array, " pos"]] = {}

    def listen(activations: Tensor, name: str) -> None:
        rows = activations[:, first:]
        cosines = cosine_similarity(rows).cpu()
        matrices[name] = cosines.mean(dim=0).numpy()
        scores[name] = np.array([score(cosines).mean().item() for score in SCORES.values()])
        variances[name] = row_variance(rows).mean(dim=0).cpu().numpy()

    names = dict.fromkeys([*places, *blocks])
    listeners = {name: partial(listen, name=name) for name in names}
    stream(model, tokens, listeners, batch_size=len(tokens))
    return {
        "places": np.stack([scores[name] for name in places]),
        "blocks": np.stack([scores[name] for name in blocks]),
        "cosines": np.stack([matrices[name] for name in places]),
        "variance": np.stack([variances[name] for name in blocks]),
    }


def _hooks(n_layers: int) -> list[str]:
    """The hooks of `PLACES`: layers first, middle and last."""
    layers = (0, (n_layers - 1) // 2, n_layers - 1)
    return [hook_name(0, "resid_pre")] + [
        hook_name(layer, site) for layer in layers for site in _SITES
    ]
