"""Fixtures and options that every test suite of the repository shares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "tests" / "golden"


# Tests compile; what they are to find in a cache they put there.
os.environ["KERNELYARD_CACHE_MB"] = "0"
# Nor is each plugin to be tried out anew, for want of a cache; tests of that turn it on.
os.environ["KERNELYARD_PLUGIN_TRIAL"] = "0"
# Programs for the emulator need no code for GPUs; tests of that name what they compile for.
os.environ["KERNELYARD_CUDA_ARCHS"] = ""
# No test depends on how busy the machine is.
settings.register_profile("kernelyard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelyard")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture(scope="session", autouse=True)
def _compiled_ahead() -> Iterator[None]:
    """Programs for GPUs are compiled as where there is none: libraries of CUDA may be missing here."""
    from kernelyard_cuda import driver_api as cuda_driver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "gpu_is_here", lambda: False)
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
    return Golden(path, request.config.getoption("--update-golden"))
