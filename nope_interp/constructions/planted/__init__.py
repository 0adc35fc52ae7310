"""Models of which we know, by hand, what they know positions by.

For every account of how a model without positional encodings knows where it is, models of which we
know that the account is true, or false, and at which site: what claims to find or to take away a
code can be held against them.
"""

from nope_interp.constructions.planted.language import PlantedLanguage
from nope_interp.constructions.planted.plants import LANGUAGES, PLANTS, plant, plant_language
from nope_interp.constructions.planted.task import N_CTX, Planted

__all__ = [
    "LANGUAGES",
    "N_CTX",
    "PLANTS",
    "Planted",
    "PlantedLanguage",
    "plant",
    "plant_language",
]
