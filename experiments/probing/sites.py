"""Where a model is read: layers, hook points and positions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

from experiments.results.measurements import FIRST_POSITION
from nope_interp.errors import UserError, shown
from nope_interp.sites import hook_name

ALL_BUT_FIRST = slice(FIRST_POSITION, None)


@dataclass(frozen=True)
class Site:
    """A layer and a hook of the residual stream; layer 0's `resid_pre` is the embedding."""

    layer: int
    hook: str

    @property
    def name(self) -> str:
        """The name of the hook point."""
        return hook_name(self.layer, self.hook)


def sites(n_layers: int, sites: Sequence[str], layers: Sequence[int] | None = None) -> list[Site]:
    """The embedding and then every site of the layers, in order of depth.

    Args:
        n_layers: of the model.
        sites: hooks of each layer.
        layers: which ones; None for all, none of them for the embedding alone.

    Returns:
        The sites; the embedding comes first, and only once.

    Raises:
        UserError: for a layer that the model lacks, and for what are no layers or no list of sites.
    """
    if isinstance(sites, str) or not isinstance(sites, Sequence):
        such = sites if isinstance(sites, str) else "resid_post"
        raise UserError(f"the sites are {shown(sites)}: give a list, such as [{shown(such)}].")
    chosen = chosen_layers(n_layers, range(n_layers) if layers is None else layers)
    every = [Site(layer, site) for layer in chosen for site in sites]
    embedding = Site(0, "resid_pre")
    return [embedding, *(site for site in every if site != embedding)]


def chosen_layers(n_layers: int, layers: Iterable[int]) -> list[int]:
    """Layers that somebody chose, in their order of depth.

    Args:
        n_layers: how many the model has.
        layers: some of them, from 0.

    Returns:
        The same as Python's whole numbers.

    Raises:
        UserError: for a layer that the model lacks, and for what are no layers.
    """
    try:
        chosen = sorted(map(index, layers))
    except TypeError as error:
        raise UserError(f"layers are {layers!r}: give a list of whole numbers.") from error
    for layer in chosen:
        if not 0 <= layer < n_layers:
            raise UserError(
                f"the model has no layer {layer}: choose from layers 0 to {n_layers - 1}."
            )
    return chosen
