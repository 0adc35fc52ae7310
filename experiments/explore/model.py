"""`model`: what there is to play with."""

from experiments.codes.position_code import NAMES
from experiments.explore.answers import ModelAnswer
from experiments.explore.finished import finished_labels
from experiments.explore.kept import MOST_BYTES
from experiments.explore.playground import Playground
from experiments.explore.prompts import pairs, prompts
from nope_interp.hooked_model import key_heads
from nope_interp.positions.conditions import CONDITIONS
from nope_interp.sites import ATTENTION_INPUT, RESIDUAL_SITES, hook_name
from probes.head_rules import LABELS

# Values for the conditions that take one, until a person gives another.
_VALUES = {"keep_highest": "=0.25", "drop_highest": "=0.25", "band": "=0-1"}


def model(playground: Playground) -> ModelAnswer:
    """What the model is, what can be taken from it and moved in it, and prompts to pick.

    Args:
        playground: whose model.

    Returns:
        The answer.
    """
    cfg = playground.model.cfg
    return ModelAnswer(
        name=playground.variant.name,
        layers=cfg.n_layers,
        attending=playground.attending,
        heads=cfg.n_heads,
        heads_sharing_keys=cfg.n_heads // key_heads(playground.model, playground.attending[0]),
        conditions=conditions(playground),
        codes=list(NAMES),
        # Blocks whose attention and MLP stand side by side have nothing between them.
        sites=[
            site
            for site in (*RESIDUAL_SITES, ATTENTION_INPUT)
            if hook_name(playground.attending[0], site) in playground.model.hook_dict
        ],
        prompts=prompts(playground),
        pairs=pairs(playground),
        labels=list(LABELS),
        finished=finished_labels(playground),
        kept=f"What the last prompts showed is kept in memory, at most {MOST_BYTES >> 30} GiB.",
    )


def conditions(playground: Playground) -> list[str]:
    """The conditions that `ablate_positions` takes for the encodings that the model has.

    Args:
        playground: whose model.

    Returns:
        Names such as "rotary:none"; none where the model has no positional encoding.
    """
    has = sorted({at.encoding for at in playground.positions} & CONDITIONS.keys())
    return [
        f"{encoding}:{name}{_VALUES.get(name, '')}"
        for encoding in has
        for name in CONDITIONS[encoding]
    ]
