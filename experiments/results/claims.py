"""What each paper says, and the test that decides whether a run shows it. Imports nothing heavy.

A claim comes down to one number. It is reproduced where the number's whole 95% interval lies within
bounds that stand here, before any run; the bounds are ours, and so is their width.
"""

import math
import re
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from experiments.results.measured import Measured
from nope_interp.errors import unknown_name

VERIFIED = "read in the paper's abstract"
SECOND_HAND = "read in others' summaries of the paper"
RECALLED = "recalled, unverified"
OURS = "ours: derived here, not the paper's"

BEFORE = "before the first run"
PILOTS = "before the first run; sizes were chosen in pilots on another seed"
SETTING_LATER = "before the first run; the setting was changed after one"
AFTER = "after a run had been seen"

_NORMAL = NormalDist()
# A run sees, four times in five, a difference of so many half widths of its 95% interval.
_TAIL = 0.025
_HALF_WIDTHS = 1 + _NORMAL.inv_cdf(0.8) / _NORMAL.inv_cdf(0.975)

Verdict = Literal[
    "reproduced",
    "reproduced small",
    "uncertain",
    "contradicted",
    "contradicted small",
    "not measured",
    "not testable here",
]
# Of runs with fewer seeds than by default, or at smaller sizes.
_SMALL: dict[Verdict, Verdict] = {
    "reproduced": "reproduced small",
    "contradicted": "contradicted small",
}
SIZES = ("width", "length", "depth", "training")
# Said of what lies within its bound by less than would matter.
TOO_LITTLE = "too little to matter"
# From fewer units a spread is too uncertain to say how many would do: of three, by a factor of ten.
_FEWEST = 5


@dataclass(frozen=True)
class Claim:
    """One statement and its test.

    Attributes:
        id: the name within its paper.
        says: the claim, in our words.
        source: where the paper makes it, or where it comes from.
        status: how sure that is: `VERIFIED`, `SECOND_HAND`, `RECALLED` or `OURS`.
        measure: what the number is.
        expected: what the number is if the claim holds exactly; NaN where a bound says it all.
        low: the test's lower bound, the whole interval to lie above it.
        high: its upper bound, the whole interval to lie below it.
        differs: how this setting differs from the paper's.
        published: numbers of the paper, tagged, that the measure can be held against loosely.
        needs: what a run has to be given for this to be measured.
        bounds_set: when its bounds were: `BEFORE`, `PILOTS`, `SETTING_LATER` or `AFTER`.
        over: what its interval is over.
        matters: the least difference from the bound that would matter, where `expected` and the
            bound do not say it.
        size_needed: the size of a run that could test it, in words, where none of ours can.
    """

    id: str
    says: str
    source: str
    status: str
    measure: str
    bounds_set: str
    expected: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    differs: str = ""
    published: str = ""
    needs: str = ""
    over: str = "seeds"
    matters: float = math.nan
    size_needed: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is a question of ours, so that it does not count for or against the paper."""
        return self.status == OURS

    @property
    def effect(self) -> float:
        """The least difference from the bound that would matter; NaN where none is known.

        Where none is given it is what is expected less the nearest bound: a run that does not see
        so much cannot show what the claim says, even where it is true.
        """
        if not math.isnan(self.matters):
            return self.matters
        return min(abs(self.expected - self.low), abs(self.expected - self.high))

    @property
    def test(self) -> str:
        """The test in words."""
        if math.isinf(self.low):
            return f"reproduced where the 95% interval lies below {self.high:g}"
        if math.isinf(self.high):
            return f"reproduced where the 95% interval lies above {self.low:g}"
        return f"reproduced where the 95% interval lies from {self.low:g} to {self.high:g}"

    def verdict(self, value: float, ci_low: float, ci_high: float) -> Verdict:
        """What the test says of a measured number; NaN stands for one that could not be taken.

        Args:
            value: the number.
            ci_low: where its 95% interval begins.
            ci_high: where it ends.

        Returns:
            Reproduced where the interval lies within the bounds, contradicted where it lies outside
            of them, uncertain where it crosses one.
        """
        if math.isnan(value):
            return "not measured" if self.needs else "not testable here"
        above = math.isinf(self.low) or self.low < ci_low
        if above and (math.isinf(self.high) or ci_high < self.high):
            return "reproduced"
        return "contradicted" if ci_high < self.low or ci_low > self.high else "uncertain"


@dataclass(frozen=True)
class Paper:
    """A paper and what of it can be run.

    Attributes:
        name: as `nope-interp reproduce` takes it.
        citation: authors, year, title, arXiv number.
        claims: in reading order.
        n_seeds: how many are run unless the user says.
        sizes: which of `SIZES` its experiment can be multiplied in.
        default: the default sizes, in words.
        paper_sizes: the options that come nearest to the paper's own sizes, with their status.
        on_device: whether its models run on other devices than the CPU.
        presets: names of the sizes at which its comparison of trained models can be run.
        reads_model: whether it reads one more model, of the user's choice.
    """

    name: str
    citation: str
    claims: tuple[Claim, ...]
    n_seeds: int
    sizes: tuple[str, ...]
    default: str
    paper_sizes: str
    on_device: bool = False
    presets: tuple[str, ...] = ()
    reads_model: bool = False

    @property
    def title(self) -> str:
        """What the paper is called."""
        return self.citation.split(f" {self.year}, ", 1)[1].rsplit(", arXiv", 1)[0]

    @property
    def short(self) -> str:
        """How a text refers to it: its first author and year."""
        first, *others = self.citation.split(f" {self.year}, ", 1)[0].split(", ")
        return f"{first} et al. {self.year}" if others else f"{first} {self.year}"

    @property
    def year(self) -> str:
        """When it came out."""
        found = re.search(r"\b(?:19|20)\d\d\b", self.citation)
        assert found is not None, f"the citation of {self.name} names no year"
        return found[0]

    def claim(self, id: str) -> Claim:
        """The claim of that name; raises UserError, with the nearest right name, where none is."""
        for claim in self.claims:
            if claim.id == id:
                return claim
        raise unknown_name(f"claim of {self.name}", id, [claim.id for claim in self.claims])


NOT_MEASURED = Measured(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Outcome:
    """A claim, what was measured for it, and what its test says.

    Attributes:
        claim: what is tested.
        found: the number.
        reduced: whether the run that measured it was smaller than by default, in seeds or sizes.
    """

    claim: Claim
    found: Measured
    reduced: bool = False

    @property
    def verdict(self) -> Verdict:
        """By the claim's test, where a run of this size can test it."""
        if self.by_bounds != "not measured" and self.size_needed:
            return "not testable here"
        return self.by_bounds

    @property
    def by_bounds(self) -> Verdict:
        """What the claim's bounds alone say, whatever size would be needed."""
        found = self.claim.verdict(self.found.value, self.found.ci_low, self.found.ci_high)
        return _SMALL.get(found, found) if self.reduced else found

    @property
    def difference(self) -> float:
        """Measured less expected; NaN where the claim is a bound."""
        return self.found.value - self.claim.expected

    @property
    def visible(self) -> float:
        """The difference from a bound that a run of this size sees four times in five.

        It is the half width of the interval times 1 + 0.84 / 1.96, by the normal law: a true value
        so far from the bound has its whole 95% interval on one side in 80% of runs.
        """
        return _HALF_WIDTHS * (self.found.ci_high - self.found.ci_low) / 2

    @property
    def sees_enough(self) -> bool | None:
        """Whether it sees the least difference that would matter; None where either is unknown."""
        if math.isnan(self.visible) or not math.isfinite(self.claim.effect):
            return None
        return self.visible <= self.claim.effect

    @property
    def too_small(self) -> bool:
        """Whether it lies within its one bound, and surely nearer to that than would matter."""
        claim, found = self.claim, self.found
        one_bound = math.isinf(claim.low) != math.isinf(claim.high)
        beyond = min(found.ci_high - claim.low, claim.high - found.ci_low)
        return self.by_bounds.startswith("reproduced") and one_bound and beyond < claim.matters

    @property
    def said(self) -> str:
        """The verdict, and whether what was found is too small to matter."""
        return f"{self.verdict}, {TOO_LITTLE}" if self.too_small else self.verdict

    @property
    def size_needed(self) -> str:
        """The size of a run that could test the claim; nothing where this one did.

        Where an interval crosses a bound and is too wide for what matters, it is as many units as
        would bring the visible difference down to it. That falls as their square root, and faster
        from few, whose intervals are drawn out. The fewest cannot tell how many.
        """
        claim, units = self.claim, self.found.n
        if claim.size_needed:
            return claim.size_needed
        if self.by_bounds != "uncertain" or self.sees_enough is not False:
            return ""
        if math.isinf(self.visible):
            return ""
        if units < _FEWEST:
            return f"more {claim.over} than {units}, which are too few to tell how many"
        return f"{self._units_needed():,} {claim.over} in place of {units}"

    def _units_needed(self) -> int:
        from probes.bootstrap import few_sequences  # which brings SciPy

        def drawn_out(n: int) -> float:
            return few_sequences(_TAIL, n) if n > 1 else 1.0

        # Of so many the interval is narrow enough if few were drawn out no more than these.
        units = self.found.n
        alone = self.visible / self.claim.effect * math.sqrt(units) / drawn_out(units)
        wanted = max(2, math.ceil(alone**2))
        while math.sqrt(wanted) < alone * drawn_out(wanted):
            wanted += 1
        return wanted
