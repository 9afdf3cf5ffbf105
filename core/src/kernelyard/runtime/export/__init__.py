"""Exported libraries: the C interface (`kernelyard.h`), what runs a program in C (`program.c`), and what writes both
together with a program's tables."""

from __future__ import annotations

from pathlib import Path


def get_include() -> str:
    """Return the folder for `cc -I...`: `kernelyard.h` of exported libraries, `kernelyard_plugin.h` of C kernels."""
    return str(Path(__file__).parent)
