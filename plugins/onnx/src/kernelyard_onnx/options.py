"""The frontend's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard.errors import FrontendError

NAMES = ("shapes", "values", "folder")


@dataclass(frozen=True)
class ImportOptions:
    """shapes: input name -> shape, None where a size stays open. values: input name -> its value, for inputs that are
    to become constants. folder: where external weights lie."""

    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    folder: Path | None = None

    @staticmethod
    def of(options: Mapping[str, Any]) -> ImportOptions:
        """Checked options.

        Raises: FrontendError that names the option.
        """
        unknown = sorted(set(options) - set(NAMES))
        if unknown:
            raise FrontendError(
                f"the ONNX frontend has no option {unknown[0]!r}", expected=", ".join(NAMES), found=", ".join(unknown)
            )
        folder = options.get("folder")
        return ImportOptions(
            {name: _shape(name, shape) for name, shape in options.get("shapes", {}).items()},
            {name: np.asarray(value) for name, value in options.get("values", {}).items()},
            None if folder is None else Path(folder),
        )


def _shape(name: str, shape: Any) -> tuple[int | None, ...]:
    sizes = tuple(shape)
    for size in sizes:
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            raise FrontendError(
                f"the option shapes has a size that makes no sense for input {name!r}",
                found=repr(size),
                expected="a number, or None for a size that stays open",
            )
    return sizes
