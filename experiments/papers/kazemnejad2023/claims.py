"""Kazemnejad et al. 2023: theorems, and length generalisation."""

from experiments.results.claims import OURS, SECOND_HAND, VERIFIED, Claim, Paper

_TINY = (
    "With the preset tiny: models of 2 layers and width 64 on five of the paper's seventeen "
    "variants of tasks (copy in two variants, reverse, sort, SCAN), trained on lengths 2 to 6 and "
    "tested up to 12; layer norm, scaled scores and biases, where the paper's model has none of "
    "them. Tasks, lengths, initialisation and steps were chosen after pilot runs on another seed. "
    "The presets small and paper were not tried out."
)
_CORRELATION = (
    "A correlation over encodings and seeds, so no cause is shown; its interval is over the five "
    "encodings."
)
_SCRATCHPADS = (
    "With the preset tiny: models of 2 layers and width 64 on three of the paper's tasks with "
    "scratchpads (parity, sort, LEGO) and three of its formats (none; all parts; computation and "
    "output), trained on lengths 2 to 4 and tested up to 8. Tasks, lengths and steps were chosen "
    "after pilot runs on another seed, for models to learn their task in minutes. The answer "
    "counts whatever the steps before it say: a mistake in them can still end in a right answer, "
    "and of two possible answers a guess is right half of the time. The presets small and paper "
    "were not tried out."
)
_PRESET = "--preset tiny, small or paper"
_WANG = "the abstract of Wang et al. 2024 (arXiv 2404.12224)"
_TUNED = (
    "Factors are chosen on other examples of the shorter half of the lengths beyond: models see "
    "no such example in training, but the choice of factors does. HeadScale is plain gradient "
    "descent here, without the paper's initialisation and constraint; small models on small tasks, "
    "where that paper extends language models."
)

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
            "of the next best encoding; interval over tasks",
            low=0,
            differs=f"{_TINY} A quarter of a head rotates, which is 2 frequencies in tiny and 8 in "
            "the paper. Only a task and a seed that every encoding learned are ranked.",
            needs=_PRESET,
            published="mean reciprocal rank 0.69 against 0.55 for T5 (read in its notebook)",
        ),
        Claim(
            "explicit-fail",
            "ALiBi, rotary and absolute positions are not well suited to longer sequences.",
            "abstract",
            VERIFIED,
            "mean exact answers beyond the training lengths over those within, in the one of the "
            "three where that is largest; interval over tasks",
            high=0.5,
            differs=f"{_TINY} The bound is ours. Only a task and a seed that all three learned "
            "count.",
            needs=_PRESET,
        ),
        Claim(
            "like-t5",
            "The attention of trained NoPE models resembles that of T5's relative bias most.",
            "abstract; the figure of divergences between attention patterns",
            VERIFIED,
            "divergence of NoPE's attention from T5's less that from the next nearest encoding's, "
            "in nats; interval over tasks",
            high=0,
            differs=f"{_TINY} The paper compares models of one seed; here they would begin with "
            "the same weights. Jensen-Shannon divergence, the least over all pairs of heads of a "
            "layer; the form of the paper's code, as summarised by others, stands beside it. Only "
            "a task and a seed that every encoding learned count.",
            needs=_PRESET,
        ),
        Claim(
            "position-extrapolates",
            "A model that answers longer examples is one in which a code of position carries on "
            "beyond the training lengths.",
            "not in the paper: a question of ours",
            OURS,
            "Spearman's correlation, within tasks, between the error of position at later places "
            "than in training, read by a linear probe fitted within, and exact answers beyond the "
            "training lengths, over all models that learned",
            high=0,
            differs=f"{_TINY} {_CORRELATION}",
            needs=_PRESET,
        ),
        Claim(
            "position-remains",
            "Or one in which position can still be read there, by whatever linear code.",
            "not in the paper: a question of ours",
            OURS,
            "the same correlation with the error of a linear probe that is fitted at these later "
            "places",
            high=0,
            differs=f"{_TINY} {_CORRELATION}",
            needs=_PRESET,
        ),
        Claim(
            "dispersed",
            "Beyond its training lengths the attention of NoPE is more dispersed.",
            _WANG,
            f"{VERIFIED} that dispersed attention goes with failure; the measure is {OURS}",
            "mean entropy of attention over the most possible, at the longest test length less at "
            "the longest training length, NoPE models that learned; interval over tasks",
            low=0,
            differs=_TINY,
            needs=_PRESET,
        ),
        Claim(
            "uniform-scale",
            "One factor on all of NoPE's attention scores lets it answer longer examples.",
            "summaries of Wang et al. 2024 (arXiv 2404.12224)",
            SECOND_HAND,
            "exact answers beyond the training lengths with the factor less those without, NoPE "
            "models that learned; interval over tasks",
            low=0,
            differs=f"{_TUNED} {_TINY}",
            needs=_PRESET,
        ),
        Claim(
            "head-scale",
            "A factor for each of its heads does (HeadScale).",
            _WANG,
            VERIFIED,
            "exact answers beyond the training lengths with the factors less those without, NoPE "
            "models that learned; interval over tasks",
            low=0,
            differs=f"{_TUNED} {_TINY}",
            needs=_PRESET,
        ),
        Claim(
            "scratchpads",
            "A scratchpad does not help on longer sequences in all tasks.",
            "abstract",
            VERIFIED,
            "right answers of NoPE beyond the training lengths with all parts of a scratchpad less "
            "those without any, in the task where that is smallest; what always giving the "
            "commonest answer would bring counts for both; for each seed the task is chosen on the "
            "other seeds",
            high=0,
            differs=f"{_SCRATCHPADS} Only a task and a seed that both learned count.",
            needs=_PRESET,
        ),
        Claim(
            "scratchpad-format",
            "Its format highly impacts the performance.",
            "abstract",
            VERIFIED,
            "right answers of NoPE beyond the training lengths with the best format of a "
            "scratchpad less those with the worst, mean over tasks; for each task and seed both "
            "are chosen on the other seeds; interval over tasks",
            low=0.1,
            differs=f"{_SCRATCHPADS} The bound is ours. Only formats that were learned count. "
            "Chosen on other seeds, best and worst are not always so: the number errs low.",
            needs=_PRESET,
        ),
    ),
    n_seeds=3,
    sizes=("length", "training"),
    presets=("tiny", "small", "paper"),
    default="64 positions, width 16, 2 heads",
    paper_sizes="the theorems have no size; --preset paper trains models of the shape of T5-base "
    "for 40,000 steps on all seventeen variants of tasks",
    on_device=True,
)
