"""The frontend's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelyard.errors import FrontendError


@dataclass(frozen=True)
class ImportOptions:
    """shapes: input name -> shape, None where a size stays open. folder: where external weights lie."""

    shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    folder: Path | None = None

    @staticmethod
    def of(options: Mapping[str, Any]) -> ImportOptions:
        """Checked options.

        Raises: FrontendError that names the option.
        """
        unknown = set(options) - {"shapes", "folder"}
        if unknown:
            raise FrontendError(
                f"the ONNX frontend has no option {sorted(unknown)[0]!r}",
                expected="shapes, folder",
                found=sorted(unknown),
            )
        folder = options.get("folder")
        shapes = options.get("shapes", {})
        return ImportOptions({name: _shape(name, shape) for name, shape in shapes.items()}, folder and Path(folder))


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
