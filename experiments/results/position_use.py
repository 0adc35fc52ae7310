"""From what interchange did to a word for each position code, by rules stated here. Needs no torch.

Positions are given the code of others, their content kept, in two directions.

- Noising: in a clean run positions get the code of others. The effect is the share of answers that
  are then those of the other positions.
- Denoising: in a run that does not know order one code is put back as it was. The effect is the
  share of answers that are then right.

Both effects are net of moves of the same size in directions drawn as the activations vary; what is
put back is also net of the run where order stays destroyed. Intervals are 95%, over sequences and
control draws. The p-value is the rank of the code's full move among those of control draws;
q-values hold the false-discovery rate over all verdicts of a run (Benjamini and Hochberg 1995).

- A direction says yes where all net effects are surely a tenth or more and q is at most 5%; no
  where one is surely less than a tenth; and is unsure otherwise.
- Positions that are too few for a code say no in both directions: there is nothing to move.
- Answers that a move breaks follow nothing. So noising and denoising that both say no mean *not
  used* only where the share that a move breaks is surely less than a tenth beyond the control's.
- A control that may break half of the answers or more hides what a move as large does. So *not
  used* and *redundant* ask that it surely breaks fewer; where no order matters, changes fewer.
- Of a code that no site is found to carry mostly noise is put back, which tells positions as the
  model never does. So noising alone decides: *not used* where it says no, breaks nothing, and has a
  control that hides nothing.
- Any few functions of the position tell a few positions apart. So of a smooth trend the share that
  follows it beyond as many random functions counts as its net effects do, where it was taken. There
  draws are few: such a trend is used where both directions say so, and never *contributes*.
- Three positions or fewer leave no irregular part: any code of them is a smooth trend. So that one
  is *undecided* where it is followed or comes back.
- Whatever loses the order of a text goes a part of any way. So on text a yes also asks that the
  code surely goes a tenth further than where it tells an unrelated order, as a share of what text
  in that order leaves of the way. That it does not is no *no*: order may be lost by the code.
- Text further on counts only where it says yes, where it changes predictions surely by less than a
  tenth of what another order does: place then matters too little beside order. Of surely less than
  a thousandth it does not count at all.
- *Redundant* asks that order is really destroyed where the code is put back: most of what order can
  tell is surely lost. Where most answers stay right, a code that comes back may only mend damage.
- *Not used* asks that a fifth of the right answers rest on order: those that an order-blind guesser
  would not get. Where fewer do, a tenth of all answers can hardly follow anything.

| noising | denoising | word |
| --- | --- | --- |
| yes | yes | used |
| yes | no, or unsure | contributes: that it is enough alone is not shown |
| no, its control hides nothing | yes | redundant: another code stands in for it |
| the same, and breaks nothing | no | not used |
| any other | | undecided |

The mean residual is the sum of two halves, a smooth trend and an irregular part. A model may need
both at once: then neither does anything alone. So a half that this table neither calls used nor
redundant is used as well where the mean residual is, and where in both directions the whole surely
does a tenth or more beyond the other half alone. A smooth trend has to add a tenth beyond what as
many random functions add, too.

A smooth trend is called counting only where 1/m predicts later positions from the first ones surely
better than a constant, t, log m and a slow cosine do; through the whole stream, where it does so at
each single site at which the trend is used, and there is one; where codes are moved through the
whole stream alone, at each site of the stream that carries it.

A model that does not surely know order gets no word but `has not learned order`
(`experiments.results.task_use.without_order`). Which of these rules were set after runs had been
seen, and after which, stands in docs/verdict/late-rules.md.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from experiments.results.intervals import Interval
from experiments.results.worth import WORTH_NAMING
from probes.bootstrap import benjamini_hochberg
from probes.code_names import COUNTING, IRREGULAR, MEAN_RESIDUAL, SMOOTH

FALSE_DISCOVERIES = 0.05
# Twice the share that must follow.
MUST_REST_ON_ORDER = 2 * WORTH_NAMING

# A control that breaks so large a share of the answers hides what the code does.
HIDES = 0.5


class Word(StrEnum):
    """What is said of a code at a site."""

    USED = "used"
    CONTRIBUTES = "contributes"
    NOT_USED = "not used"
    REDUNDANT = "redundant"
    UNDECIDED = "undecided"
    NO_ORDER = "has not learned order"


# In which order codes are shown; of several words of one code the first counts.
STRONGEST = (
    Word.USED,
    Word.CONTRIBUTES,
    Word.REDUNDANT,
    Word.UNDECIDED,
    Word.NOT_USED,
    Word.NO_ORDER,
)


@dataclass(frozen=True)
class Effect:
    """What came of moving a code, or of putting it back.

    Attributes:
        net: the share of answers, 0 to 1, that follow, less that of the control: value, low, high.
        p: the share of control draws that do at least as much as the code.
        q: the same under the false-discovery rate of a run, as `controlled` gives it.
        beyond: the share that follows, less that where nothing is moved; None where that is none.
        particular: of a smooth trend the share that follows, less that which follows as many random
            functions of the position; None of other codes, and where it was not taken.
        this_order: on text how much further it goes than where the code tells an unrelated order,
            as a share of what text in that order leaves of the way; None on tasks.
        broken: the share that goes neither way, less that of the control; None where a code is put
            back.
        control_breaks: the share that goes neither way under the control, 0 to 1, at the upper end
            of its interval; 0 where a code is put back.
    """

    net: Interval
    p: float
    q: float = float("nan")
    beyond: Interval | None = None
    particular: Interval | None = None
    this_order: Interval | None = None
    broken: Interval | None = None
    control_breaks: float = 0.0

    @property
    def says(self) -> bool | None:
        """Yes, no, or None for unsure."""
        if any(high < WORTH_NAMING for _, _, high in self._nets.values()):
            return False
        # What another order does as well may yet depend on the code: that says no yes, and no no.
        surely = all(low >= WORTH_NAMING for _, low, _ in self._asked)
        return True if surely and self.q <= FALSE_DISCOVERIES else None

    @property
    def least(self) -> Interval:
        """What is shown: the least of what has to be a tenth."""
        return min(self._asked)

    @property
    def _nets(self) -> dict[str, Interval]:
        """What follows beyond each thing that it is held against."""
        nets = {
            "a random change": self.net,
            "nothing put back": self.beyond,
            "random functions": self.particular,
        }
        return {against: net for against, net in nets.items() if net is not None}

    @property
    def _asked(self) -> list[Interval]:
        more = [] if self.this_order is None else [self.this_order]
        return [*self._nets.values(), *more]

    @property
    def unsure(self) -> str:
        """Why it says neither yes nor no, in words; empty where it says one of them."""
        if self.says is not None:
            return ""
        for against, (_, low, _) in self._nets.items():
            if low < WORTH_NAMING:
                # What is shown may be another comparison, which alone does not make it unsure.
                shown = self.least[1] < WORTH_NAMING <= self.least[2]
                return f"its interval {'' if shown else f'against {against} '}contains 10%"
        wide = any(low < WORTH_NAMING for _, low, _ in self._asked)
        return _ANOTHER if wide else _RANKED

    @property
    def may_break(self) -> bool:
        """Whether the move may break a tenth of what its control leaves whole."""
        return self.broken is not None and self.broken[2] >= WORTH_NAMING

    @property
    def hidden(self) -> bool:
        """Whether the control may break half of the answers."""
        return self.control_breaks >= HIDES

    @property
    def why_not_cleared(self) -> str:
        """Why what follows nothing may yet be used, in words; empty where it may not."""
        if self.hidden:
            why = f"a random move as large may break {min(1, self.control_breaks):.0%}"
        elif self.may_break:
            why = "what it breaks, minus its control, may reach 10%"
        else:
            return ""
        return f"surely followed less than 10%, but {why}"


@dataclass(frozen=True)
class Use:
    """What noising and denoising of one code at one site, or through the whole stream, came to.

    Attributes:
        code: what was moved.
        layer, site: where; layer -1 stands for the whole stream.
        moved: the positions that were moved.
        noising, denoising: the effects; None where positions are too few for the code.
        counts: whether 1/m predicts what a smooth trend is at positions beyond those that it was
            fitted on, surely better than each other trend of its rank.
        found: whether a test found the code at any of the sites.
        adds: of a half of a mean residual that is used, what the whole does beyond the other half
            alone, in noising and in denoising: shares of answers. Of a smooth trend also what that
            is beyond random functions. None of all others.
        destroyed: whether order is surely destroyed where the code is put back.
        rests_on_order: the share of right answers that an order-blind guesser would not get.
        any_code: whether positions are so few that any code of them is a smooth trend.
    """

    code: str
    layer: int
    site: str
    moved: str
    noising: Effect | None
    denoising: Effect | None
    counts: bool = False
    found: bool = True
    adds: tuple[Interval, ...] | None = None
    destroyed: bool = True
    rests_on_order: float = 1.0
    any_code: bool = False

    @property
    def name(self) -> str:
        """What the code is called: counting where a smooth trend counts."""
        return COUNTING if self.counts else self.code

    @property
    def word(self) -> Word:
        """By the table above, and the rule of halves."""
        if self.noising is None or self.denoising is None:
            return Word.NOT_USED
        alone = _WORDS.get((self.noising.says, self.denoising.says), Word.UNDECIDED)
        shown = not self.noising.why_not_cleared and self.rests_on_order >= MUST_REST_ON_ORDER
        if not self.found:
            return Word.NOT_USED if self.noising.says is False and shown else Word.UNDECIDED
        if alone is Word.NOT_USED and not shown:
            alone = Word.UNDECIDED
        if alone is Word.CONTRIBUTES and self.noising.particular is not None:
            alone = Word.UNDECIDED
        if alone is Word.REDUNDANT and (self.noising.hidden or not self.destroyed):
            alone = Word.UNDECIDED
        needed = self.adds is not None and all(low >= WORTH_NAMING for _, low, _ in self.adds)
        word = Word.USED if alone in _NO_ANSWER and needed else alone
        return Word.UNDECIDED if self.any_code and word is not Word.NOT_USED else word

    @property
    def why(self) -> str:
        """Why the word is `undecided`, in words; empty where it is another one."""
        if self.word is not Word.UNDECIDED or self.noising is None or self.denoising is None:
            return ""
        if self.any_code:
            return "any code of so few positions is a smooth trend"
        cleared_otherwise = self.denoising.says is False or not self.found
        too_few = self.rests_on_order < MUST_REST_ON_ORDER
        if self.noising.says is False and cleared_otherwise and too_few:
            return (
                f"only {self.rests_on_order:.0%} of the right answers rest on order: too few to "
                "say that none follow"
            )
        if not self.found:
            why = self.noising.why_not_cleared if self.noising.says is False else ""
            return why or "found at no site; still, moving it at all of them may change answers"
        if self.noising.says:
            return (
                "followed; of few positions that is not enough: random functions are followed, too"
            )
        if self.noising.says is False and self.denoising.says and self.destroyed:
            return self.noising.why_not_cleared
        if self.noising.says is False and self.denoising.says:
            return "answers come back with it, but most were right without: order was not destroyed"
        unsure = {"moved": self.noising.unsure, "put back": self.denoising.unsure}
        told = [f"{direction}: {why}" for direction, why in unsure.items() if why]
        return "; ".join(told) or self.noising.why_not_cleared


_WORDS: dict[tuple[bool | None, bool | None], Word] = {
    (True, True): Word.USED,
    (True, False): Word.CONTRIBUTES,
    (True, None): Word.CONTRIBUTES,
    (False, True): Word.REDUNDANT,
    (False, False): Word.NOT_USED,
}
_RANKED = "too many controls do as much"
_ANOTHER = "an unrelated order may do as much"
_NO_ANSWER = (Word.CONTRIBUTES, Word.NOT_USED, Word.UNDECIDED)


def controlled(uses: Sequence[Use]) -> list[Use]:
    """The same uses, with the q-values of all their effects taken together.

    Args:
        uses: all of a run.

    Returns:
        As many, in their order.
    """
    effects = [effect for use in uses for effect in (use.noising, use.denoising) if effect]
    q_values = iter(benjamini_hochberg(np.array([effect.p for effect in effects])).tolist())

    def found(effect: Effect | None) -> Effect | None:
        return effect and replace(effect, q=next(q_values))

    return [
        replace(use, noising=found(use.noising), denoising=found(use.denoising)) for use in uses
    ]


def of_halves(uses: Sequence[Use]) -> list[Use]:
    """The same, where each half of a mean residual knows of the whole and of the other half.

    What a half adds counts only where the whole is used. Where positions are too few for an
    irregular part, nothing tells a smooth trend from any other code.

    Args:
        uses: of a run.

    Returns:
        As many, in their order.
    """
    by_place = {(use.code, use.moved, use.layer, use.site): use for use in uses}

    def known(use: Use) -> Use:
        whole, irregular = (
            by_place.get((code, use.moved, use.layer, use.site))
            for code in (MEAN_RESIDUAL, IRREGULAR)
        )
        adds = use.adds if whole is not None and whole.word is Word.USED else None
        alone = irregular is not None and irregular.noising is None
        return replace(use, adds=adds, any_code=alone and use.code == SMOOTH)

    return [known(use) for use in uses]


def worth_following(
    uses: Sequence[Use], short: Collection[str], nothing: Collection[str] = ()
) -> list[Use]:
    """The same without moves along ways that are too short, but for those that are followed.

    Args:
        uses: of a run.
        short: the positions that are moved there, in words.
        nothing: those that are moved along ways so short that there is nothing to follow.

    Returns:
        As many, or fewer, in their order.
    """
    yes = (Word.USED, Word.CONTRIBUTES)
    some = [use for use in uses if use.moved not in nothing]
    return [use for use in some if use.moved not in short or use.word in yes]


def strongest(words: Sequence[Word]) -> Word:
    """What is said of a code of which several positions were moved, each by itself.

    Args:
        words: one for each of them.

    Returns:
        `used` where any is, else `contributes`, `redundant`, `undecided`, `not used`.
    """
    return min(words, key=STRONGEST.index)


def telling(by_code: Mapping[str, Sequence[Use]]) -> dict[str, tuple[Effect, Effect]]:
    """What is shown of each code beside its word, of which several positions were moved.

    Args:
        by_code: all uses of each code.

    Returns:
        Noising and denoising of one of the moves that gave the word, the one that is followed
        most; without codes of which there is nothing to move.
    """
    found: dict[str, tuple[Effect, Effect]] = {}
    for code, uses in by_code.items():
        word = strongest([use.word for use in uses])
        both = [
            (use.noising, use.denoising)
            for use in uses
            if use.word is word and use.noising is not None and use.denoising is not None
        ]
        if both:
            found[code] = max(both, key=lambda pair: pair[0].least)
    return found
