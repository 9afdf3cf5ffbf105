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
    """shapes: input name -> shape, None where a size stays open; a list of shapes for a sequence, None for an optional
    that holds nothing. values: input name -> its value, for inputs that are to become constants; a list of values for a
    sequence, None for an optional that holds nothing. folder: where external weights lie."""

    shapes: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @staticmethod
    def of(options: Mapping[str, Any]) -> ImportOptions:
        """Check the options.

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
            {name: _value(value) for name, value in options.get("values", {}).items()},
            None if folder is None else Path(folder),
        )


def _value(value: Any) -> Any:
    if value is None:
        return None
    is_sequence = isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value)
    return list(value) if is_sequence else np.asarray(value)


def _shape(name: str, shape: Any) -> Any:
    if shape is None:
        return None
    if isinstance(shape, list) and all(isinstance(item, (tuple, list)) for item in shape):
        return [_shape(name, item) for item in shape]
    sizes = tuple(shape)
    for size in sizes:
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            raise FrontendError(
                f"the option shapes has an invalid size for input {name!r}",
                found=repr(size),
                expected="a number, or None for a dynamic size",
            )
    return sizes
