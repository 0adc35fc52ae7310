"""What is asked of a loaded model's heads."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pandas as pd

from experiments.heads.causes import without_heads
from experiments.heads.config import HeadsConfig
from experiments.heads.found_by import found_by
from experiments.heads.strongest import strongest_heads
from experiments.results.found_by import SHIFT
from experiments.variants.config import ProbingConfig
from experiments.variants.lengths import check_length
from experiments.variants.variants import ModelVariant
from nope_interp.errors import UserError
from nope_interp.hooked_model import HookedModel
from nope_interp.interventions.heads import HeadChange, change_heads
from nope_interp.interventions.intervene import Running


@dataclass(frozen=True)
class HeadsAsked:
    """A model with its tokens, whose heads can be asked.

    Attributes:
        variant: the model, its tokenizer and its tokens.
        config: where it came from.
    """

    variant: ModelVariant
    config: ProbingConfig

    @property
    def model(self) -> HookedModel:
        """The hooked model itself, with TransformerLens's interface."""
        return self.variant.model

    def change_heads(
        self, changes: Mapping[tuple[int, int], HeadChange]
    ) -> AbstractContextManager[Running]:
        """A context in which heads are ablated, or attend otherwise.

        Args:
            changes: by (layer, head): "ablated", "uniform", "previous_token" or a pattern.

        Returns:
            The context, as `intervene` gives it.

        Raises:
            UserError: for an unknown head or word, patterns that are no attention, such as to
                tokens to come, and patterns of a bridge that does not use them.
        """
        return change_heads(self.model, changes, self.variant.layer_positions())

    def top_heads(
        self,
        detector: str = "previous_token",
        n: int = 10,
        *,
        ablate: str | None = None,
        n_sequences: int = 64,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Which heads do this most: look at the previous token, at their own, at the first, ...?

        Args:
            detector: one of `probes.head_rules.METRICS`, such as "previous_token", "diagonal",
                "induction".
            n: how many heads.
            ablate: positions to take away first, as `ablate_positions` names them.
            n_sequences: sequences of text to read.
            seq_len: tokens in a sequence; None takes 128, or the context where that is shorter.
            seed: of the draw of sequences and of the bootstrap.

        Returns:
            One row for each head, the strongest first: layer, head, the mean attention weight, or
            what else the detector gives (value), its 95% interval over sequences, and what equal
            weights on all visible tokens give (chance).

        Raises:
            UserError: for an unknown detector, an ablation that the model does not allow, attention
                sinks, and chunks shorter than the sequences.
        """
        config = self._asked_of_heads(n_sequences, seq_len, seed)
        return strongest_heads(self.variant, config, detector, n, ablate)

    def heads_find_by(
        self,
        offset: int = 1,
        *,
        shift: int = SHIFT,
        n_sequences: int = 64,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """How do heads find the token so far back: by any query, the place, or its text?

        Each query is replaced by one from `shift` tokens earlier, of the same text or of another;
        all other layers stay, and nothing is fitted. `experiments.results.found_by` has the rules.

        Args:
            offset: how far back the target stands; 0 for a head's own token.
            shift: how much earlier the other queries are taken from.
            n_sequences: sequences of text to read.
            seq_len: tokens in a sequence; None takes 128, or the context where that is shorter.
            seed: of the draw of sequences and of the bootstrap.

        Returns:
            One row for each head that surely puts 0.1 of its attention more on the target than on
            the token `2 * shift` further back, the strongest first:

            - layer, head;
            - value: the mean attention weight on the target, with ci_low and ci_high;
            - word: "any query", "the place", "its text" or "no single cause";
            - any_query: the share that stays there under both other queries;
            - place: the share that moves with a query of another text;
            - text: the further share that moves with a query of the same text.

            Each share has `_low` and `_high`; all intervals are over sequences, 95%.

        Raises:
            UserError: for an offset or a shift that the sequences do not hold, a model of a task,
                where no head looks there, and as `top_heads`.
        """
        config = self._asked_of_heads(n_sequences, seq_len, seed)
        return found_by(self.variant, config, offset, shift)

    def without_heads(
        self,
        removed: str = "previous-token",
        read: str = "induction",
        *,
        n_sequences: int = 64,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Do some heads need others: what is left of their habit where these are removed?

        A head is removed where its output is its mean. The control removes as many other heads of
        the same layers, drawn anew for each sequence.

        Args:
            removed: the label of the heads that are removed.
            read: the label of the heads that are read.
            n_sequences: sequences of text to read; of repeated tokens half as many.
            seq_len: tokens in a sequence; None takes 128, or the context where that is shorter.
            seed: of the draw of sequences, of the control and of the bootstrap.

        Returns:
            One row for each head that is read: layer, head, its score (value) with what equal
            weights give (chance), and the share of the score above chance that is left without the
            removed heads (left) and under the control (control), with 95% intervals over sequences.
            `net` is the control's share less the other: 0 where the heads are not needed. Both are
            NaN, with a warning, where an earlier layer has too few other heads.

        Raises:
            UserError: as `top_heads`, and where no head of the one comes after the other.
        """
        config = self._asked_of_heads(n_sequences, seq_len, seed)
        return without_heads(self.variant, config, removed, read)

    def _asked_of_heads(self, n_sequences: int, seq_len: int | None, seed: int) -> HeadsConfig:
        least, context = HeadsConfig.least["seq_len"], int(self.model.cfg.n_ctx)
        if seq_len is None and context < least:
            raise UserError(
                f"heads are told apart in sequences of {least} tokens or more, and the context is "
                f"{context}: give such a seq_len, if the model has positions beyond its context."
            )
        asked = {"seq_len": self._length(seq_len), "n_sequences": n_sequences, "seed": seed}
        return HeadsConfig.like(self.config, **asked)

    def _length(self, asked: int | None) -> int:
        if asked is None:
            return min(int(self.model.cfg.n_ctx), 128)
        check_length(self.model, self.variant.kind, asked, self.config.batch_size)
        return asked
