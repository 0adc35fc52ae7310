"""The examples in the docstrings run and give what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["probes.regression"])
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
