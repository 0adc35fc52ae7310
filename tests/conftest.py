"""Models that several test files share: tiny random ones of ours, and tiny Hugging Face ones."""

import gc
import os
from collections import Counter

# Read when the library is imported: no test may reach a model hub, whatever the network allows.
os.environ["HF_HUB_OFFLINE"] = "1"
# Small models are trained in this process: what a test patches does not reach another one.
os.environ["OMP_NUM_THREADS"] = "1"
# What is printed here is as wide as in a pipe, however wide the terminal of the tests is.
os.environ.pop("COLUMNS", None)
# scikit-learn skips some of its estimator checks without it.
os.environ["SCIPY_ARRAY_API"] = "1"
# What is imported stays until the end: to look for garbage in it takes seconds.
gc.disable()

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.typecheck import check_annotations

# How long an example may take is the machine's business, and no property of what is tested. Nor
# may a run fail by its draw: others are drawn with `--hypothesis-profile others`.
settings.register_profile("others", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", settings.get_profile("others"), derandomize=True)
settings.load_profile("any machine")

# Annotations are checked as the tests run: shapes too. Before anything of ours is imported.
check_annotations()

from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests come first: begun last, one would keep a single worker busy."""
    for item in items:
        for value in getattr(getattr(item, "callspec", None), "params", {}).values():
            # Workers order a set differently, and then run nothing: in one of two runs.
            if isinstance(value, set | frozenset) and len(value) > 1 and str(value) in item.name:
                raise pytest.UsageError(f"{item.nodeid} is named by a set: give a tuple")
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What a test draws does not depend on those before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_config() -> TransformerConfig:
    return TransformerConfig(n_layers=2, d_model=32, n_heads=4, d_vocab=50, n_ctx=32)


@pytest.fixture
def tiny_model(tiny_config: TransformerConfig) -> HookedTransformer:
    return HookedTransformer(tiny_config).eval()


@pytest.fixture
def tiny_tokens(tiny_config: TransformerConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(tiny_config.d_vocab, (6, 24), generator=generator)
