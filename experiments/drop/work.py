"""How much work each part of a drop is, in tokens that pass forward: for estimates alone."""

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


def work_of(
    config: DropConfig, lengths: Sequence[int], context: int, scalings: Sequence[str]
) -> dict[str, float]:
    """Tokens that pass forward in each part, by its title, in the order of the run.

    Args:
        config: what is run.
        lengths: that are read.
        context: tokens that the model was trained to read.
        scalings: of rotary positions, which are read beyond the context.
    """
    beyond = [length for length in lengths if length > context]
    parts = [
        _reading(config, INTACT, lengths),
        *(_reading(config, scaling, beyond) for scaling in scalings),
    ]
    if config.control:
        parts += [_training(config, CONTROL), _reading(config, CONTROL, lengths)]
    parts += [_reading(config, DROPPED, lengths)]
    parts += [_training(config, RECALIBRATED), _reading(config, RECALIBRATED, lengths)]
    return dict(chain.from_iterable(parts))


def _reading(
    config: DropConfig, variant: str, lengths: Sequence[int]
) -> Iterator[tuple[str, float]]:
    sequences = config.n_held_out + config.n_passkeys * config.n_depths
    for length in lengths:
        yield read_title(variant, length), sequences * length


def _training(config: DropConfig, variant: str) -> Iterator[tuple[str, float]]:
    training = config.training
    steps = watched_steps(training.steps)
    for before, step in pairwise([steps[0], *steps]):
        trained = (step - before) * training.batch_size * OF_A_STEP
        yield step_title(variant, step), (trained + config.n_held_out) * training.seq_len
