"""Names of symbolic sizes, from the labels that a model gives to the dimensions of its inputs."""

from __future__ import annotations

import re

from kernelyard.dims import Dim, SymbolicDim, symbol
from kernelyard.errors import FrontendError
from kernelyard.plugins.api import FreshNames

_UNFIT = re.compile(r"[^A-Za-z0-9_.]+")


class SymbolNames:
    """Names of symbolic sizes: the model's own where they can be written, else made from the input's name and axis."""

    ANONYMOUS = frozenset({"", "?", "-1", "*", "None", "none"})

    def __init__(self) -> None:
        self._by_label: dict[str, Dim] = {}
        self._names = FreshNames([])

    def fix(self, label: str, size: int) -> None:
        """Let a label stand for a number.

        Raises: FrontendError when it stands for another one.
        """
        if label.strip() in self.ANONYMOUS:
            return
        if self._by_label.setdefault(label, size) != size:
            raise FrontendError(
                f"the option shapes gives two sizes to {label!r}", found=size, expected=self._by_label[label]
            )

    def of_label(self, label: str, input_name: str, axis: int) -> Dim:
        """Return the size that a `dim_param` stands for.

        One label is one symbol, those that mean "unknown" all differ.
        """
        if label.strip() in self.ANONYMOUS:
            return self._new(f"{input_name}_{axis}")
        if label not in self._by_label:
            self._by_label[label] = self._new(label)
        return self._by_label[label]

    def fresh(self, wanted: str) -> SymbolicDim:
        """Return a size that nothing else has: of a result that decides it itself."""
        return self._new(wanted)

    def _new(self, wanted: str) -> SymbolicDim:
        stem = _UNFIT.sub("_", wanted).strip("_.") or "size"
        if stem[0].isdigit() or stem in ("max", "min", "broadcast"):
            stem = f"size_{stem}"
        return symbol(self._names.unique(stem))
