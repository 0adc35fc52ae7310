"""Barbero et al. 2024: what rotary positions are for."""

from experiments.results.claims import OURS, RECALLED, SECOND_HAND, VERIFIED, Claim, Paper

PAPER = Paper(
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
            differs="One eps, 0.001, stands for all.",
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
            "no-decay",
            "Rotary scores need not fall with distance: for every distance there is a key that a "
            "query scores highest there.",
            "abstract; the proposition on decay",
            f"{VERIFIED} that decay is not what makes RoPE useful; the proposition is {RECALLED}",
            "share of the distances 0 to 511 at which the key built for it scores highest",
            expected=1,
            low=0.999,
        ),
        Claim(
            "long-context",
            "The low frequencies that carry content are not robust over long contexts.",
            "abstract; the proposition on low frequencies",
            f"{SECOND_HAND}; the proposition is {RECALLED}",
            "smallest score of a match on the lowest frequency alone, over its largest, within "
            "32,768 positions",
            high=0,
            differs="Arithmetic, for heads of width 256 and base 10,000: below 0 a match scores "
            "lower than what does not match. It rests on a context four times Gemma's, within "
            "which the lowest frequency turns by half a circle.",
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
            "In one layer, gradient descent finds no previous-token head without positions.",
            "follows from the proposition, for one layer",
            OURS,
            "held-out accuracy of naming the token before, less what guessing without order "
            "reaches, on repeated tokens, NoPE",
            high=0.02,
        ),
        Claim(
            "learned-rope",
            "In one layer, with rotary positions, it does.",
            "follows from the proposition, for one layer",
            OURS,
            "held-out accuracy of naming the token before, on repeated tokens, RoPE",
            expected=1,
            low=0.95,
        ),
        Claim(
            "frequencies",
            "Gemma uses its lowest frequencies most, for content.",
            "abstract; the figures of norm by frequency",
            VERIFIED,
            "share of |q||k| on the lower half of the frequencies, of the model that --model "
            "names, mean over heads; interval over sequences",
            low=0.5,
            differs="The paper looks at Gemma 7B; how it averages norms is recalled, unverified.",
            needs="--model",
        ),
        Claim(
            "positional-heads",
            "Gemma uses its highest frequencies to build positional heads.",
            "abstract; the figures of the diagonal and the previous-token head",
            VERIFIED,
            "share of |q||k| on the highest quarter of the frequencies, mean over the heads with "
            "more than 0.4 of their attention on their own token or the one before, less the mean "
            "over the other heads; interval over sequences",
            low=0,
            differs="Frequencies and labels of Gemma 3 270M's heads had been seen, by "
            "`nope-interp heads`, when this test was written. Few heads are positional, and the "
            "interval does not resample them.",
            needs="--model",
        ),
        Claim(
            "impossible-given",
            "A pretrained model whose positions are taken away gives copies of one token equal "
            "weight in its first layer, too.",
            "follows from the proposition on NoPE",
            OURS,
            "largest difference of the weights on copies in the first layer, over heads and eight "
            "tokens, alone and after others",
            expected=0,
            # In single precision, with scores of some hundreds, a sum over a head's width is off by
            # some 1e-5; a positional head has a difference near 1.
            high=1e-4,
            differs="Equal up to the rounding of scores in single precision.",
            needs="--model",
        ),
        Claim(
            "p-rope",
            "Leaving out the lowest rotary frequencies helps a language model.",
            "abstract; the table of validation perplexity",
            VERIFIED,
            "held-out loss of 0.75-RoPE less that of RoPE, same seed, in nats per token",
            high=0,
            differs="Two layers of width 64 with 16 frequencies of base 100, trained for 500 steps "
            "on 64 bytes of text each; the paper trains models of two thousand million parameters. "
            "Base and length were chosen before any run, so that the lowest frequency turns as far "
            "over the context as Gemma's.",
            published=f"perplexity 4.441 against 4.463 on Wikipedia ({RECALLED})",
        ),
    ),
    n_seeds=3,
    sizes=("training",),
    default="head width 64, base 10,000, 512 positions; one trained layer of width 64, 24 tokens, "
    "400 steps; p-RoPE with 2 layers of width 64, 64 bytes, 500 steps; a given model on 32 "
    "sequences of 128 tokens",
    paper_sizes="constructions have no size of the paper's; its language models do not fit",
    reads_model=True,
)
