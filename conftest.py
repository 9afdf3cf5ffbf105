"""Fixtures and options that every test suite of the repository shares."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from kernelyard.runtime.installed.disk_cache import DiskCache, max_bytes

# A suite that is installed in a virtual environment of this folder is below this file, without the settings beside it.
sys.path.append(str(Path(__file__).parent / "tests" / "helpers"))
pytest_plugins = ["property_campaign"]

GOLDEN = Path(__file__).parent / "tests" / "golden"
# What finds the constants of all modules of ours that are loaded, to try them as examples. Hypothesis has no setting to
# leave them out: phases and backends, which it documents, do not reach this.
SOURCE_CONSTANTS = "_get_local_constants"
GENERATORS: dict[Path, list[tuple[np.random.BitGenerator, Any]]] = {}  # and their states at first, by folder of tests


# Tests start Python hundreds of times: its modules are compiled to bytecode once, whatever the environment asks for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tests compile; what they are to find in a cache they put there.
os.environ["KERNELYARD_CACHE_MB"] = "0"
# Nor is each plugin to be tried out anew, for want of a cache; tests of that turn it on.
os.environ["KERNELYARD_PLUGIN_TRIAL"] = "0"
# Programs for the emulator need no code for GPUs; tests of that name what they compile for.
os.environ["KERNELYARD_CUDA_ARCHS"] = ""
# No test depends on how busy the machine is, nor on chance: plugins have their time, and property tests see the same
# examples in every run.
os.environ["KERNELYARD_PLUGIN_TIMEOUT"] = "600"
settings.register_profile("kernelyard", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelyard")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples whichever modules are loaded, and search none for constants, but in a campaign."""
    if not config.getoption("--campaign", None):
        pytest.MonkeyPatch().setattr(providers, SOURCE_CONSTANTS, Constants)  # an error where it has another name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without a search for garbage: a million objects that stay are no garbage, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests where workers share them out: one that begins such a file last works alone."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)  # a stable sort: those of a file stay together


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the generators of random numbers that modules of tests hold, as they are before the first test."""
    for module in list(sys.modules.values()):
        # By their types: `isinstance` asks objects for their class, which warns where PyTorch wraps deprecated names.
        found = [value for value in vars(module).values() if issubclass(type(value), np.random.Generator)]
        if found and module.__file__:
            noted = GENERATORS.setdefault(Path(module.__file__).parent, [])
            noted += [(generator.bit_generator, generator.bit_generator.state) for generator in found]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _rewind_generators(item.path.parent)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    _rewind_generators(pyfuncitem.path.parent)


def _rewind_generators(folder: Path) -> None:
    """Draw the same numbers in each run of a test, whichever tests ran before it in this process."""
    for bits, state in GENERATORS.get(folder, ()):
        bits.state = state


@pytest.fixture(scope="session", autouse=True)
def _compiled_ahead() -> Iterator[None]:
    """Programs for GPUs are compiled as where there is none: libraries of CUDA may be missing here."""
    from kernelyard_cuda import driver_api as cuda_driver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "gpu_is_here", lambda: False)
        yield


class KeptPrograms(DiskCache):
    """A `DiskCache` that, where `KERNELYARD_CACHE_MB` turns these off, has a file for each program in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.folder = folder

    def get(self, key: str) -> bytes | None:
        if max_bytes():
            return super().get(key)
        path = self._kept(key)
        return path.read_bytes() if path.exists() else None

    def put(self, key: str, payload: bytes) -> None:
        if max_bytes():
            super().put(key, payload)
            return
        path = self._kept(key)
        made = path.with_name(f"{path.name}.{os.getpid()}.{get_ident()}")
        made.write_bytes(payload)
        made.replace(path)  # other processes read it once it is complete

    def _kept(self, key: str) -> Path:
        return self.folder / hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture(scope="session", autouse=True)
def _programs_are_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile a program of the same text once for all tests of a run; precompile the emulator's header."""
    from kernelyard_native_cpu import generator
    from kernelyard_native_cuda.drivers import emulator

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "plugin_cache", lambda distribution: folder)
        patch.setattr(emulator, "CACHE", KeptPrograms("cuda-emulator", folder))
        patch.setattr(generator, "CACHE", KeptPrograms("native-cpu", folder))
        yield


class Golden:
    """Compares text with a file whose path follows from the test's name."""

    def __init__(self, path: Path, update: bool) -> None:
        self.path, self.update = path, update

    def check(self, text: str) -> None:
        """Assert that `text` is what the golden file holds."""
        __tracebackhide__ = True
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(text, encoding="utf-8")
            return
        assert self.path.exists(), (
            f"no golden file {self.path}; run pytest with --update-golden and read what it writes"
        )
        assert text == self.path.read_text(encoding="utf-8"), (
            "differs from its golden file; --update-golden rewrites it"
        )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check(text)`: the text must be the same as last time."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", request.node.name)
    path = GOLDEN / request.path.stem / f"{name}.txt"
    return Golden(path, bool(request.config.getoption("--update-golden")))
