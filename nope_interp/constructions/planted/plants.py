"""The planted models and language models by name."""

from collections.abc import Callable

import torch

from nope_interp.constructions.planted import alone, latest, several, unread, words
from nope_interp.constructions.planted.language import PlantedLanguage
from nope_interp.constructions.planted.task import Planted
from nope_interp.errors import unknown_name

# The logit of tokens that stand for no answer.
_NEVER = -30.0

PLANTS: dict[str, Callable[[int], Planted]] = {
    "variance": alone.variance,
    "similarity": alone.similarity,
    "counting": alone.counting,
    "positional vectors": alone.positional_vectors,
    "variance, pre-norm": alone.variance_pre_norm,
    "counting, pre-norm": alone.counting_pre_norm,
    "positional vectors, pre-norm": alone.positional_vectors_pre_norm,
    "few dimensions": alone.few_dimensions,
    "either of two": several.either,
    "both of two": several.both,
    "one after the other": several.one_after_the_other,
    "unread variance": unread.unread_variance,
    "unread counting": unread.unread_counting,
    "unread vectors": unread.unread_vectors,
    "count amid content": unread.count_amid_content,
    "content along a count": unread.content_along_a_count,
    "brittle": unread.brittle,
    "order-free pooling": unread.pooling,
}

LANGUAGES: dict[str, Callable[[int], PlantedLanguage]] = {
    "looked up": words.by_positions,
    "looked up, pre-norm": words.by_positions_pre_norm,
    "looked up, unread count": words.by_positions_beside_a_count,
    "looked up, pooling": words.by_positions_beside_pooling,
    "looked up, nearer farther on": words.by_positions_farther_on,
    "count looked up": words.by_a_count,
    "distance": words.by_distance,
    "distance, unread count": words.by_distance_beside_a_count,
    "distance, unread vectors": words.by_distance_beside_vectors,
    "distance, pooling": words.by_distance_beside_pooling,
    "latest by similarity": latest.by_similarity,
    "latest by similarity amid content": latest.by_similarity_amid_content,
    "latest by variance": latest.by_variance,
    "latest by variance amid content": latest.by_variance_amid_content,
    "latest by a count, unread similarity": latest.by_a_count_beside_similarity,
}


def plant(kind: str, seed: int = 0) -> Planted:
    """A model of which it is known which codes it uses.

    Args:
        kind: one of `PLANTS`.
        seed: of its random directions.

    Returns:
        The model, the task that it solves and the truth about its codes.

    Raises:
        UserError: for an unknown kind.
    """
    if kind not in PLANTS:
        raise unknown_name("planted model", kind, PLANTS)
    planted = PLANTS[kind](seed)
    with torch.no_grad():
        bias = planted.model.unembed.bias
        kept = bias[planted.answer_tokens].clone()
        bias.fill_(_NEVER)
        bias[planted.answer_tokens] = kept
    return planted


def plant_language(kind: str, seed: int = 0) -> PlantedLanguage:
    """A language model of which it is known which codes it uses.

    Args:
        kind: one of `LANGUAGES`.
        seed: of its random directions; what reads distances alone has none.

    Returns:
        The model, its text and the truth about its codes.

    Raises:
        UserError: for an unknown kind.
    """
    if kind not in LANGUAGES:
        raise unknown_name("planted language model", kind, LANGUAGES)
    return LANGUAGES[kind](seed)
