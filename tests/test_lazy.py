"""Modules that fill a registry are imported one after another, until one has what is looked up."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelyard.lazy import RegistryModules, lazy_names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a registry and three modules that fill it; importing the first takes its time."""
    folder = tmp_path / "families_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("REGISTRY = {}\n")
    for name, wait in (("first", 0.1), ("second", 0), ("third", 0)):
        lines = (
            f"import time\nfrom families_of_test import REGISTRY\ntime.sleep({wait})\nREGISTRY[{name!r}] = {name!r}\n"
        )
        (folder / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def modules_of(package: str) -> tuple[RegistryModules, dict[str, str]]:
    registry = __import__(package).REGISTRY
    return RegistryModules(package, ("first", "second", "third")), registry


def test_modules_are_imported_until_one_has_it(package: str) -> None:
    modules, registry = modules_of(package)
    modules.import_until(lambda: "second" in registry)
    assert set(registry) == {"first", "second"}
    assert modules.waiting == [f"{package}.third"]
    modules.import_until(lambda: "first" in registry)
    assert f"{package}.third" not in sys.modules


def test_what_none_has_imports_all(package: str) -> None:
    modules, registry = modules_of(package)
    modules.import_until(lambda: "fourth" in registry)
    assert set(registry) == {"first", "second", "third"}
    assert modules.waiting == []


def test_a_second_thread_waits_for_the_import_of_the_first(package: str) -> None:
    modules, registry = modules_of(package)

    def found(_: int) -> bool:
        modules.import_until(lambda: "first" in registry)
        return "first" in registry

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(found, range(8)))
    assert f"{package}.third" not in sys.modules


def test_a_front_door_names_what_it_does_not_have() -> None:
    get = lazy_names("kernelyard.lazy", {"kernelyard.errors": "PassError"})
    with pytest.raises(AttributeError, match=r"'kernelyard.lazy' has no attribute 'PasError'"):
        get("PasError")
