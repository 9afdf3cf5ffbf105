"""Discovery of CUTLASS's headers, CUDA's headers and NVRTC, without importing a package and without a GPU."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelyard.errors import BackendUnavailableError
from kernelyard_cuda import nvrtc
from kernelyard_cuda.libraries import NVRTC, PACKAGE, usable

# What brings everything; the package nvidia-cutlass declares others that are not needed here.
INSTALL_HINT = (
    "pip install --no-deps nvidia-cutlass==4.2.0.0 && "
    "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12"
)
CUTLASS_PACKAGE = "cutlass_library"
ATTENTION = "examples/41_fused_multi_head_attention"
STAND_INS = Path(__file__).with_name("stand_ins")
TOOLKITS = ("/usr/local/cuda", "/opt/cuda")
LEAST_CUTLASS = (4, 0)


@dataclass(frozen=True)
class Toolchain:
    """The toolchain that compiles kernels. folders: the include path, in order."""

    nvrtc: str
    nvrtc_version: str
    cutlass: Path
    cutlass_version: str
    cuda_headers: tuple[Path, ...]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Our stubs come first: what they stand for is not to be found behind them."""
        return (STAND_INS, self.cutlass / "include", self.cutlass / ATTENTION, *self.cuda_headers)


@cache
def find_toolchain() -> Toolchain:
    """Find the installed toolchain.

    Raises: BackendUnavailableError with what is missing, or does not fit together, and the line that installs it.
    """
    source = _cutlass_source()
    version = _cutlass_version(source)
    library = _nvrtc()
    number = nvrtc.version(library)
    return Toolchain(library, number, source, version, _cuda_headers(int(number.partition(".")[0]), library))


def _nvrtc() -> str:
    found = next(iter(usable(NVRTC, INSTALL_HINT)), None)
    if found is None:
        raise BackendUnavailableError("NVRTC, which compiles CUTLASS, is not installed", hint=INSTALL_HINT)
    error = nvrtc.failure(found.path)
    if error is not None:
        raise BackendUnavailableError(error.message, where=found.path, found=error.found, hint=INSTALL_HINT) from error
    return found.path


def _cutlass_source() -> Path:
    given = os.environ.get("CUTLASS_PATH")
    if given:
        places = [Path(given)]
    else:
        spec = importlib.util.find_spec(CUTLASS_PACKAGE)
        places = [Path(place, "source") for place in (spec.submodule_search_locations or () if spec else ())]
    for place in places:
        if (place / "include/cutlass/cutlass.h").is_file() and (place / ATTENTION / "kernel_forward.h").is_file():
            return place
    raise BackendUnavailableError(
        "CUTLASS's headers are not installed",
        found=f"CUTLASS_PATH={given}" if given else f"no package {CUTLASS_PACKAGE} with headers",
        expected="nvidia-cutlass, or a checkout of CUTLASS in CUTLASS_PATH",
        hint=INSTALL_HINT,
    )


def _cutlass_version(source: Path) -> str:
    text = (source / "include/cutlass/version.h").read_text(encoding="utf-8")
    numbers = [_read_define(text, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    if tuple(numbers[:2]) < LEAST_CUTLASS:
        raise BackendUnavailableError(
            "this CUTLASS is too old",
            found=".".join(map(str, numbers)),
            expected=f"{'.'.join(map(str, LEAST_CUTLASS))} or newer",
            hint=INSTALL_HINT,
        )
    return ".".join(map(str, numbers))


def _read_define(text: str, name: str) -> int:
    found = re.search(rf"#define\s+{name}\s+(\d+)", text)
    return int(found[1]) if found else 0


def _cuda_headers(major: int, library: str) -> tuple[Path, ...]:
    """Return the folders of the runtime's headers and of the C++ library's, of NVRTC's own major version."""
    others: list[str] = []
    for runtime, cpp in _candidates():
        if not (runtime / "cuda_runtime_api.h").is_file() or not (cpp / "cuda/std/cstdint").is_file():
            continue
        found = _read_define((runtime / "cuda_runtime_api.h").read_text(encoding="utf-8"), "CUDART_VERSION") // 1000
        if found == major:
            return (runtime, cpp) if runtime != cpp else (runtime,)
        others.append(f"CUDA {found} in {runtime}")
    suffix = "-cu12" if major == 12 else ""
    raise BackendUnavailableError(
        f"the headers of CUDA {major} are not installed"
        if not others
        else "NVRTC and CUDA's headers have different versions",
        where=library,
        found=", ".join(others) or "none",
        expected=f"cuda_runtime_api.h and cuda/std of CUDA {major}, as NVRTC is",
        hint=f"pip install nvidia-cuda-runtime{suffix} nvidia-cuda-cccl{suffix}",
    )


def _candidates() -> Iterator[tuple[Path, Path]]:
    package = importlib.util.find_spec(PACKAGE)
    for root in map(Path, package.submodule_search_locations or () if package else ()):
        yield root / "cu13/include", root / "cu13/include/cccl"
        yield root / "cuda_runtime/include", root / "cuda_cccl/include"
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *TOOLKITS]
    for root in (Path(toolkit) for toolkit in toolkits if toolkit):
        yield root / "include", root / "include/cccl"
        yield root / "include", root / "include"
