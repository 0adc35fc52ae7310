"""What each paper says, and the test that decides whether a run shows it. Imports nothing heavy.

A claim comes down to one number. It is reproduced where the number's whole 95% interval lies within
bounds that stand here, before any run; the bounds are ours, and so is their width.
"""

import math
from dataclasses import dataclass
from typing import Literal

from nope_interp.errors import unknown_name

VERIFIED = "read in the paper's abstract"
SECOND_HAND = "read in others' summaries of the paper"
RECALLED = "recalled, unverified"
OURS = "ours: derived here, not the paper's"

Verdict = Literal["reproduced", "not reproduced", "not testable here"]
SIZES = ("width", "length", "depth", "training")


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
    """

    id: str
    says: str
    source: str
    status: str
    measure: str
    expected: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    differs: str = ""
    published: str = ""

    @property
    def test(self) -> str:
        """The test in words."""
        if math.isinf(self.low):
            return f"the 95% interval lies below {self.high:g}"
        if math.isinf(self.high):
            return f"the 95% interval lies above {self.low:g}"
        return f"the 95% interval lies from {self.low:g} to {self.high:g}"

    def verdict(self, value: float, ci_low: float, ci_high: float) -> Verdict:
        """What the test says of a measured number; NaN stands for one that could not be taken."""
        if math.isnan(value):
            return "not testable here"
        return "reproduced" if self.low <= ci_low <= ci_high <= self.high else "not reproduced"


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
    """

    name: str
    citation: str
    claims: tuple[Claim, ...]
    n_seeds: int
    sizes: tuple[str, ...]
    default: str
    paper_sizes: str
    on_device: bool = False

    def claim(self, id: str) -> Claim:
        """The claim of that name; raises UserError, with the nearest right name, where none is."""
        for claim in self.claims:
            if claim.id == id:
                return claim
        raise unknown_name(f"claim of {self.name}", id, [claim.id for claim in self.claims])


CHI_2023 = Paper(
    name="chi2023",
    citation="Chi, Fan, Chen, Rudnicky, Ramadge 2023, Latent positional information is in the "
    "self-attention variance of transformer language models without positional embeddings, "
    "arXiv 2305.13571",
    claims=(
        Claim(
            "steps",
            "After every step of a random model's first layer (embedding, norm, query, key, value, "
            "scaled logit, attention weight, head output, output projection, residual) the "
            "components have the variance that the formulas predict.",
            "the lemmas on one layer; formulas here with softmax noise and norm epsilon added",
            f"{RECALLED}; the corrections are {OURS}",
            "largest relative deviation of the measured variance from the predicted one, over all "
            "steps and a ladder of positions",
            expected=0,
            high=0.1,
            differs="Tokens of one sequence are all different, since repeated ones stop the "
            "fall. The sample at early positions was enlarged after a first run had been too noisy "
            "to tell.",
        ),
        Claim(
            "inverse",
            "The variance of a random layer's attention output falls as 1/m with the number m of "
            "tokens seen.",
            "abstract; the exponent from the lemma on the output",
            f"{VERIFIED} that it shrinks; the exponent is {RECALLED}",
            "slope of log variance over log m at the first layer's attention output",
            expected=-1,
            low=-1.1,
            high=-0.9,
        ),
        Claim(
            "every-layer",
            "The residual stream's variance shrinks with position after every layer.",
            "abstract; the figure by layer",
            f"{VERIFIED} for the model as a whole; by layer {RECALLED}",
            "variance at the last position over that at the first, after the layer where it "
            "shrinks least",
            high=0.9,
        ),
        Claim(
            "layers",
            "The covariance recursion predicts the variance in every layer, not only the first.",
            "derived here; the paper derives one layer",
            OURS,
            "largest relative deviation of the measured variance from the predicted one, over "
            "attention outputs and blocks of all layers and a ladder of positions",
            expected=0,
            high=0.1,
        ),
        Claim(
            "widths",
            "The law of the attention output holds across widths d and weight spreads s.",
            "the formula d² s⁴ / m",
            f"{RECALLED}; the sweep is ours",
            "largest relative deviation of the measured variance from the predicted one, over the "
            "sweep and a ladder of positions",
            expected=0,
            high=0.15,
            differs="Spreads are those at which a logit's variance stays below 0.5: above it the "
            "formulas warn.",
        ),
        Claim(
            "bidirectional",
            "Without the causal mask the variance does not depend on position.",
            "the comparison with a BERT-style model",
            RECALLED,
            "slope of log variance over log position at the first layer's attention output, "
            "bidirectional model",
            expected=0,
            low=-0.02,
            high=0.02,
        ),
        Claim(
            "post-norm",
            "With the norm after the residual the scale of a row, and with it the cue, is gone.",
            "follows from what a norm does",
            OURS,
            "slope of log variance over log m after the last layer, post-norm model",
            expected=0,
            low=-0.02,
            high=0.02,
        ),
        Claim(
            "probe",
            "A two-layer probe reads position from the frozen random causal model.",
            "abstract; the figure of the mean absolute error by layer",
            f"{VERIFIED} that position is held; the error is {RECALLED}",
            "mean absolute error of the probe after its best layer, as a share of chance (L/4)",
            high=0.5,
            differs="Width 512, 64 positions, 256 sequences of uniform tokens from a vocabulary of "
            "1000 to fit on, chosen after a smaller probe had been seen at chance; "
            "--training gives more of them.",
            published=f"about 40 of 128 at 512 positions, a share of 0.3 ({RECALLED})",
        ),
        Claim(
            "probe-small-vocabulary",
            "It does so where sequences repeat tokens of a small vocabulary, whose mean is a "
            "constant that averaging leaves.",
            "derived here",
            OURS,
            "mean absolute error of the probe after its best layer, as a share of chance (L/4)",
            high=0.5,
            differs="As above, with a vocabulary of 64, chosen after a pilot on seed 0.",
        ),
        Claim(
            "probe-bidirectional",
            "The probe is at chance in the bidirectional model.",
            "the figure of the mean absolute error by layer",
            RECALLED,
            "mean absolute error of the probe after its best layer, as a share of chance (L/4)",
            expected=1,
            low=0.95,
            differs="As above, with a vocabulary of 64.",
            published=f"near 128 at 512 positions, a share of 1 ({RECALLED})",
        ),
        Claim(
            "pretrained",
            "The shrinkage is still there in a fully pretrained NoPE model.",
            "abstract",
            VERIFIED,
            "variance at the last position over that at the first, after the layer where it "
            "shrinks least, pretrained model",
            high=0.9,
            differs="No pretrained NoPE model comes with this project: read one of yours with "
            "`nope-interp compare --model`.",
        ),
    ),
    n_seeds=20,
    sizes=("width", "length", "depth", "training"),
    default="width 768, 12 heads, 512 positions, 6 layers; probes at width 512, 64 positions, 3 "
    "layers",
    paper_sizes=f"--depth 2 gives 12 layers ({RECALLED})",
    on_device=True,
)

KOUTNIK_2014 = Paper(
    name="koutnik2014",
    citation="Koutnik, Greff, Gomez, Schmidhuber 2014, A Clockwork RNN, arXiv 1402.3511",
    claims=(
        Claim(
            "against-rnn",
            "A Clockwork RNN generates a sequence better than a simple RNN with as many "
            "parameters.",
            "abstract; the table on audio generation",
            f"{VERIFIED}; the numbers are {RECALLED}",
            "NMSE of the Clockwork RNN less that of the RNN, on the same waveforms",
            high=0,
            differs="Sums of four sines in place of audio; Adam; the same number of steps.",
            published=f"NMSE 0.007 against 0.46, on audio ({RECALLED})",
        ),
        Claim(
            "against-lstm",
            "It also generates better than an LSTM with as many parameters.",
            "abstract; the table on audio generation",
            f"{VERIFIED}; the numbers are {RECALLED}",
            "NMSE of the Clockwork RNN less that of the LSTM, on the same waveforms",
            high=0,
            differs="Sums of four sines in place of audio; Adam; the same number of steps.",
            published=f"NMSE 0.007 against 0.04, on audio ({RECALLED})",
        ),
        Claim(
            "clocks",
            "Slow modules tell time at longer scales than fast ones, as low rotary frequencies do.",
            "not in the paper: an analogy, put to a test here",
            OURS,
            "rank correlation between a module's period and the scale that it tells best, less "
            "that of modules which pick one of the scales in their reach at random",
            low=0,
            differs="The trained network on a noisy input. Scales that divide the period are out "
            "of a module's reach, which alone makes slow modules tell longer ones: that was seen "
            "in a first run and is now part of chance.",
        ),
        Claim(
            "words",
            "It classifies spoken words with fewer errors than RNN and LSTM.",
            "abstract; TIMIT",
            VERIFIED,
            "word error of the Clockwork RNN less that of the LSTM",
            high=0,
            differs="TIMIT cannot be had here.",
            published=f"16.8% against 34.2% and 66.8% ({RECALLED})",
        ),
    ),
    n_seeds=5,
    sizes=("width", "training"),
    default="64 hidden units in 8 modules (2497 parameters), 320 samples, 800 steps",
    paper_sizes=f"about 1000 parameters at most, so the default is larger ({RECALLED})",
)

BARBERO_2024 = Paper(
    name="barbero2024",
    citation="Barbero, Vitvitskyi, Perivolaropoulos, Pascanu, Velickovic 2024, Round and round we "
    "go! What makes rotary positional encodings useful?, arXiv 2410.06205",
    claims=(
        Claim(
            "diagonal",
            "For every eps there are rotary weights that make a diagonal head sharper than "
            "1 - eps.",
            "the proposition on rotary positional heads",
            RECALLED,
            "smallest weight on the query itself, of 512 queries of a built head that should have "
            "0.999",
            expected=0.999,
            low=0.998,
        ),
        Claim(
            "previous-token",
            "And a previous-token head.",
            "the proposition on rotary positional heads",
            RECALLED,
            "smallest weight on the token before, of 511 queries of a built head that should have "
            "0.999",
            expected=0.999,
            low=0.998,
        ),
        Claim(
            "top-frequency",
            "The highest frequency alone makes no sharp head at moderate norms, because some "
            "distances nearly complete full turns.",
            "derived here",
            OURS,
            "weight of the last of 512 queries on itself, highest frequency alone, at the norm "
            "that is enough with all frequencies",
            high=0.5,
        ),
        Claim(
            "impossible",
            "Without positions a head gives copies of one token equal weight in the first layer, "
            "whatever its weights, so it is no positional head.",
            "the proposition on NoPE",
            f"{SECOND_HAND}; its exact wording is {RECALLED}",
            "largest difference of the weights on copies in the first layer, over random and "
            "trained models",
            expected=0,
            high=1e-7,
        ),
        Claim(
            "deeper",
            "Deeper layers escape this through the causal mask, where something else came before "
            "the copies.",
            "derived here",
            OURS,
            "largest difference of the weights on copies in the last layer, trained models",
            low=1e-4,
            differs="Four layers trained for a few hundred steps on text.",
        ),
        Claim(
            "learned-nope",
            "Gradient descent finds no previous-token head without positions.",
            "follows from the proposition, for one layer",
            OURS,
            "held-out accuracy of naming the token before, less what guessing without order "
            "reaches, on repeated tokens, NoPE",
            high=0.02,
        ),
        Claim(
            "learned-rope",
            "With rotary positions it does.",
            "follows from the proposition, for one layer",
            OURS,
            "held-out accuracy of naming the token before, on repeated tokens, RoPE",
            expected=1,
            low=0.95,
        ),
        Claim(
            "frequencies",
            "Gemma uses its highest frequencies for a few positional heads and its lowest most, "
            "for content.",
            "abstract; the figures of norm by frequency",
            VERIFIED,
            "share of queries' and keys' norm on the lower half of the frequencies",
            low=0.5,
            differs="Needs a pretrained model: `nope-interp heads google/gemma-3-270m` shows the "
            "norms by frequency.",
        ),
        Claim(
            "p-rope",
            "Leaving out the lowest rotary frequencies helps a language model.",
            "abstract; the table of validation perplexity",
            VERIFIED,
            "validation loss of 0.75-RoPE less that of RoPE",
            high=0,
            differs="The paper trains models of two thousand million parameters.",
            published=f"perplexity 4.441 against 4.463 on Wikipedia ({RECALLED})",
        ),
    ),
    n_seeds=3,
    sizes=("training",),
    default="head width 64, base 10,000, 512 positions; one trained layer of width 64, 24 tokens, "
    "400 steps",
    paper_sizes="constructions have no size of the paper's; its language models do not fit",
)

KAZEMNEJAD_2023 = Paper(
    name="kazemnejad2023",
    citation="Kazemnejad, Padhi, Natesan Ramamurthy, Das, Reddy 2023, The impact of positional "
    "encoding on length generalization in transformers, arXiv 2305.19466",
    claims=(
        Claim(
            "theorem-1-inverse",
            "There are weights whose first attention layer writes 1/m into the stream.",
            "Theorem 1, appendix",
            f"{SECOND_HAND}; the attention matrices are filled in here",
            "largest difference of component 3 after attention from 1/m",
            expected=0,
            high=1e-6,
            differs="No norm, as in the proof; double precision.",
        ),
        Claim(
            "theorem-1",
            "And whose first MLP turns it into m, the absolute position.",
            "Theorem 1, appendix",
            f"{SECOND_HAND}; the MLP's 1/x is fitted here by least squares",
            "largest difference of component 3 after the MLP from m",
            expected=0,
            high=1e-3,
            differs="An MLP as wide as the context is long; a narrower one is less exact.",
        ),
        Claim(
            "theorem-2",
            "There are weights whose second layer scores content plus the distance m - n.",
            "Theorem 2, appendix",
            f"{SECOND_HAND}; the matrices are filled in here",
            "largest difference of the scores from content + (m - n)",
            expected=0,
            high=1e-3,
        ),
        Claim(
            "length-generalisation",
            "Trained on short sequences, NoPE does best on longer ones on average.",
            "abstract; figure 1",
            VERIFIED,
            "mean reciprocal rank of NoPE less that of the next best encoding",
            low=0,
            differs="Not part of this run, which builds the theorems only.",
            published="mean reciprocal rank 0.69 against 0.55 for T5 (read in its notebook)",
        ),
    ),
    n_seeds=5,
    sizes=("length",),
    default="64 positions, width 16, 2 heads",
    paper_sizes="the theorems have no size",
)

ZUO_2025 = Paper(
    name="zuo2025",
    citation="Zuo, Guerzhoy, Guerzhoy 2025, Position information emerges in causal transformers "
    "without positional encodings via similarity of nearby embeddings, arXiv 2501.00073",
    claims=(
        Claim(
            "every-layer",
            "After every layer of a random causal model nearby rows have the higher cosine.",
            "abstract",
            f"{VERIFIED}; the score's exact formula could not be checked",
            "adjacency A after the block where it is lowest",
            low=0.5,
            differs="Random models only; adjacency A, B and C are our three candidates.",
        ),
        Claim(
            "embedding",
            "The input embedding shows no such pattern.",
            "abstract",
            VERIFIED,
            "adjacency A of the embedding",
            expected=0.5,
            low=0.48,
            high=0.52,
        ),
        Claim(
            "first-layer",
            "The first causal attention layer makes the pattern.",
            "the theoretical part",
            SECOND_HAND,
            "adjacency A of the first attention output",
            low=0.9,
        ),
        Claim(
            "cosine-law",
            "There the cosine of rows i and j, i before j, is nearly sqrt(i/j), less softmax "
            "noise.",
            "derived here; the paper argues for the same fall",
            OURS,
            "largest difference of the mean cosine from the law",
            expected=0,
            high=0.05,
        ),
        Claim(
            "bidirectional",
            "Without the causal mask there is no pattern.",
            "follows from the symmetry that the authors' earlier paper describes",
            SECOND_HAND,
            "largest distance of adjacency A from 0.5, over all sites",
            expected=0,
            high=0.03,
        ),
        Claim(
            "hyperparameters",
            "The pattern holds over a common range of depth, heads, width, length, vocabulary and "
            "initialisation.",
            "abstract",
            f"{VERIFIED}; the ranges are {RECALLED}",
            "adjacency A after the block where it is lowest, in the setting where it is lowest",
            low=0.5,
            differs="The ranges are ours. Large and tiny spreads, no norm and no residual are on "
            "the map, and left out of this number.",
        ),
        Claim(
            "carriers",
            "A row's cosines are a more reliable carrier of position than its variance.",
            "the section on probes",
            SECOND_HAND,
            "error of position read from cosines over that from variance, mean over blocks",
            high=1,
            differs="Random models; our probes.",
        ),
        Claim(
            "trained",
            "The pattern is there in models trained on addition, reversal, indexing and ordering.",
            "abstract",
            VERIFIED,
            "adjacency A after the block where it is lowest, trained models",
            low=0.5,
            differs="Not part of this run, which reads random models only.",
        ),
    ),
    n_seeds=5,
    sizes=("width", "length", "depth"),
    default="6 layers, 6 heads, width 384, 64 positions, vocabulary 10,000, GPT-2's initialisation",
    paper_sizes=f"the default has the paper's depth, heads and width ({RECALLED})",
    on_device=True,
)

PAPERS = {
    paper.name: paper for paper in (CHI_2023, ZUO_2025, KAZEMNEJAD_2023, BARBERO_2024, KOUTNIK_2014)
}


def paper(name: str) -> Paper:
    """The paper of that name; raises UserError, with the nearest right name, where none is."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]


def papers_markdown() -> str:
    """`docs/papers.md`: every paper, its claims and their tests.

    `python -m experiments.reproduce.claims > docs/papers.md` writes it again.
    """
    parts = [
        "# Papers and their claims",
        "",
        "Written by `python -m experiments.reproduce.claims` from the registry that "
        "`nope-interp reproduce` runs.",
        "`nope-interp reproduce --list` says which of these claims a finished run of yours shows.",
        "",
        "Claims are in our words. The text of most papers could not be read here, so each claim "
        "says how sure its source is,",
        "and published numbers marked as recalled are no numbers to fail against. A claim comes "
        "down to one number, with a",
        "95% interval over seeds, and is *reproduced* where the whole interval lies within the "
        "bounds of its test; else it is",
        "*not reproduced*, or *not testable here* where the number cannot be taken. All tests, "
        "bounds and tolerances are ours.",
    ]
    for found in PAPERS.values():
        parts += ["", f"## {found.name}", "", f"{found.citation}.", ""]
        parts += [f"Run it with `nope-interp reproduce {found.name}`: {found.n_seeds} seeds; "]
        parts[-1] += f"{found.default}. Towards the paper's own sizes: {found.paper_sizes}."
        options = " ".join(f"`--{size}`" for size in found.sizes)
        parts += [f"Multiplied by {options}." if options else "", ""]
        for claim in found.claims:
            parts += [f"### {found.name}: {claim.id}", "", claim.says, ""]
            entries = {
                "Source": f"{claim.source} ({claim.status})",
                "Measured": claim.measure,
                "Reproduced where": claim.test,
                "Published": claim.published,
                "Differs from the paper": claim.differs,
            }
            parts += [f"- {name}: {text.rstrip('.')}." for name, text in entries.items() if text]
            parts += [""]
        parts.pop()
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(papers_markdown(), end="")
