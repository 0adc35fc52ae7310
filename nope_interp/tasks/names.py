"""The names of the tasks, apart from their code so that they cost nothing to know."""

# Kazemnejad et al. 2023's ten tasks: the variants of copying and reversing, then the others.
_STRINGS = "copy-rsc copy-rsc2x copy-rdc copy-cmc copy-cmc2x reverse-mc reverse-mc2x reverse-mcrv"
_OTHERS = "addition polynomial sort-single sort-multi summation parity lego scan pcfg"
# Those of Zuo et al. 2025.
_CHARACTERS = "zuo-addition reversal indexing ordering"

ANSWER_TASK_NAMES = (*_STRINGS.split(), *_OTHERS.split(), *_CHARACTERS.split())
TASK_NAMES = ("text", *ANSWER_TASK_NAMES)
