"""The libcublasLt that is used: of those on this machine one that goes with what the process uses of CUDA."""

from __future__ import annotations

from kernelyard.errors import BackendUnavailableError
from kernelyard_cublas._native import LtLibrary
from kernelyard_cuda.libraries import CUBLASLT, candidates, major_in_use, usable

INSTALL_HINT = "pip install 'kernelyard-cublas[cu12]' or 'kernelyard-cublas[cu13]', as the other CUDA libraries here"


def refusal() -> BackendUnavailableError | None:
    """Return the reason why the installed library is unusable; a missing one does not prevent compiling."""
    major, _ = major_in_use()
    # In order, and no further than needed: the last place loads what it looks for.
    if any(not major or each.major in (0, major) for each in candidates(CUBLASLT)):
        return None
    try:
        usable(CUBLASLT, f"pip install 'kernelyard-cublas[cu{major}]', and uninstall the other cuBLAS")
    except BackendUnavailableError as error:
        return error
    return None


def load_library() -> LtLibrary:
    """Return a library, newly opened: each device has a handle of its own.

    Raises: BackendUnavailableError naming every place that was tried.
    """
    mixed = refusal()
    if mixed is not None:
        raise mixed
    reasons: list[str] = []
    for each in usable(CUBLASLT, INSTALL_HINT):
        try:
            return LtLibrary(each.path)
        except (OSError, AttributeError) as error:
            reasons.append(f"{each.source}: {error}")
    raise BackendUnavailableError(
        "no usable cuBLASLt library",
        where="backend 'cublas'",
        found="; ".join(reasons) or "none",
        expected="libcublasLt.so.12 or libcublasLt.so.13",
        hint=f'{INSTALL_HINT}; or run on kernelyard.cuda("emulator")',
    )


def version_text(version: int) -> str:
    """Return a version as people write it.

    Example:
        >>> version_text(120903), version_text(131000)
        ('12.9.3', '13.10.0')
    """
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
