"""Kazemnejad et al. 2023's own numbers, as read in the results and the notebook of their code.

They are drawn beside ours where sizes match, and go into no number of ours. Encodings are in the
order of `ENCODINGS`, each number a mean over three seeds.
"""

from experiments.papers.config import ReproduceConfig

# Mean reciprocal rank over seventeen variants of tasks, ties in the order of the table.
RANKS = (0.687, 0.549, 0.502, 0.330, 0.215)

# Exact answers at the test lengths, without a scratchpad; others were not to be had.
ACCURACIES = {
    "copy-rsc": (0.986, 0.771, 0.289, 0.000, 0.000),
    "copy-rsc2x": (0.974, 0.558, 0.194, 0.000, 0.000),
    "copy-rdc": (0.967, 0.939, 0.170, 0.016, 0.000),
    "copy-cmc": (0.305, 0.420, 0.331, 0.011, 0.028),
    "copy-cmc2x": (0.431, 0.524, 0.569, 0.043, 0.040),
    "reverse-mc": (0.230, 0.242, 0.171, 0.077, 0.023),
    "reverse-mc2x": (0.473, 0.448, 0.195, 0.053, 0.011),
    "reverse-mcrv": (0.182, 0.140, 0.115, 0.000, 0.000),
    "addition": (0.085, 0.072, 0.077, 0.000, 0.004),
    "scan": (0.797, 0.799, 0.438, 0.283, 0.057),
    "pcfg": (0.433, 0.439, 0.428, 0.439, 0.366),
}
PUBLISHED = "the paper's own"
CAPTION = "Dotted: the paper's own, means over three seeds read in its public results."


def sizes_match(config: ReproduceConfig) -> bool:
    """Whether a run has the paper's models, lengths and steps."""
    return config.preset == "paper" and config.training == 1
