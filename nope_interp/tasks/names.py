"""The names of the tasks, apart from their code so that they cost nothing to know."""

# The variants of Kazemnejad et al. 2023's ten tasks, then the tasks of Zuo et al. 2025.
ANSWER_TASK_NAMES = (
    "copy-rsc",
    "copy-rsc2x",
    "copy-rdc",
    "copy-cmc",
    "copy-cmc2x",
    "reverse-mc",
    "reverse-mc2x",
    "reverse-mcrv",
    "addition",
    "polynomial",
    "sort-single",
    "sort-multi",
    "summation",
    "parity",
    "lego",
    "scan",
    "pcfg",
    "zuo-addition",
    "reversal",
    "indexing",
    "ordering",
)
TASK_NAMES = ("text", *ANSWER_TASK_NAMES)
