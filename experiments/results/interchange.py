"""How the tidy table names what an interchange of position codes did. Needs no torch."""

PROBE = "interchange"
# Of moved questions, the share answered as at the position whose code they got, as at their own, or
# in another way.
TOWARDS, STAYS, NEITHER = "towards", "stays", "neither"
# The share that goes towards, less that of the size-matched control.
NET = "net"
# What a model's accuracy is held against before anything is said of its codes.
GUESSER = "order-free guesser"
SHUFFLED_QUESTION = "question shuffled"


def of_next(code: str) -> str:
    """The name of the condition in which asking positions have this code of the next one."""
    return f"{code} of the next position"
