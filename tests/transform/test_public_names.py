"""The package's own names: every pass is there."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

from kernelyard import transform
from kernelyard.transform.pass_infra.pass_base import FunctionPass, Pass


def passes() -> dict[str, type[Pass]]:
    """Every public pass class of the package, by name."""
    found: dict[str, type[Pass]] = {}
    for each in pkgutil.walk_packages(transform.__path__, f"{transform.__name__}."):
        module = import_module(each.name)
        for name, value in vars(module).items():
            is_pass = isinstance(value, type) and issubclass(value, Pass) and value.__module__ == module.__name__
            if is_pass and not name.startswith("_"):
                found[name] = value
    return found


def test_every_pass_is_a_name_of_the_package() -> None:
    found = passes()
    assert len(found) > 30
    assert {name: getattr(transform, name) for name in found} == found
    assert set(found) <= set(dir(transform))


def test_every_pass_has_a_docstring_and_a_name_of_its_own() -> None:
    named = [cls.name for name, cls in passes().items() if cls not in (Pass, FunctionPass) and hasattr(cls, "name")]
    assert len(set(named)) == len(named)
    assert all(cls.__doc__ for cls in passes().values())


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'FuseOpsByPatern'"):
        transform.FuseOpsByPatern  # noqa: B018


def test_one_pass_does_not_load_them_all() -> None:
    code = (
        "import sys; from kernelyard.transform import Sequential;"
        " print([m for m in sys.modules if m.startswith('kernelyard.transform.')])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "['kernelyard.transform.pass_infra', 'kernelyard.transform.pass_infra.pass_base']"
