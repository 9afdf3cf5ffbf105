"""Where CUTLASS's headers, CUDA's headers and NVRTC are. All are found without importing a package, and without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelyard.errors import BackendUnavailableError
from kernelyard.runtime import nvrtc

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
    """What kernels are compiled with. folders: where headers are looked for, in order."""

    nvrtc: str
    nvrtc_version: str
    cutlass: Path
    cutlass_version: str
    cuda_headers: tuple[Path, ...]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Our stand-ins come first: what they stand for is not to be found behind them."""
        return (STAND_INS, self.cutlass / "include", self.cutlass / ATTENTION, *self.cuda_headers)


@cache
def find_toolchain() -> Toolchain:
    """What is here.

    Raises: BackendUnavailableError with what is missing, or does not fit together, and the line that installs it.
    """
    source = _cutlass_source()
    version = _cutlass_version(source)
    found = nvrtc.find()
    if found is None:
        raise BackendUnavailableError("there is no NVRTC to compile CUTLASS with", hint=INSTALL_HINT)
    library = found[0]
    number = _nvrtc_version(library)
    headers = _cuda_headers(library, found[1])
    major = _headers_major(headers[0])
    if major != number[0]:
        raise BackendUnavailableError(
            "NVRTC and the CUDA headers are of different major versions",
            found=f"NVRTC {number[0]} ({library}), headers of CUDA {major} ({headers[0]})",
            expected="one major version",
            hint=f"pip install the headers beside NVRTC {number[0]}: {_header_packages(number[0])}",
        )
    return Toolchain(library, ".".join(map(str, number)), source, version, headers)


def _header_packages(major: int) -> str:
    suffix = "-cu12" if major == 12 else ""
    return f"nvidia-cuda-runtime{suffix} nvidia-cuda-cccl{suffix}"


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
        "CUTLASS's headers are not here",
        found=f"CUTLASS_PATH={given}" if given else f"no package {CUTLASS_PACKAGE} with headers",
        expected="nvidia-cutlass, or a checkout of CUTLASS in CUTLASS_PATH",
        hint=INSTALL_HINT,
    )


def _cutlass_version(source: Path) -> str:
    text = (source / "include/cutlass/version.h").read_text(encoding="utf-8")
    numbers = [_defined(text, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    if tuple(numbers[:2]) < LEAST_CUTLASS:
        raise BackendUnavailableError(
            "this CUTLASS is too old",
            found=".".join(map(str, numbers)),
            expected=f"{'.'.join(map(str, LEAST_CUTLASS))} or newer",
            hint=INSTALL_HINT,
        )
    return ".".join(map(str, numbers))


def _defined(text: str, name: str) -> int:
    found = re.search(rf"#define\s+{name}\s+(\d+)", text)
    return int(found[1]) if found else 0


def _nvrtc_version(library: str) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError("NVRTC cannot be loaded", where=library, found=error, hint=INSTALL_HINT) from error
    if status:
        raise BackendUnavailableError("NVRTC does not tell its version", where=library, found=status, hint=INSTALL_HINT)
    return major.value, minor.value


def _cuda_headers(library: str, beside: tuple[Path, ...]) -> tuple[Path, ...]:
    """The folders of the runtime's headers and of the C++ library's: those beside NVRTC, else a toolkit's."""
    for runtime, cpp in _candidates(library, beside):
        if (runtime / "cuda_runtime_api.h").is_file() and (cpp / "cuda/std/cstdint").is_file():
            return (runtime, cpp) if runtime != cpp else (runtime,)
    raise BackendUnavailableError(
        "CUDA's headers are not here",
        where=library,
        expected="cuda_runtime_api.h and cuda/std",
        hint=INSTALL_HINT,
    )


def _candidates(library: str, beside: tuple[Path, ...]) -> Iterator[tuple[Path, Path]]:
    for runtime in beside:
        yield runtime, runtime / "cccl"
        yield runtime, runtime.parents[1] / "cuda_cccl/include"
        yield runtime, runtime
    if beside:
        return  # a wheel's NVRTC does not go with another release's headers
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *TOOLKITS]
    for root in (Path(toolkit) for toolkit in toolkits if toolkit):
        yield root / "include", root / "include/cccl"
        yield root / "include", root / "include"


def _headers_major(folder: Path) -> int:
    return _defined((folder / "cuda_runtime_api.h").read_text(encoding="utf-8"), "CUDART_VERSION") // 1000
