"""Zuo et al. 2025: nearby embeddings are alike."""

from experiments.results.claims import OURS, RECALLED, SECOND_HAND, VERIFIED, Claim, Paper

_TRAINED = (
    "Models of 4 layers and width 64 that answer nine in ten held-out prompts of two digits or two "
    "to six letters; formats of the tasks are ours, sizes were chosen after pilot runs on another "
    "seed. A task that is not learned at this size is left out: the run's notes say so."
)

PAPER = Paper(
    name="zuo2025",
    citation="Zuo, Guerzhoy, Guerzhoy 2025, Position information emerges in causal transformers "
    "without positional encodings via similarity of nearby embeddings, arXiv 2501.00073",
    claims=(
        Claim(
            "every-layer",
            "After every layer of a random causal model nearby activations have the higher cosine.",
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
            "There the cosine of activations i and j, i before j, is nearly sqrt(i/j), less "
            "softmax noise.",
            "derived here; the paper argues for the same fall",
            OURS,
            "largest difference of the mean cosine from the law",
            expected=0,
            high=0.015,
            differs="The bound was 0.05 at first, which the law without softmax noise, at most "
            "0.02 away, would have met too.",
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
            "An activation's cosines are a more reliable carrier of position than its variance.",
            "the section on probes",
            SECOND_HAND,
            "error of position read from nine quantiles of an activation's cosines with the "
            "others, over that from nine quantiles of their variances beside its own, mean over "
            "blocks",
            high=1,
            differs="Random models; our probes. Both read an activation against all of its "
            "sequence, later ones too. A first version gave the variance a single number, which "
            "was no fair match.",
        ),
        Claim(
            "trained",
            "The pattern is there in models trained on addition, reversal, indexing and ordering.",
            "abstract",
            VERIFIED,
            "adjacency A less that of the same weights without the causal mask, after the block "
            "and in the task where that is lowest, of the tasks that two models or more have "
            "learned; interval over models",
            low=0,
            differs=f"{_TRAINED} Whether the paper has this null is not known to us: letters of "
            "prompts repeat, so that without any pattern A is not 0.5.",
            needs="--preset tiny",
        ),
        Claim(
            "trained-sweep",
            "The pattern is there after training over a common range of sizes and initialisations.",
            "abstract",
            f"{VERIFIED}; the ranges are {RECALLED}",
            "adjacency A less that of the same weights without the causal mask, after the block "
            "where that is lowest, mean over settings of which a task was learned; interval over "
            "settings",
            low=0,
            differs=f"{_TRAINED} The ranges are ours: depth, width and heads from half to twice at "
            "most, and four initialisations; the two tasks that are learned fastest, and one "
            "model of each setting.",
            needs="--preset tiny",
        ),
        Claim(
            "bidirectional-fails",
            "Without the causal mask models that know no positions do not learn the tasks.",
            "a control of ours; its reason, that causal attention has to break the symmetry, is in "
            "the abstract of the authors' earlier paper, arXiv 2402.05969",
            OURS,
            "accuracy above chance without the mask, as a share of that with it, in the task where "
            "it is highest, of those that two models or more with the mask have learned; interval "
            "over models",
            expected=0,
            high=0.1,
            differs="Whether the paper has this control, and in what form, is not known to us. "
            "Models with and without the mask start from the same weights, see the same batches "
            "and fill in answers at blanks, all at once: without the mask a model would see the "
            "next token. The end of an answer is not asked for. Chance is the commonest answer of "
            "a length.",
            needs="--preset tiny",
        ),
    ),
    n_seeds=5,
    sizes=("width", "length", "depth", "training"),
    presets=("tiny",),
    default="6 layers, 6 heads, width 384, 64 positions, vocabulary 10,000, GPT-2's initialisation",
    paper_sizes=f"the default has the paper's depth, heads and width ({RECALLED})",
    on_device=True,
)
