"""Language models whose text is told to stand elsewhere: do predictions follow?

By `experiments.codes.text_interchange` and the rules that `compare` has on text, through the whole
stream.
"""

from functools import partial

from experiments.benchmark.task import N_FIT, N_HELD_OUT, context
from experiments.codes.task import InterventionTask
from experiments.codes.text_interchange import text_rows
from experiments.probing.split import Split
from experiments.results.measurements import table
from experiments.results.text_use import judged_on_text
from nope_interp.constructions.planted.language import PlantedLanguage
from nope_interp.constructions.planted.task import N_CTX
from nope_interp.models.losses import bigram_losses, sequence_losses
from nope_interp.tasks.sources import TextSource
from probes.code_names import COUNTING, SMOOTH

_BATCH = 128


def interchange_on_text(planted: PlantedLanguage, seed: int) -> dict[str, str]:
    """A model that does not surely know order gets no word but that.

    Args:
        planted: the model.
        seed: of text, sequences and controls.

    Returns:
        A word for each code that can be moved on text.
    """
    source = TextSource(planted.text(seed), planted.begin_token)
    task = task_on_text(planted, source, seed)
    (judged,) = judged_on_text(table(text_rows(task, source, context=context(planted, seed))))
    # A smooth trend is called counting where 1/m predicts it.
    return {SMOOTH if code == COUNTING else code: str(of) for code, of in judged.words.items()}


def task_on_text(planted: PlantedLanguage, source: TextSource, seed: int) -> InterventionTask:
    """A language model and what it is judged by: sequences of its text, and a bigram's losses.

    Args:
        planted: the model.
        source: of its text.
        seed: of sequences and controls.

    Returns:
        What interventions work on.
    """
    how = {"seq_len": N_CTX, "begin_token": True, "seed": seed}
    split = Split.of(source, N_FIT, N_HELD_OUT, **how)
    return InterventionTask(
        planted.model,
        split,
        partial(sequence_losses, batch_size=_BATCH),
        bigram_losses(source.known, split.held_out, planted.model.config.d_vocab),
        seed,
        _BATCH,
        begin_token=True,
    )
