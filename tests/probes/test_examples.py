"""The examples in the docstrings of all three packages run and give what they show."""

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

PACKAGES = ("probes", "nope_interp", "experiments")


def modules_with_examples() -> Iterator[str]:
    """By their source, so that none is imported before its turn."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        infos = pkgutil.walk_packages(package.__path__, f"{name}.")
        for module in (name, *(info.name for info in infos if not info.name.endswith("__main__"))):
            spec = importlib.util.find_spec(module)
            assert spec is not None
            assert spec.loader is not None
            if ">>> " in spec.loader.get_source(module):
                yield module


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert outcome.attempted > 0
    assert outcome.failed == 0
