"""Libraries underneath that speak only where something is wrong."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back the progress bars and advice of the libraries underneath."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )
    from transformers.utils import logging as transformers_logging

    level, disabled = transformers_logging.get_verbosity(), logging.root.manager.disable
    drawn = transformers_logging.is_progress_bar_enabled()
    hub_draws = not are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        # Those of transformers bring the hub's with them.
        if drawn:
            transformers_logging.enable_progress_bar()
        (enable_progress_bars if hub_draws else disable_progress_bars)()
        transformers_logging.set_verbosity(level)
