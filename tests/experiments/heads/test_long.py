"""The whole command on long sequences: it never holds a map of all their tokens."""

from pathlib import Path

import pytest

from experiments import classify_heads
from experiments.heads import found_by
from nope_interp import query_blocks
from nope_interp.tasks.text import python_documentation
from tests.byte_llama import byte_llama
from tests.peak import Peak

LENGTH = 288


@pytest.mark.parametrize("in_blocks", [True, False])
def test_no_part_of_the_command_holds_a_map_of_all_tokens(
    in_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = byte_llama(tmp_path / "m", num_hidden_layers=1, max_position_embeddings=LENGTH)
    text = tmp_path / "text.txt"
    text.write_text(python_documentation()[: 100 * LENGTH])
    monkeypatch.setattr(query_blocks, "_CELLS", 4 * LENGTH * (48 if in_blocks else LENGTH))
    # What heads find their tokens by is read on the beginnings of texts, whose maps are whole.
    monkeypatch.setattr(found_by, "MOST_TOKENS", LENGTH // 4)
    how = {"seq_len": LENGTH, "batch_size": 1, "n_sequences": 16, "text": str(text)}
    # Whole maps are there to be found at all: the model without its random-init variant shows that.
    how |= {"quick": not in_blocks}
    with Peak() as peak:
        # With what it tells: the measurement before a run reads sequences, too.
        found = classify_heads(str(model), out=tmp_path, show_progress=True, **how)
        assert len(found.html()) < 4e6
    assert (peak.numbers < LENGTH**2) == in_blocks
