"""Chi et al. 2023: position in self-attention's variance."""

from experiments.results.claims import OURS, RECALLED, VERIFIED, Claim, Paper

PAPER = Paper(
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
            "With the norm after the residual the stream's scale carries no cue.",
            "follows from what a norm does",
            OURS,
            "slope of log variance over log m after the last layer, post-norm model",
            expected=0,
            low=-0.02,
            high=0.02,
            differs="A check that holds by construction. The attention outputs before the norm "
            "still fall, as the figure shows.",
        ),
        Claim(
            "probe",
            "A two-layer probe reads position from the frozen random causal model.",
            "abstract; the figure of the mean absolute error by layer",
            f"{VERIFIED} that position is held; the error is {RECALLED}",
            "mean absolute error of the probe after its best layer, as a share of chance (L/4)",
            high=0.5,
            differs="Width 512, 64 positions, 1024 sequences of uniform tokens from a vocabulary "
            "of 1000 to fit on, learning rate 0.001, all chosen after a run with 256 sequences and "
            "a learning rate of 0.01 had been seen at chance. What is short is data, not steps: "
            "shown 1024 sequences twelve times, the probe fits them to 0.2 of chance and others to "
            "0.76. In a pilot on one layer of seed 0, with 512 hidden units, 8192, 16384 and "
            "32768 sequences gave 0.63, 0.55 and 0.47. --training gives more of them.",
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
            differs="As above, with a vocabulary of 64, chosen after a pilot on seed 0, and 256 "
            "sequences to fit on.",
        ),
        Claim(
            "probe-bidirectional",
            "The probe is at chance in the bidirectional model.",
            "the figure of the mean absolute error by layer",
            RECALLED,
            "mean absolute error of the probe after its best layer, as a share of chance (L/4)",
            expected=1,
            low=0.95,
            differs="As above, with a vocabulary of 64 and 256 sequences to fit on.",
            published=f"near 128 at 512 positions, a share of 1 ({RECALLED})",
        ),
        Claim(
            "trained",
            "The shrinkage is still there after training.",
            "abstract, there of a fully pretrained model",
            VERIFIED,
            "variance across an activation's components at the last position over that at m = 2, "
            "after the layer where it shrinks least; mean over small models trained on text, on "
            "held-out text",
            high=0.9,
            differs="A byte-level model of 4 layers and width 128, trained for 300 steps on "
            "Python's manual. Position 0 holds a begin token and is left out. The number is the "
            "mean over models of each one's own, on 256 sequences: in a first run, on 128, one "
            "model's scale had outweighed the others'.",
        ),
        Claim(
            "trained-attention",
            "What attention writes still shrinks after training.",
            "title and abstract",
            f"{VERIFIED} for the model as a whole; the site is ours",
            "as for `trained`, at the attention outputs",
            high=0.9,
            differs="As above; added after the residual stream of one model, seed 0, had been seen "
            "not to shrink.",
        ),
        Claim(
            "trained-bidirectional",
            "Without the causal mask the trained weights show no shrinkage.",
            "derived here; the comparison with a BERT-style model is of random weights",
            OURS,
            "largest deviation from 1, over layers, of the variance at the last position over that "
            "at m = 2; the same models without the causal mask",
            expected=0,
            high=0.1,
            differs="Text only, though symmetry holds for any tokens: on random ones a first run "
            "on seed 0 had been too noisy to tell.",
        ),
        Claim(
            "pretrained",
            "The shrinkage is still there in a fully pretrained NoPE model.",
            "abstract",
            VERIFIED,
            "as for `trained`, of the model given with --model, on text; interval over sequences",
            high=0.9,
            differs="No pretrained NoPE model comes with this project. A model that has a "
            "positional encoding is read with it at work.",
            needs="--model",
        ),
    ),
    n_seeds=20,
    sizes=("width", "length", "depth", "training"),
    default="width 768, 12 heads, 512 positions, 6 layers; probes at width 512, 64 positions, 3 "
    "layers; trained models at width 128, 128 positions, 4 layers",
    paper_sizes=f"--depth 2 gives 12 layers ({RECALLED})",
    on_device=True,
    reads_model=True,
)
