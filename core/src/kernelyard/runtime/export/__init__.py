"""Exported libraries: the C interface (`kernelyard.h`), what runs a program in C (`program.c`), and what writes both
together with a program's tables."""

from __future__ import annotations

from pathlib import Path


def get_include() -> str:
    """Return the folder with `kernelyard.h`, for C programs that use an exported library: `cc -I...`."""
    return str(Path(__file__).parent)
