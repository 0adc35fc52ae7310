"""What is held back is put back as it was found."""

import logging

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

from nope_interp.pretrained.quiet import quiet


def as_it_is() -> tuple[bool, bool, int]:
    drawn = transformers_logging.is_progress_bar_enabled()
    return are_progress_bars_disabled(), drawn, logging.root.manager.disable


@pytest.mark.parametrize("disabled", [True, False])
def test_a_users_own_choice_stays(disabled: bool) -> None:
    before = as_it_is()
    (disable_progress_bars if disabled else enable_progress_bars)()
    logging.disable(logging.INFO if disabled else logging.NOTSET)
    try:
        found = as_it_is()
        assert found[0] == disabled
        with quiet():
            assert as_it_is() == (True, False, logging.WARNING)
        assert as_it_is() == found
    finally:
        (disable_progress_bars if before[0] else enable_progress_bars)()
        logging.disable(before[2])
