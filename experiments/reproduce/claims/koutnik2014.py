"""Koutnik et al. 2014: the Clockwork RNN."""

from experiments.reproduce.claims.claim import OURS, RECALLED, VERIFIED, Claim, Paper

PAPER = Paper(
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
