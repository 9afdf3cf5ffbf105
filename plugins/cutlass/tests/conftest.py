"""What the tests share: programs that are compiled for CUDA, and run on the emulator beside the reference.

Where CUTLASS or NVRTC is missing the backend is used without them: nothing is compiled for a target without an arch, and
what is taken does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing.offload_bench import OffloadBench, skip_without
from kernelyard_cutlass.backend import CutlassBackend
from kernelyard_cutlass.runtime import CutlassModule

# of tests that compile templates
NEEDS_TOOLCHAIN = [
    pytest.mark.cuda_libs,
    pytest.mark.slow,
    pytest.mark.skipif(
        CutlassBackend().probe() is not None,
        reason="CUTLASS's headers, CUDA's headers or NVRTC are not installed: pip install 'kernelyard-cutlass[cu12]'",
    ),
]


@pytest.fixture(scope="package", autouse=True)
def _found() -> Iterator[None]:
    """The backend is active, whatever is installed here."""
    with pytest.MonkeyPatch.context() as patch:
        if CutlassBackend().probe() is not None:
            patch.setattr(CutlassBackend, "probe", lambda self: None)
        get_manager.cache_clear()
        yield
    get_manager.cache_clear()


def runtime_of(exe: ky.Executable) -> CutlassModule:
    """The module of CUTLASS in an executable."""
    (module,) = [module for module in exe.modules if isinstance(module, CutlassModule)]
    return module


BENCH = OffloadBench("cutlass")
compiled, composites = BENCH.compiled, BENCH.composites


@pytest.fixture
def programs() -> OffloadBench:
    skip_without(BENCH.device)
    return BENCH
