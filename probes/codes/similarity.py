"""Similarity moved: which positions' activations resemble which, exchanged for that of others.

Similarity has no value at a position: it is the correlation between positions. Told that they stand
elsewhere, positions resemble one another as those there do.
"""

import torch

from probes.codes.filter import CodeFilter
from probes.codes.statistics import CodeStatistics
from probes.errors import ProbeError
from probes.shapes import Positions


def moved_similarity(statistics: CodeStatistics, sources: Positions) -> CodeFilter:
    """Activations whose deviations have the correlations between positions of other positions.

    Each keeps its variance over components, and each position its mean. Earlier activations know
    nothing of later ones.

    Args:
        statistics: those of the site.
        sources: `[pos]`, for each of the first positions fitted on the one (as an index into these)
            that it is to resemble others as.

    Returns:
        The intervention, for activations at these first positions.

    Raises:
        ProbeError: for sources that are no such indices, one source of two positions, which would
            then have one content, and where the sequences do not determine correlations.
    """
    own, means = torch.arange(len(sources)), statistics.positional_vectors().float()
    if len(sources) > len(means) or not ((sources >= 0) & (sources < len(means))).all():
        raise ProbeError(
            f"sources are {sources.tolist()}: give one for each of the first positions, as an "
            f"index from 0 to {len(means) - 1}"
        )
    if len(sources.unique()) < len(sources):
        raise ProbeError(
            "two positions would get the similarity of one, and so its content: give each position "
            "a source of its own"
        )
    whitening = statistics.whitening(sources, own).float()
    nothing = torch.zeros_like(means[own])
    return CodeFilter(means[own], nothing, whitening=whitening, variance_map=None)
