"""The gate on text: who sees one token of context is held to know no order, and who sees more is
let through."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.codes.task import InterventionTask
from experiments.codes.text_order import text_order_rows
from experiments.probing.split import Split
from experiments.results.measurements import table
from experiments.results.text_use import (
    BIGRAM,
    LOST_BY_PERMUTATION,
    NATS,
    NATS_AT_ENDS,
    PERMUTED,
    without_order_on_text,
)
from nope_interp.errors import UserError
from nope_interp.models.config import TransformerConfig
from nope_interp.models.losses import bigram_losses
from nope_interp.models.transformer import HookedTransformer
from nope_interp.tasks.sources import TextSource
from tests.experiments.codes.on_text import CONTEXT, embedded, on_text, python_source

D_VOCAB = 257


def measured(task: InterventionTask) -> pd.DataFrame:
    return table(text_order_rows(task, python_source(), context=CONTEXT))


def by_metric(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.set_index(["metric", "control"])


def bigram_model(source: TextSource) -> HookedTransformer:
    """A transformer without blocks' output whose logits are the smoothed bigram's."""
    config = TransformerConfig(
        1, 260, 1, d_vocab=D_VOCAB, n_ctx=64, normalization="none", attn_only=True
    )
    model = HookedTransformer(config)
    every = torch.arange(D_VOCAB)
    pairs = torch.stack([every.repeat_interleave(D_VOCAB), every.repeat(D_VOCAB)], dim=1)
    losses = bigram_losses(source.known, pairs, D_VOCAB).view(D_VOCAB, D_VOCAB)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.embed.weight[:, :D_VOCAB] = torch.eye(D_VOCAB)
        model.unembed.weight[:, :D_VOCAB] = -losses.mT
    return model


def reader_of_the_first_token() -> HookedTransformer:
    """One head looks at the first token alone, by its position, and all logits are told by that."""
    bare = {"normalization": "none", "attn_only": True}
    config = TransformerConfig(1, 18, 1, d_vocab=D_VOCAB, n_ctx=64, positions="learned", **bare)
    model = HookedTransformer(config)
    token, told, one, first = slice(8), slice(8, 16), 16, 17
    attention = model.blocks[0].attn
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.W_E[:, token] = torch.randn(D_VOCAB, 8)
        model.W_E[:, one] = 1
        model.positions.table[0, first] = 1
        attention.W_Q[0, one, 0] = attention.W_K[0, first, 0] = 100
        attention.W_V[0, token, token] = attention.W_O[0, token, told] = torch.eye(8)
        model.W_U[told] = torch.randn(8, D_VOCAB)
    return model


def test_the_first_token_stays_where_it_is() -> None:
    found = by_metric(measured(on_text(reader_of_the_first_token())))
    assert found.loc[(LOST_BY_PERMUTATION, ""), "value"] == pytest.approx(0, abs=1e-5)


def test_a_model_that_knows_order_passes() -> None:
    rows = measured(on_text(embedded()))
    assert without_order_on_text(rows) is None
    found = by_metric(rows)
    values = found["value"]
    above = values[NATS, BIGRAM] - values[NATS, ""]
    assert found.loc[("above_guesser", ""), "value"] == pytest.approx(above)
    assert 0.2 < above < 1
    lost = values[NATS_AT_ENDS, PERMUTED] - values[NATS_AT_ENDS, ""]
    assert found.loc[("lost_by_shuffle", ""), "value"] == pytest.approx(lost)
    assert found.loc[("lost_by_shuffle", ""), "ci_low"] > 0.05


def test_a_bigram_is_no_better_than_the_guesser_and_loses_nothing() -> None:
    rows = measured(on_text(bigram_model(python_source())))
    found = by_metric(rows)
    assert found.loc[("above_guesser", ""), "value"] == pytest.approx(0, abs=1e-4)
    assert found.loc[("lost_by_shuffle", ""), "value"] == pytest.approx(0, abs=1e-5)
    sentence = without_order_on_text(rows)
    assert sentence is not None
    assert sentence.startswith("the model has not learned order: it loses ")
    assert f"{found.loc[(NATS, ''), 'value']:.3g} nats per token" in sentence


def test_an_untrained_model_has_not_learned_order() -> None:
    rows = measured(on_text(HookedTransformer(embedded().config)))
    assert by_metric(rows).loc[("above_guesser", ""), "ci_high"] < 0
    assert without_order_on_text(rows) is not None


def test_all_text_that_is_not_held_out_is_known_and_nothing_else() -> None:
    source = TextSource(torch.arange(100), None, trained_on=torch.arange(100, 130))
    held_out = source.sequences(5, 7, begin_token=False, split="held_out", seed=0)
    assert not np.isin(held_out.numpy(), source.known.numpy()).any()
    assert len(source.known) == 30 + 65


def test_short_sequences_are_refused() -> None:
    tokens = torch.zeros(2, 4, dtype=torch.long)
    short = replace(on_text(embedded()), split=Split(tokens, tokens))
    with pytest.raises(UserError, match="4 tokens are too short to permute"):
        text_order_rows(short, python_source(), context=CONTEXT)
