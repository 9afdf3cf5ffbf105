"""Complex tensors, which our vocabulary does not have: two tensors, the real and the imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node as FxNode

from kernelyard.plugins.api import Expr

PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


@dataclass(frozen=True)
class Complex:
    """The parts of a complex tensor, of the same shape and dtype."""

    real: Expr
    imag: Expr

    def map(self, function: Callable[[Expr], Expr]) -> Complex:
        """Apply a function to the real and the imaginary part."""
        return Complex(function(self.real), function(self.imag))


def is_complex(value: Any) -> bool:
    """Return True for a (fake) tensor with complex elements."""
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def takes_part(node: FxNode) -> bool:
    """Return True for a node with complex operands or results."""
    given = [read.meta.get("val") for read in node.all_input_nodes]
    found = node.meta.get("val")
    return any(map(is_complex, [*given, *(found if isinstance(found, (tuple, list)) else [found])]))
