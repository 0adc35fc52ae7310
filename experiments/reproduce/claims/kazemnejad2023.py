"""Kazemnejad et al. 2023: theorems, and length generalisation."""

from experiments.reproduce.claims.claim import SECOND_HAND, VERIFIED, Claim, Paper

PAPER = Paper(
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
            high=1e-6,
            differs="An MLP as wide as the context is long; a narrower one is less exact.",
        ),
        Claim(
            "theorem-2",
            "There are weights whose second layer scores content plus the distance m - n.",
            "Theorem 2, appendix",
            f"{SECOND_HAND}; the matrices are filled in here",
            "largest difference of the scores from content + (m - n)",
            expected=0,
            high=1e-6,
        ),
        Claim(
            "length-generalisation",
            "Trained on short sequences, NoPE does best on longer ones on average.",
            "abstract; figure 1",
            VERIFIED,
            "mean reciprocal rank of NoPE, by exact answers beyond the training lengths, less that "
            "of the next best encoding",
            low=0,
            differs="Models of 2 layers and width 64 on three of the ten tasks (copy in two "
            "variants, reverse, sort), trained on lengths 2 to 8 and tested up to 16; layer norm, "
            "scaled scores and biases, where the paper's model has none of them. A quarter of a "
            "head rotates, which is 2 frequencies here and 8 there. Only a task and a seed that "
            "every encoding learned are ranked. Tasks, initialisation and steps were chosen after "
            "pilot runs on another seed.",
            needs="--preset tiny",
            published="mean reciprocal rank 0.69 against 0.55 for T5 (read in its notebook)",
        ),
        Claim(
            "explicit-fail",
            "ALiBi, rotary and absolute positions are not well suited to longer sequences.",
            "abstract",
            VERIFIED,
            "mean exact answers beyond the training lengths of the best of the three, over those "
            "within",
            high=0.5,
            differs="The bound is ours.",
            needs="an experiment that is not written yet",
        ),
        Claim(
            "like-t5",
            "The attention of trained NoPE models resembles that of T5's relative bias most.",
            "abstract; the figure of divergences between attention patterns",
            VERIFIED,
            "divergence of NoPE's attention from T5's less that from the next nearest encoding's",
            high=0,
            needs="an experiment that is not written yet",
        ),
        Claim(
            "scratchpads",
            "Scratchpads do not help length generalisation on all tasks, and their format matters.",
            "abstract",
            VERIFIED,
            "exact answers beyond the training lengths with a scratchpad less those without, in "
            "the task where that is smallest",
            high=0,
            differs="The formats are there (`nope_interp.tasks.scratchpad`); no run compares them.",
            needs="an experiment that is not written yet",
        ),
    ),
    n_seeds=3,
    sizes=("length", "training"),
    presets=("tiny",),
    default="64 positions, width 16, 2 heads",
    paper_sizes="the theorems have no size",
)
