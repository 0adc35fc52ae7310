"""What a report of heads has to say of how they were read."""

from collections.abc import Mapping

from experiments.heads.checks import n_heads
from experiments.heads.tokens import HeadTokens
from experiments.variants.ablation import Ablation
from nope_interp.hooked_model import HookedModel, layers_without_attention
from nope_interp.sites import layer_ranges
from probes.head_rules import RULES


def notes_of(
    tokens: HeadTokens, model: HookedModel, ablation: Ablation, each: Mapping[int, Ablation]
) -> list[str]:
    """All of it.

    Args:
        tokens: what heads are read on.
        model: whose heads they are.
        ablation: what is taken away.
        each: the same of each layer alone; empty where it is taken from the whole model.
    """
    begun = (
        "Every sequence begins with the begin token."
        if tokens.start
        else "No sequence begins with a begin token."
    )
    alone = "The model has one head, which has no spread: no random-init variant was read."
    without = layers_without_attention(model)
    recurrent = f"The model has no attention, and so no heads, in {layer_ranges(without)}."
    return [
        *([recurrent] if without else []),
        *([alone] if n_heads(model) == 1 else []),
        f"{begun} The first token is left out as a key where scores are split into offset and key "
        "token, since an attention sink is neither.",
        f"Means are over sequences of {tokens.text.shape[1]} tokens: {len(tokens.text)} of text "
        f"and {len(tokens.repeated)} of repeated random tokens. Another {len(tokens.copies)} "
        f"are copies of one token. Another {len(tokens.alphabet_held_out)} are of a small "
        "alphabet, beside as many to fit on.",
        *recurring(tokens),
        *_judged_how(ablation, each),
        "K-composition is computed from the weights alone: a rotation between the two heads, and "
        "norms of queries and keys, are left out.",
    ]


def recurring(tokens: HeadTokens) -> list[str]:
    """Which labels no head can have, since random tokens recur too often."""
    perfect = tokens.perfect()
    return [
        f"Random tokens recur in so small a vocabulary: a perfect {rule.label} head scores "
        f"{perfect[rule.metric]:.2f} here, less than the label's bound of {rule.threshold:g}. Give "
        "shorter sequences (--seq-len)."
        for rule in RULES
        if rule.metric in perfect and perfect[rule.metric] < rule.threshold
    ]


def _judged_how(ablation: Ablation, each: Mapping[int, Ablation]) -> list[str]:
    """What tells whether a head depends on positions."""
    if ablation.how is None:
        return []
    if not each:
        return [
            "These positions are added to the embedding, and so are taken from the whole model "
            "alone. A head that loses its score may read them itself, or need an earlier head that "
            "does."
        ]
    return [
        "Whether a head depends on positions is judged with its own layer ablated and the rest "
        "intact. Of a head that keeps all of its positions nothing is said. The labels and scores "
        f"beside it are those of the model under {ablation.in_words}."
    ]
