"""A loaded model to play with: its prompts as tokens, and what is kept of it between requests."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from experiments.explore.asked import MOST_TOKENS
from experiments.explore.kept import Kept
from experiments.explore.one_pass import Pass, Repeated, Rotated
from experiments.loaded import LoadedModel
from experiments.prompt import prompt_tokens
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel, attention_layers
from nope_interp.interventions.attention_weights import layer_with_idle_patterns
from nope_interp.positions.layers import LayerPositions


@dataclass
class Playground:
    """A loaded model, and what is kept of it.

    Attributes:
        loaded: from `experiments.loaded.load`.
        runs: the folder in which finished runs lie.
        passes: what was read of prompts, by tokens and change.
        repeated: scores on repeated tokens, by change.
        made: what else is kept, by what it is.

    Raises:
        UserError: for a model none of whose layers shows its attention.
    """

    loaded: LoadedModel
    runs: Path = Path("runs")
    passes: Kept[Pass] = field(default_factory=Kept, repr=False)
    repeated: Kept[Repeated] = field(default_factory=lambda: Kept(2**24), repr=False)
    made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.attending:
            raise UserError("this model shows no attention in any layer: choose another one.")

    @property
    def variant(self) -> ModelVariant:
        """The model with its tokenizer and sources of tokens."""
        return self.loaded.variant

    @property
    def model(self) -> HookedModel:
        """The hooked model."""
        return self.loaded.model

    @cached_property
    def attending(self) -> list[int]:
        """The layers that have heads: all, but for the recurrent ones of a hybrid."""
        return attention_layers(self.model)

    def heads_of(self, layer: int) -> int:
        """How many heads a layer has."""
        return self.model.cfg.n_heads if layer in self.attending else 0

    @cached_property
    def positions(self) -> tuple[LayerPositions, ...]:
        """Each layer's, of attention alone where the family is not known."""
        return self.variant.layer_positions()

    @cached_property
    def rotated(self) -> Rotated:
        """Which frequencies heads use, where layers rotate."""
        return Rotated(self.model, self.positions)

    @cached_property
    def begin_id(self) -> int | None:
        """The token that every prompt begins with; None where the model has none."""
        return self.variant.sources[0].begin_id

    @property
    def most_tokens(self) -> int:
        """Of a prompt."""
        return min(MOST_TOKENS, self.model.cfg.n_ctx)

    @cached_property
    def idle_layer(self) -> int | None:
        """The first layer that goes on without what its pattern hook gives back, if any."""
        return layer_with_idle_patterns(self.model)

    def tokens(self, prompt: str) -> Int[Tensor, "1 pos"]:
        """A prompt's tokens, behind the begin token where there is one.

        Args:
            prompt: any text; of a task's model, in the words of the task.

        Returns:
            One sequence.

        Raises:
            UserError: as `prompt_tokens`, which takes `most_tokens` at most.
        """
        return prompt_tokens(self.variant, prompt, self.most_tokens)

    def token_strings(self, ids: Int[Tensor, "1 pos"]) -> list[str]:
        """Each token of a sequence as text."""
        return self.variant.token_strings(ids[0])
