"""Papers by name."""

from experiments.reproduce.claims import (
    barbero2024,
    chi2023,
    haviv2022,
    kazemnejad2023,
    koutnik2014,
    zuo2025,
)
from experiments.reproduce.claims.claim import Paper
from nope_interp.errors import unknown_name

_MODULES = (chi2023, haviv2022, zuo2025, kazemnejad2023, barbero2024, koutnik2014)
PAPERS = {module.PAPER.name: module.PAPER for module in _MODULES}


def paper(name: str) -> Paper:
    """The paper of that name; raises UserError, with the nearest right name, where none is."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]
