"""Products and embeddings whose weights stay as a file stores them: integers, scales and minima, or narrow floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from kernelyard import dtypes, nn
from kernelyard_llm.blocks import Planes
from kernelyard_llm.errors import LanguageModelError

Products: TypeAlias = Literal["float", "int8", "int16"]
DEFAULT_PRODUCTS: Products = "int16"
_BITS = {"int8": 8, "int16": 16}


def check_products(products: object) -> Products:
    """Return the kind of products. Raises: LanguageModelError for another."""
    found = next((kind for kind in get_args(Products) if kind == products), None)
    if found is None:
        expected = " or ".join(get_args(Products))
        raise LanguageModelError("there is no such kind of products", found=repr(products), expected=expected)
    return found


def _parameter(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(array.shape, dtypes.from_numpy(array.dtype), array)


class Dense(nn.Module):
    """x (..., in) times a weight that is stored by output (out, in), plus a bias.

    products: "int8" and "int16" round x by the groups that a quantized weight has, so that integers are multiplied.
    """

    def __init__(
        self, weight: np.ndarray | Planes, bias: np.ndarray | None = None, products: Products = DEFAULT_PRODUCTS
    ) -> None:
        self.columns = weight.shape[0]
        self.group = weight.group if isinstance(weight, Planes) and products in _BITS else None
        self.bits = _BITS.get(products)
        self.bias = None if bias is None else _parameter(bias.astype(np.float32))
        if isinstance(weight, Planes):
            groups = weight.scales.shape[1]
            codes = np.ascontiguousarray(weight.codes.T).reshape(groups, weight.group, self.columns)
            self.weight = _parameter(codes)
            self.scales = _parameter(_transpose_groups(weight.scales))
            self.minima = None if weight.minima is None else _parameter(_transpose_groups(weight.minima))
        else:
            # Turned here, not by an operator: a library that declines the product gives the cast back, not more.
            turned = np.ascontiguousarray(weight.T)
            self.weight, self.scales, self.minima = _parameter(turned), None, None

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        if self.group is not None:
            x = nn.op.network.emit("fake_quantize", x, block=self.group, bits=self.bits)
        y = x @ self._matrix()
        return y if self.bias is None else y + self.bias

    def take(self, indices: nn.Tensor) -> nn.Tensor:
        """Return rows of the weight as it is stored, as `Embedding` does of a table: for weights that are both."""
        columns = nn.op.take(self.weight, indices, 1).astype("float32") if self.scales is None else None
        columns = nn.op.take(self._matrix(), indices, 1) if columns is None else columns
        return nn.op.permute_dims(columns, (*range(1, columns.ndim), 0))

    def _matrix(self) -> nn.Tensor:
        """Return the weight (in, out)."""
        wide = self.weight.astype("float32")
        if self.scales is None:
            return wide
        wide = wide * self.scales.astype("float32")
        wide = wide if self.minima is None else wide + self.minima.astype("float32")
        groups, group, columns = self.weight.shape
        return wide.reshape(groups * group, columns)


class Embedding(nn.Module):
    """Rows of a table: of its integers and their scales, where it is quantized."""

    def __init__(self, table: np.ndarray | Planes) -> None:
        if isinstance(table, Planes):
            self.table = _parameter(table.codes.reshape(*table.scales.shape, table.group))
            self.scales = _parameter(table.scales)
            self.minima = None if table.minima is None else _parameter(table.minima)
        else:
            self.table, self.scales, self.minima = _parameter(table), None, None

    def forward(self, indices: nn.Tensor) -> nn.Tensor:
        rows = nn.op.take(self.table, indices, 0).astype("float32")
        if self.scales is None:
            return rows
        rows = rows * nn.op.unsqueeze(nn.op.take(self.scales, indices, 0).astype("float32"), -1)
        if self.minima is not None:
            rows = rows + nn.op.unsqueeze(nn.op.take(self.minima, indices, 0).astype("float32"), -1)
        *outer, groups, group = rows.shape
        return rows.reshape(*outer, groups * group)


def stack_weights(parts: Sequence[np.ndarray | Planes]) -> np.ndarray | Planes | None:
    """Return matrices (out, in) one below the other; None where they are stored in different ways."""
    planes = [part for part in parts if isinstance(part, Planes)]
    arrays = [part for part in parts if not isinstance(part, Planes)]
    if not planes:
        return np.concatenate(arrays) if len({array.dtype for array in arrays}) == 1 else None
    ways = {(part.bits, part.group, part.minima is None, part.scales.dtype) for part in planes}
    return None if arrays or len(ways) > 1 else _stack_planes(planes)


def _stack_planes(planes: Sequence[Planes]) -> Planes:
    minima = [part.minima for part in planes if part.minima is not None]
    return Planes(
        planes[0].bits,
        np.concatenate([part.codes for part in planes]),
        np.concatenate([part.scales for part in planes]),
        np.concatenate(minima) if minima else None,
    )


def _transpose_groups(parameters: np.ndarray) -> np.ndarray:
    """Return parameters (out, groups) as (groups, 1, out)."""
    return np.ascontiguousarray(parameters.T)[:, None]
