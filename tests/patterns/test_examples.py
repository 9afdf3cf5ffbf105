"""The examples in the documentation of the pattern language run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import kernelyard.patterns

MODULES = [f"kernelyard.patterns.{module.name}" for module in pkgutil.iter_modules(kernelyard.patterns.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
