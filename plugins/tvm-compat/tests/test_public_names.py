"""The names of TVM's that the distribution adds to `kernelyard.transform`."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from distributions import Distribution

import kernelyard_tvm_compat
from kernelyard import transform
from kernelyard.transform.pass_infra.pass_base import Pass

FOLDER = Path(__file__).parents[1]
REGISTERED = Distribution(FOLDER).entry_points[transform.GROUP]


def passes() -> dict[str, type[Pass]]:
    """Every pass class of the distribution, by name."""
    modules = [
        import_module(f"kernelyard_tvm_compat.{each.name}")
        for each in pkgutil.iter_modules(kernelyard_tvm_compat.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {cls.__name__: cls for cls in found if issubclass(cls, Pass) and cls.__module__.startswith("kernelyard_tvm")}


def test_every_pass_is_registered() -> None:
    assert len(passes()) == 12
    assert set(passes()) == set(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_a_name_is_one_of_kernelyards(name: str) -> None:
    module, _, attribute = REGISTERED[name].partition(":")
    assert getattr(transform, name) is getattr(import_module(module), attribute)
    assert name in dir(transform)


def test_no_two_passes_have_one_name() -> None:
    names = [cls.name for cls in passes().values()]
    assert len(set(names)) == len(names)
    assert all(cls.__doc__ for cls in passes().values())


@pytest.mark.parametrize("name", REGISTERED)
def test_where_the_distribution_is_missing_the_error_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform, "load_named", lambda group, name: None)
    monkeypatch.delitem(vars(transform), name, raising=False)
    with pytest.raises(ImportError, match="pip install kernelyard-tvm-compat"):
        getattr(transform, name)
