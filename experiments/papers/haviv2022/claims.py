"""Haviv et al. 2022: language models without positional encodings learn positions."""

from experiments.results.claims import OURS, RECALLED, SECOND_HAND, VERIFIED, Claim, Paper

_SMALL = (
    "Byte-level models of width 32 and 64 bytes of Python's manual, briefly trained. Width, rate, "
    "initialisation and steps were chosen after a first run, whose models knew little more than "
    "pairs of bytes, by the loss of NoPE and learned positions in pilots on another seed."
)

PAPER = Paper(
    name="haviv2022",
    citation="Haviv, Ram, Press, Izsak, Levy 2022, Transformer language models without positional "
    "encodings still learn positional information, arXiv 2203.16634",
    claims=(
        Claim(
            "competitive",
            "A language model without positional encoding is competitive with learned, sinusoidal "
            "and ALiBi ones.",
            "abstract; the table of perplexities",
            f"{VERIFIED}; the perplexities are {RECALLED}",
            "held-out loss of NoPE over the mean held-out loss of the three others",
            expected=1,
            high=1.03,
            differs=f"{_SMALL} One text, one size and one length, where the paper has several. The "
            "bound allows twice the largest excess in the paper's numbers.",
            published="logarithms of perplexity have the ratio 1.014 on WikiText-103, 1.015 at "
            f"125M and 1.008 at 1.3B parameters on the Pile ({RECALLED})",
        ),
        Claim(
            "trails",
            "It stays behind all three of them.",
            "the table of perplexities",
            RECALLED,
            "held-out loss of NoPE over that of the worst of the three others",
            low=1,
            differs=_SMALL,
            published="perplexity on WikiText-103: NoPE 20.97, learned 20.42, sinusoidal 20.16, "
            f"ALiBi 19.71 ({RECALLED})",
        ),
        Claim(
            "order",
            "It uses the order of words: it predicts worse from a shuffled prefix.",
            "the analysis with shuffled prefixes",
            f"{RECALLED}; the bound is ours",
            "loss of the last byte of a sequence, in nats, when all before the byte that it is "
            "predicted from is shuffled, less that of the intact sequence, NoPE",
            low=0.1,
            differs=f"{_SMALL} The byte before the predicted one stays, so that a model which "
            "knows pairs of bytes and no further order would show nothing.",
        ),
        Claim(
            "decodable",
            "A probe finds a token's absolute position in the NoPE model.",
            "abstract; the figure of the mean absolute distance by layer",
            f"{VERIFIED} that position is found; the bound is ours",
            "mean absolute error of the probe after its best layer, as a share of chance (L/4), "
            "NoPE",
            high=0.5,
            differs=f"{_SMALL} Position 0 is left out.",
        ),
        Claim(
            "input",
            "At the input of the NoPE model there is no position.",
            "the figure of the mean absolute distance by layer",
            SECOND_HAND,
            "mean absolute error of the probe at the embedding, as a share of chance (L/4), NoPE",
            expected=1,
            low=0.95,
            high=1.05,
            differs="Chance is the best constant guess, L/4; the paper draws a uniform guess, L/3.",
        ),
        Claim(
            "falls",
            "The error falls fast, within the first few layers.",
            "the figure of the mean absolute distance by layer",
            SECOND_HAND,
            "fall of the error from the embedding to the second layer (or a quarter of the depth), "
            "as a share of its fall to the best layer, NoPE",
            expected=1,
            low=0.75,
            differs=f"{_SMALL} Layer 2 of 4 stands for layer 4 of 16.",
        ),
        Claim(
            "near-explicit",
            "In the middle of its depth the error is near that of models with explicit positions.",
            "the figure of the mean absolute distance by layer",
            f"{SECOND_HAND}; the bound is ours",
            "mean absolute error after the middle layer of NoPE less the mean of the three others, "
            "as a share of chance (L/4)",
            expected=0,
            high=0.1,
            differs=f"{_SMALL} 4 layers in place of 16.",
        ),
        Claim(
            "rises",
            "In all four models the error rises again towards the last layer.",
            "the figure of the mean absolute distance by layer",
            SECOND_HAND,
            "mean absolute error after the last layer less that after the middle one, in "
            "positions, in the model where it is smallest",
            low=0,
            differs=f"{_SMALL} 4 layers in place of 16.",
        ),
        Claim(
            "training",
            "Training makes position easier to read than it is in the random-init NoPE model.",
            "not in the paper: a control",
            OURS,
            "mean absolute error of the probe after the best layer, trained over random-init",
            expected=0,
            high=1,
            differs=_SMALL,
        ),
        Claim(
            "mask",
            "The causal mask is what gives position away: without it the trained NoPE model has "
            "none.",
            "abstract, as a guess: the mask lets a token count those before it",
            f"{VERIFIED} that they guess so; the test is {OURS}",
            "mean absolute error of the probe after its best layer, as a share of chance (L/4), "
            "NoPE's trained weights without the causal mask",
            expected=1,
            low=0.95,
            differs="The paper trains a masked language model instead, the claim below.",
        ),
        Claim(
            "masked",
            "A masked language model, which has no causal mask, fails without positional encoding.",
            "the table on masked language models",
            RECALLED,
            "held-out loss of the masked model without positions over that with learned ones",
            low=1.5,
            differs="Not part of this run, which trains causal models only.",
            published=f"perplexity about 147 against about 4 ({RECALLED})",
        ),
    ),
    n_seeds=3,
    sizes=("width", "length", "depth", "training"),
    default="4 encodings, 4 layers, width 32, 4 heads, 64 bytes, 1500 steps of 8 sequences",
    paper_sizes="--depth 4 --width 32 --length 16 gives 16 layers of width 1024 and 1024 positions "
    f"({RECALLED}); the text, 460 kB, is then far too short",
    on_device=True,
)
