"""How much work each part of a drop is: for estimates alone.

The unit is a token that passes forward with no token before it. A layer of width d has about 12 d²
weights, and a query meets half of the tokens on average: among L tokens attention adds L / 12 d
(after Kaplan et al. 2020, arXiv 2001.08361, who leave it out for short sequences).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from experiments.drop.config import DropConfig
from experiments.results.drop import CONTROL, DROPPED, RECALIBRATED
from experiments.results.measurements import INTACT
from experiments.runs.timing import OF_A_STEP
from nope_interp.training.loop import watched_steps


def read_title(variant: str, length: int) -> str:
    """What the part is called that reads a variant.

    Args:
        variant: which model.
        length: in tokens.
    """
    return f"{variant}, {length} tokens"


def step_title(variant: str, step: int) -> str:
    """What the part is called that trains up to a step.

    Args:
        variant: what the training ends in.
        step: of the optimiser.
    """
    return f"{variant} at step {step}"


def passing(length: int, width: int) -> float:
    """The work of one sequence.

    Args:
        length: in tokens.
        width: of the model's stream.
    """
    return length * (1 + length / (12 * width))


def work_of(
    config: DropConfig,
    lengths: Sequence[int],
    context: int,
    scalings: Sequence[str],
    width: int,
) -> dict[str, float]:
    """The work of each part, by its title, in the order of the run.

    Args:
        config: what is run.
        lengths: that are read.
        context: tokens that the model was trained to read.
        scalings: of rotary positions, which are read beyond the context.
        width: of the model's stream.
    """
    beyond = [length for length in lengths if length > context]
    parts = [
        _reading(config, INTACT, lengths, width),
        *(_reading(config, scaling, beyond, width) for scaling in scalings),
    ]
    if config.control:
        parts += [_training(config, CONTROL, width), _reading(config, CONTROL, lengths, width)]
    parts += [_reading(config, DROPPED, lengths, width)]
    parts += [_training(config, RECALIBRATED, width)]
    parts += [_reading(config, RECALIBRATED, lengths, width)]
    return dict(chain.from_iterable(parts))


def _reading(
    config: DropConfig, variant: str, lengths: Sequence[int], width: int
) -> Iterator[tuple[str, float]]:
    sequences = config.n_held_out + config.n_passkeys * config.n_depths
    for length in lengths:
        yield read_title(variant, length), sequences * passing(length, width)


def _training(config: DropConfig, variant: str, width: int) -> Iterator[tuple[str, float]]:
    training = config.training
    steps, a_sequence = watched_steps(training.steps), passing(training.seq_len, width)
    for before, step in pairwise([steps[0], *steps]):
        trained = (step - before) * training.batch_size * OF_A_STEP
        yield step_title(variant, step), (trained + config.n_held_out) * a_sequence
