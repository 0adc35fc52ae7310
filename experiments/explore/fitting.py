"""`fit`: the probes and the code that a move needs, fitted while the page tells how far it is."""

from collections.abc import Iterator
from itertools import chain

from experiments.explore.answers import FitAnswer, Progress
from experiments.explore.asked import State
from experiments.explore.moving import n_coded, site_of
from experiments.explore.playground import Playground
from experiments.explore.text import code_in_steps, probes_in_steps
from experiments.explore.turns import Taking


def fit(playground: Playground, state: State, turn: Taking) -> Iterator[Progress | FitAnswer]:
    """Fit what is not kept: probes for the prompt's length, and a move's code, where there is one.

    Args:
        playground: whose model and text.
        state: what the page shows.
        turn: what has to be open while the model runs; others come between.

    Yields:
        How many sequences were read, and at last that all is fitted.

    Raises:
        UserError: for a prompt that cannot be read, too short a text, and a site that is none.
    """
    n = playground.tokens(state.prompt).shape[1]
    steps = probes_in_steps(playground, n)
    if state.move is not None:
        site = site_of(playground, state.move)
        steps = chain(
            steps, code_in_steps(playground, state.move.code, site, n_coded(n, state.move))
        )
    while True:
        with turn():
            step = next(steps, None)
        if step is None:
            break
        yield Progress(done=step[0], total=step[1])
    yield FitAnswer(fitted=True)
