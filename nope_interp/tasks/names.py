"""The names of the tasks, apart from their code so that they cost nothing to know."""

TASK_NAMES = ("reversal", "text")
