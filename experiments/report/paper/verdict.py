"""The first figure of a comparison: what can be read of each code, and whether it is used."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawn

from experiments.report.paper.drawing import COLOURS, LOOKS, PAGE, Drawing, legend
from experiments.results.answer import STRONGER_CONTROL, Answer, Reading
from experiments.results.intervals import Interval
from experiments.results.worth import WORTH_NAMING


def of_verdict(answer: Answer) -> Drawing:
    """How well each code is read, and how much of what the model does follows it."""
    height = 0.9 + 0.32 * len(answer.codes)
    return Drawing("verdict", lambda drawn: _verdict(drawn, answer), (PAGE, height))


def _verdict(drawn: Drawn, answer: Answer) -> None:
    # Of a model of which nothing can be said no code has a share.
    judged = any(code.share is not None for code in answer.codes)
    axes = drawn.subplots(1, 2 if judged else 1, sharey=True, squeeze=False).ravel()
    names = [f"{code.code}\n{code.word}" if code.word else code.code for code in answer.codes]
    read = axes[0]
    for at, code in enumerate(answer.codes):
        _mark(read, code.before, at - 0.15, COLOURS[1], "untrained")
        _mark(read, code.after, at + 0.15, COLOURS[0], "this model")
        if judged:
            _bar(axes[1], code.share, at - 0.18, COLOURS[0], answer.share_of)
            _bar(axes[1], code.restored, at + 0.18, COLOURS[2], answer.restored_of)
            if code.control is not None:
                axes[1].vlines(
                    100 * code.control,
                    at - 0.36,
                    at,
                    color=COLOURS[3],
                    label=STRONGER_CONTROL,
                )
    read.set_yticks(range(len(names)), names)
    read.invert_yaxis()
    read.set_xlabel("position read, % (0 is chance)")
    if judged:
        axes[1].set_xlabel("use, %")
    for axis in axes:
        low, high = axis.get_xlim()
        axis.set_xlim(min(-3, low), max(103, high))
        least = 100 * WORTH_NAMING
        label = f"{least:.0f}%: a whole interval above it counts"
        axis.axvline(least, label=label, **LOOKS["reference"])
    legend(drawn)


def _mark(axes: Axes, reading: Reading | None, at: float, colour: str, name: str) -> None:
    if reading is not None:
        value, low, high = (100 * number for number in reading.gain)
        axes.hlines(at, low, high, color=colour, linewidth=3, alpha=0.35)
        axes.plot([value], [at], "o", color=colour, ms=4, label=name)


def _bar(axes: Axes, share: Interval | None, at: float, colour: str, name: str) -> None:
    if share is not None:
        value, low, high = (100 * number for number in share)
        axes.barh(at, value, height=0.34, color=colour, alpha=0.75, label=name)
        axes.hlines(at, low, high, color="black", linewidth=1)
