"""Papers by name."""

from experiments.papers.barbero2024.claims import PAPER as BARBERO2024
from experiments.papers.chi2023.claims import PAPER as CHI2023
from experiments.papers.haviv2022.claims import PAPER as HAVIV2022
from experiments.papers.kazemnejad2023.claims import PAPER as KAZEMNEJAD2023
from experiments.papers.koutnik2014.claims import PAPER as KOUTNIK2014
from experiments.papers.zuo2025.claims import PAPER as ZUO2025
from experiments.results.claims import Paper
from nope_interp.errors import unknown_name

_IN_ORDER = (CHI2023, HAVIV2022, ZUO2025, KAZEMNEJAD2023, BARBERO2024, KOUTNIK2014)
PAPERS = {paper.name: paper for paper in _IN_ORDER}


def paper(name: str) -> Paper:
    """The paper of that name; raises UserError, with the nearest right name, where none is."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]
