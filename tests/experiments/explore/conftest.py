"""Two models to play with: the embedded one, and a tiny random Llama that reads bytes."""

import pytest
import torch

from experiments.explore.playground import Playground
from experiments.loaded import load
from tests.byte_llama import byte_llama


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Playground:
    return Playground(load(), tmp_path_factory.mktemp("no-runs"))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Playground:
    """Rotary positions, four heads that share two keys."""
    torch.manual_seed(0)
    folder = byte_llama(tmp_path_factory.mktemp("llama") / "tiny")
    return Playground(load(folder), tmp_path_factory.mktemp("no-runs"))


@pytest.fixture(params=["embedded", "llama"])
def playground(request: pytest.FixtureRequest) -> Playground:
    """Each of the two."""
    found: Playground = request.getfixturevalue(request.param)
    return found
