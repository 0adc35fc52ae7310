"""A loaded model, and the questions that are asked of it most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.codes.questions import (
    lengths_rescued,
    positions_aligned,
    positions_moved,
    positions_read,
    positions_routed,
)
from experiments.heads.asked import HeadsAsked
from experiments.probing.sites import sites
from experiments.probing.split import Split
from experiments.prompt import PatchReading, PromptReading, patch_prompts, read_prompt
from experiments.variants.config import ProbingConfig
from experiments.variants.embedded import EMBEDDED_MODEL
from experiments.variants.variants import config_of, loaded_variant
from nope_interp.errors import UserError, shown
from nope_interp.fields import is_whole
from nope_interp.positions.layers import describe_positions
from nope_interp.shapes import Sequences
from nope_interp.tasks.sources import TextSource, TokenSource


@dataclass(frozen=True)
class LoadedModel(HeadsAsked):
    """A model with its tokenizer and the text that it is read on; made by `load`.

    Attributes:
        variant: the model, its tokenizer and its tokens.
        config: where it came from.
    """

    def __repr__(self) -> str:
        known = self.variant.positions != "unknown"
        gives = (
            '.positions_by_layer(), .probe_positions(ablate=...) and .top_heads("previous_token") '
            "give DataFrames"
            if known
            else ".probe_positions() gives a DataFrame"
        )
        lines = [
            f"LoadedModel({self.variant.name!r}, {self.variant.n_layers} layers of "
            f"{self.model.cfg.n_heads} heads, positions: {self.variant.positions})",
            *([describe_positions(self.model)] if known else []),
            *self.variant.how_read,
            f"{gives}; .model is the hooked model.",
        ]
        return "\n".join(lines)

    def positions_by_layer(self) -> pd.DataFrame:
        """Which layers have which positions, and does their attention tell order?

        Returns:
            One row for each kind of layer: layers, positions, base of rotation, rotated dimensions
            of a head, what a query sees, and order: by how much attention's output changes, least
            and most, when what precedes a query is reversed. Empty where nothing is known.
        """
        return pd.DataFrame(self.variant.position_table())

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer, as transformers has them."""
        return self.variant.tokenizer

    def tokens(
        self, n: int = 192, seq_len: int | None = None, *, held_out: bool = False, seed: int = 0
    ) -> Sequences:
        """Sequences of what it is read on, as for `stream`, `fit_code` and `sequence_losses`.

        Args:
            n: how many.
            seq_len: tokens in each, begin token included; None takes 128, one example of a task, or
                the context where that is shorter.
            held_out: whether they come from the text that probes are not fitted on.
            seed: of the draw.

        Returns:
            Token ids, `[sequence pos]`. Examples of a task begin with its begin token, text with
            none.

        Raises:
            UserError: for too short a text, and sequences longer than the context.

        Example:
            >>> lm = load()
            >>> code = fit_code(lm.model, lm.tokens(300), layer=1)  # doctest: +SKIP
        """
        if not is_whole(n, 1):
            raise UserError(f"n is {shown(n)}: give a whole number from 1 up.")
        source, of = self._drawn_as(seq_len, self._asked(seed=seed, seq_len=seq_len))
        return source.sequences(n, **of, split="held_out" if held_out else "fit")

    def read(self, prompt: str) -> PromptReading:
        """How surprising is each token of a prompt, and what may come next?

        Args:
            prompt: any text; of a task's model, in the words of the task.

        Returns:
            Its `surprisal` and `next_tokens`, as DataFrames, and its `ids`.

        Raises:
            UserError: for a prompt that cannot be read.
        """
        return read_prompt(self.variant, prompt)

    def patch(self, prompt: str, other_prompt: str, at: str = "resid_pre") -> PatchReading:
        """What of one prompt's run, put into the other's, brings its prediction back?

        Args:
            prompt: the clean one, whose activations are put in.
            other_prompt: the corrupted one, of as many tokens.
            at: "resid_pre", by position, or "head_out" or "pattern", by head.

        Returns:
            The share of the logit difference that comes back, by layer (`recovered`).

        Raises:
            UserError: as `patch_in_steps`.
        """
        return patch_prompts(self.variant, prompt, other_prompt, at)

    def probe_positions(
        self,
        ablate: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        hooks: Sequence[str] = ("resid_post",),
        n_fit: int = 192,
        n_held_out: int = 96,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """At which layer can a linear probe read position, with and without the encoding?

        Args:
            ablate: positions to take away, as `ablate_positions` names them; None reads the model
                as it is only.
            layers: which blocks; None for all, an empty list for the embedding alone.
            hooks: where in each block.
            n_fit: sequences to fit on; give several times the model's width in tokens.
            n_held_out: other sequences, which the error is taken on.
            seq_len: tokens in a sequence; None takes 128, one example of a task, or the context.
            seed: of the draw of sequences and of the bootstrap.

        Returns:
            One row for each condition and site: positions ("intact" or the ablation's name), layer,
            site, and the mean absolute error in positions (value) with its 95% interval over
            held-out sequences and the error of always answering the middle (chance). The first row
            of a condition is the embedding: what is read there the text itself tells, or an
            encoding that is added to it.

        Raises:
            UserError: for an ablation or a layer that the model lacks, and too short a text.
        """
        where = sites(self.variant.n_layers, hooks, layers)
        config = self._asked(n_fit=n_fit, n_held_out=n_held_out, seed=seed, seq_len=seq_len)
        source, of = self._drawn_as(seq_len, config)
        split = Split.of(source, config.n_fit, config.n_held_out, **of)
        return positions_read(self.variant, split, where, ablate, config.batch_size, config.seed)

    def move_positions(
        self,
        by: int | None = None,
        *,
        layers: Sequence[int] | None = None,
        hooks: Sequence[str] = ("resid_post",),
        n_fit: int = 300,
        n_held_out: int = 150,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Do its answers, or its predictions, follow a position that is moved inside the model?

        Positions are told by one code at one site, and through the whole stream, to be others, and
        keep their content; and where order is destroyed, one code alone is put back. On the task
        that a model of ours was trained on the answer elsewhere is known; on text it is what the
        model predicts where the text stands further on, or in another order.

        Args:
            by: how many symbols of a task's answer, places, or tokens of text positions are moved
                on; None takes one, of text a quarter of a sequence.
            layers: which blocks; None for all.
            hooks: where in each block.
            n_fit: examples, or sequences of text, that codes are fitted on.
            n_held_out: other ones, which are answered.
            seq_len: tokens in a sequence of text; None takes 128, or a shorter context.
            seed: of the draw of examples, of the controls and of the bootstrap.

        Returns:
            The table of `experiments.results.interchange.followed`: one row for a code at a site
            and a set of positions, with its word, the most followed first.

        Raises:
            UserError: for a model that has not learned order, a task whose answers elsewhere are
                not known, too few examples or positions, and a distance too long for them.
        """
        config = self._asked(n_fit=n_fit, n_held_out=n_held_out, seed=seed, seq_len=seq_len)
        return positions_moved(self.variant, config, by, layers, hooks)

    def align_positions(
        self,
        ranks: Sequence[int] = (1, 2, 3),
        *,
        layers: Sequence[int] | None = None,
        hooks: Sequence[str] = ("resid_post",),
        n_fit: int = 300,
        n_held_out: int = 150,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Do few learned dimensions hold the position of what its task asks? (DAS)

        A subspace is learned on two thirds of the asking positions. Then what lies in it is
        exchanged for that of another example at another position. Judged are positions that were
        not learned on, those that are told to be one, and shorter examples.

        Args:
            ranks: of the subspaces: 1, 2 or 3, and 4 for longer examples.
            layers: which blocks; None for all.
            hooks: where in each block.
            n_fit: examples that subspaces are learned on.
            n_held_out: other ones, which are answered.
            seed: of the draw of examples and positions, and of the bootstrap.

        Returns:
            The table of `experiments.codes.questions.positions_aligned`: one row for each site and
            rank, with the share of answers that follow, and what the subspace holds: t, 1/m, ...

        Raises:
            UserError: for a model that has not learned order, a task whose answer is not read off
                symbol by symbol, too few positions, and ranks that these cannot tell apart.
        """
        config = self._asked(n_fit=n_fit, n_held_out=n_held_out, seed=seed, seq_len=None)
        return positions_aligned(self.variant, config, ranks, layers, hooks)

    def rescue_length(
        self, length: int, *, n_fit: int = 300, n_held_out: int = 150, seed: int = 0
    ) -> pd.DataFrame:
        """Do answers beyond the training lengths return where a code tells trained positions?

        Args:
            length: of the longer examples; the model's context has to hold them.
            n_fit: examples that codes are fitted on, of this length and of the longest trained one.
            n_held_out: other ones, which are answered.
            seed: of the draw of examples, of the controls and of the bootstrap.

        Returns:
            The table of `experiments.results.rescue.rescues`: one row for a code at a site, and a
            way of matching positions, with its word; what returned most first.

        Raises:
            UserError: for a model that does not fail at this length, and as `lengths_rescued`.
        """
        config = self._asked(n_fit=n_fit, n_held_out=n_held_out, seed=seed, seq_len=None)
        return lengths_rescued(self.variant, config, length)

    def position_routes(
        self,
        *,
        n_fit: int = 300,
        n_held_out: int = 150,
        seq_len: int | None = None,
        seed: int = 0,
    ) -> pd.DataFrame:
        """Which heads of a language model read position, by their queries, keys or values?

        The positional part of what attention reads, its mean at each position, is moved for one
        route of one head alone; the normalization keeps its value.

        Args:
            n_fit: sequences that the positional part is fitted on.
            n_held_out: other ones, whose next tokens are predicted.
            seq_len: tokens in a sequence; None takes 128, or the context where that is shorter.
            seed: of the draw of sequences, of the controls and of the bootstrap.

        Returns:
            The table of `experiments.results.text_use.routes_read`: one row for a route of a head,
            the one that predictions follow the most first.

        Raises:
            UserError: for a model that reads no text or has not learned order, and too few or too
                short sequences.
        """
        config = self._asked(n_fit=n_fit, n_held_out=n_held_out, seed=seed, seq_len=seq_len)
        return positions_routed(self.variant, config)

    def _drawn_as(
        self, seq_len: int | None, config: ProbingConfig
    ) -> tuple[TokenSource, dict[str, Any]]:
        """Where sequences come from, and how they are drawn."""
        source = self.variant.sources[0]
        length = config.seq_len if isinstance(source, TextSource) else self._length(seq_len)
        if seq_len is None:
            source, length = source.single(length)
        begin_token = source.always_begins
        return source, {"seq_len": length, "begin_token": begin_token, "seed": config.seed}

    def _asked(self, seq_len: int | None, **how: int) -> ProbingConfig:
        """Its settings; sequences of text are as long as is asked."""
        if isinstance(self.variant.sources[0], TextSource):
            how["seq_len"] = self._length(seq_len)
        return ProbingConfig.like(self.config, **how)


def load(
    name_or_path: str | Path = EMBEDDED_MODEL,
    *,
    device: str = "cpu",
    revision: str | None = None,
    dtype: str = "float32",
    positions: str = "auto",
    text: str | Path | None = None,
) -> LoadedModel:
    """A model that is ready to be asked.

    Args:
        name_or_path: a hub name, a Hugging Face folder, a GGUF file, or our model.safetensors; by
            default the small model that ships with the package.
        device: a torch device, or "auto" to spread a pretrained model over several.
        revision: branch, tag or commit of a hub name.
        dtype: of a pretrained model's weights: float32, bfloat16 or float16.
        positions: which positions a pretrained model's weights were trained with: none, rotary,
            learned, alibi or t5; auto goes by its config and a table of published models.
        text: a UTF-8 file to read instead of Python's own documentation.

    Returns:
        The model with its tokenizer and the text that it is read on.

    Raises:
        UserError: where it cannot be loaded.

    Example:
        >>> lm = load()
        >>> lm.top_heads("first_token", 2)  # doctest: +SKIP
    """
    how = {"revision": revision, "dtype": dtype, "positions": positions, "text": text}
    config = config_of(name_or_path, **how)
    return LoadedModel(loaded_variant(config, device, needed={}), config)
