"""nvidia-cudnn-frontend and the libraries behind it: found, loaded, and refused where they do not go together.

Nothing of it is needed to compile, nor on the emulator. A GPU needs all of it; planning for one ahead of time needs all
but the GPU.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from importlib import metadata
from types import ModuleType

from kernelyard.errors import BackendUnavailableError, ToolchainError
from kernelyard_cuda import nvrtc
from kernelyard_cuda.driver_api import DRIVER
from kernelyard_cuda.libraries import CUBLASLT, CUDNN, MAJORS, NVRTC, CudaLibrary, major_in_use, usable

FRONTEND, MODULE = "nvidia-cudnn-frontend", "cudnn"
LEAST, BELOW = (1, 28), (1, 29)
WHERE = "backend 'cudnn'"
INSTALL_HINT = "pip install 'kernelyard-cudnn[cu12]' or 'kernelyard-cudnn[cu13]', as the other CUDA libraries here"
EMULATOR_HINT = f'{INSTALL_HINT}; or run on kernelyard.cuda("emulator")'


def wheel_majors() -> tuple[int, ...]:
    """Return the major versions of CUDA for which a wheel of cuDNN is installed.

    Its library is called alike for each.
    """
    return tuple(major for major in MAJORS if _version_of(f"nvidia-cudnn-cu{major}"))


def refusal() -> BackendUnavailableError | None:
    """Return the reason why the installed libraries are incompatible, if so; nothing is loaded."""
    wheels = wheel_majors()
    major, reason = major_in_use()
    if len(wheels) > 1:
        return BackendUnavailableError(
            "two cuDNN wheels are installed in one folder",
            where=WHERE,
            found=" and ".join(f"nvidia-cudnn-cu{each}" for each in wheels),
            expected="one",
            hint=f"pip uninstall {' '.join(f'nvidia-cudnn-cu{each}' for each in wheels)}, then {INSTALL_HINT}",
        )
    if wheels and major and wheels[0] != major:
        return BackendUnavailableError(
            "two major versions of CUDA cannot be mixed in one process",
            where=WHERE,
            found=f"nvidia-cudnn-cu{wheels[0]}, but {reason}",
            expected=f"cuDNN for CUDA {major}",
            hint=f"pip install 'kernelyard-cudnn[cu{major}]', and uninstall nvidia-cudnn-cu{wheels[0]}",
        )
    return None


def frontend_version() -> str:
    """Return the version of the frontend that is installed.

    Raises: BackendUnavailableError where it is none, or another one than the plugin is made for.
    """
    version = _version_of(FRONTEND)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not LEAST <= numbers < BELOW:
        raise BackendUnavailableError(
            "cuDNN's frontend is not installed" if not version else "cuDNN's frontend has an unsupported version",
            where=WHERE,
            found=version or "no package nvidia-cudnn-frontend",
            expected=f"{FRONTEND}>={LEAST[0]}.{LEAST[1]},<{BELOW[0]}.{BELOW[1]}",
            hint=EMULATOR_HINT,
        )
    return version


@cache
def load() -> ModuleType:
    """Return the frontend's module, with the libraries that it opens at need loaded before.

    Raises: BackendUnavailableError naming what is missing.
    """
    frontend_version()
    mixed = refusal()
    if mixed is not None:
        raise mixed
    for library in (NVRTC, CUBLASLT, CUDNN):
        _preload(library)
    try:
        module = importlib.import_module(MODULE)
        module.backend_version()
    except Exception as error:  # it has an error of its own for each thing that is missing
        raise _missing(f"{type(error).__name__}: {error}") from error
    return module


def load_for_planning() -> ModuleType:
    """Return the frontend's module, for plans without a GPU: cuDNN's engines cannot be loaded without the driver's
    library.

    Raises: BackendUnavailableError.
    """
    module = load()
    try:
        ctypes.CDLL(DRIVER, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendUnavailableError(
            "cuDNN cannot plan without the CUDA driver's library",
            where=WHERE,
            found=str(error),
            expected=DRIVER,
            hint='install NVIDIA\'s driver, or leave planning to the machine with the GPU: {"cudnn": {"plan_for": []}}',
        ) from error
    return module


def facts() -> dict[str, str]:
    """Return the versions and paths of the libraries, for `kernelyard doctor`."""
    try:
        module = load()
    except BackendUnavailableError as error:
        return {"cuDNN": f"none, which GPU programs need: {error.found}; {error.hint}"}
    path = next((each.path for each in usable(CUDNN, INSTALL_HINT)), "where the frontend found it")
    major = next(iter(wheel_majors()), major_in_use()[0])
    version = f"{module.backend_version_string()}{f' (CUDA {major})' if major else ''}"
    return {"cuDNN": path, "version": version, "frontend": frontend_version()}


def _preload(library: CudaLibrary) -> None:
    """Load a library by name for all that use it. A missing one is no error: it may not be needed."""
    for each in usable(library, INSTALL_HINT):
        try:
            ctypes.CDLL(each.path, mode=ctypes.RTLD_GLOBAL)
            if library is NVRTC:
                nvrtc.load_builtins(each.path)
        except (OSError, ToolchainError):
            continue
        return


def _missing(found: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        "cuDNN cannot be loaded", where=WHERE, found=found, expected="libcudnn.so.9", hint=EMULATOR_HINT
    )


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
