"""Probing alone: a code that can be read is called used, one that cannot is called not used."""

from experiments.benchmark.task import context, sites_of, task_of
from experiments.probing.measure import code_probes, measure
from experiments.probing.sites import Site
from experiments.results.measurements import INTACT, table
from experiments.results.position_use import Word
from experiments.results.readability import READ_AS, verdicts
from nope_interp.constructions.planted import Planted
from probes.code_names import IRREGULAR

_WORDS = {"readable": Word.USED, "unreadable": Word.NOT_USED}


def probing(planted: Planted, place: Site | None, seed: int) -> dict[str, str]:
    """By `experiments.results.readability`, at the place, or at the best site of the stream.

    Args:
        planted: the model.
        place: a site; None for the whole stream.
        seed: of sequences and controls.

    Returns:
        A word for each code that can be read alone, which the irregular part cannot.
    """
    task = task_of(planted, seed)
    reading = measure(
        task.model,
        task.split,
        sites_of(task, place),
        context={**context(planted, seed), "positions": INTACT},
        seed=seed,
        batch_size=task.batch_size,
        probes=code_probes,
    )
    found = {of.hypothesis: of.rows[0]["verdict"] for of in verdicts(table(reading.rows))}
    read = {code: found.get(READ_AS.get(code, code)) for code in planted.truth if code != IRREGULAR}
    return {
        code: _WORDS.get(word, Word.UNDECIDED) for code, word in read.items() if word is not None
    }
