"""The names of the tasks, apart from their code so that they cost nothing to know."""

# Kazemnejad et al. 2023's ten tasks: the variants of copying and reversing, then the others.
_STRINGS = "copy-rsc copy-rsc2x copy-rdc copy-cmc copy-cmc2x reverse-mc reverse-mc2x reverse-mcrv"
_OTHERS = "addition polynomial sort-single sort-multi summation parity lego scan pcfg"
# Those of Zuo et al. 2025.
_CHARACTERS = "zuo-addition reversal indexing ordering"
# Two of the first again, of which training draws longer examples more often, as that paper's does.
_NATURAL = "addition-natural scan-natural"

KAZEMNEJAD_TASKS = (*_STRINGS.split(), *_OTHERS.split())
ANSWER_TASK_NAMES = (*KAZEMNEJAD_TASKS, *_CHARACTERS.split(), *_NATURAL.split())
TASK_NAMES = ("text", *ANSWER_TASK_NAMES)
