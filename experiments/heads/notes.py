"""What a report of heads has to say of how they were read."""

from collections.abc import Iterable, Mapping

from experiments.heads.checks import n_heads
from experiments.heads.tokens import HeadTokens
from experiments.variants.ablation import Ablation
from nope_interp.hooked_model import HookedModel, layers_without_attention
from nope_interp.positions.layers import LayerPositions, layer_positions
from nope_interp.sites import layer_ranges
from probes.head_rules import RULES
from probes.heads.detectors import FIRST_QUERY, local_chance

_RULES = {rule.label: rule for rule in RULES}


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
        *out_of_sight(tokens, layer_positions(model)),
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


def out_of_sight(tokens: HeadTokens, layers: Iterable[LayerPositions]) -> list[str]:
    """Which labels no head of a layer can have, since its window or chunk is too short.

    Args:
        tokens: what heads are read on.
        layers: of the model, with its windows.

    Returns:
        A sentence for each reach of layers that keeps a label from them.
    """
    reaches: dict[int, list[int]] = {}
    for layer in layers:
        if layer.reach is not None:
            reaches.setdefault(layer.reach, []).append(layer.layer)
    # How far back the farthest key is that a perfect head looks at, itself included.
    needed = {"induction": tokens.period, "duplicate-token": tokens.period + 1}
    first, local = (_RULES[label] for label in ("first-token", "local"))
    found = []
    for reach, where in reaches.items():
        hidden = [label for label, least in needed.items() if reach < least]
        # Queries further on do not see the first token.
        share = max(reach - FIRST_QUERY, 0) / (tokens.length - FIRST_QUERY)
        hidden += [first.label] if share < first.threshold else []
        if hidden:
            found.append(
                f"{layer_ranges(where).capitalize()}: a query sees {reach} tokens, so that no head "
                f"can be called {' or '.join(hidden)}. Give shorter sequences (--seq-len)."
            )
        if local_chance(tokens.length, reach) >= local.threshold:
            found.append(
                f"{layer_ranges(where).capitalize()}: a query sees {reach} tokens, most of them "
                f"near, so that no head can be called {local.label}."
            )
    return found


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
