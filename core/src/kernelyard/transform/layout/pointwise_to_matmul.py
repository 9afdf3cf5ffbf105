"""Compute pointwise convolutions between transposes as matrix products, which need no transposes.

A transformer may spell its linear layers as convolutions of kernel 1, with groups to save weights (SqueezeBERT). Their
channels come first, those of the layer norms and of the attention between them last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelyard.dims import Shape
from kernelyard.ir import Binding, Call, Constant, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.ir.visitor import result_vars, uses
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.transform.layout.convert_layout import to_first
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import defining_call, is_tensor_operator, make

FIRST = to_first(3)
BY_GROUP = (1, 0, 2)


class PointwiseToMatmul(FunctionPass):
    """`permute_dims(nn.conv1d(permute_dims(x), w))` becomes `matmul(x, w)`; of groups, a product with a batch of them.

    Elementwise operators between two such permutations are computed with the channels last, too, and reshapes to heads
    of attention. A convolution stays where a permutation would be left over: its input must come from a permutation or
    a product, and all that reads its result must want the channels last. Weights are constant, strides 1.
    """

    name = "pointwise_to_matmul"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        wanted = _find_results_read_channels_last(function)
        return _Converter(wanted).mutate(function) if wanted else function


def _find_results_read_channels_last(function: Function) -> set[Var]:
    """Return the results of convolutions, and of what follows them, that are read with their channels last alone."""
    if not any(_is_pointwise(binding.value) for binding in function.bindings):
        return set()
    readers, results, found = uses(function), set(result_vars(function)), set[Var]()
    for binding in reversed(function.bindings):
        var = binding.var
        if var not in results and all(_wants_last(reader, var, found) for reader in readers[var]):
            found.add(var)
    return found


def _wants_last(reader: Binding, var: Var, found: set[Var]) -> bool:
    value = reader.value
    if not is_tensor_operator(value):
        return False
    if value.op_name == "permute_dims":
        axes = value.attrs["axes"]
        return axes[-1] != len(axes) - 1
    if value.op_name == "matmul":
        return value.args[0] is not var  # keys of attention, which a product reads transposed as well
    is_followed = value.op_name in ELEMENTWISE or _is_pointwise(value) or _splits_channels(value)
    return is_followed and reader.var in found


def _is_pointwise(value: Expr) -> bool:
    """Return True for a convolution that makes each place of its result of the same place of its input."""
    if not isinstance(value, Call) or value.op_name != "nn.conv1d" or not isinstance(value.args[1], Constant):
        return False
    is_in_place = value.attrs["strides"] == (1,) and not any(value.attrs["padding"])
    return is_in_place and value.args[1].data.shape[2] == 1


def _splits_channels(value: Expr) -> bool:
    """Return True for a reshape from (n, c, l) to (n, heads, c / heads, l)."""
    if not isinstance(value, Call) or value.op_name != "reshape":
        return False
    before, after = value.args[0].tensor_type.shape, value.tensor_type.shape
    return len(before) == 3 and len(after) == 4 and (before[0], before[2]) == (after[0], after[3])


class _Rows(NamedTuple):
    """The channels of each place side by side: (n, l, c), or those of each group, (groups, n * l, c / groups)."""

    value: Expr
    groups: int = 1


class _Converter(FunctionMutator):
    """Values that are wanted with their channels last are known so; their readers see a permutation of it."""

    def __init__(self, wanted: set[Var]) -> None:
        super().__init__()
        self._wanted = wanted
        self._rows: dict[Expr, _Rows] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if var not in self._wanted or not is_tensor_operator(value):
            return value
        if _splits_channels(value):
            return self._heads(value) or value
        rows = self._product(value) if _is_pointwise(value) else self._elementwise(value)
        if rows is None:
            return value
        self._rows[var] = rows._replace(value=self.emit(rows.value, var.name, var.origin))
        return _permute(self._regroup_rows(self._rows[var], 1, value.tensor_type.shape), FIRST)

    def _product(self, call: Call) -> _Rows | None:
        x, weight = call.args
        rows, groups = self._rows_of(x), call.attrs["groups"]
        if rows is None or not isinstance(weight, Constant):
            return None
        by_group = weight.data.reshape(groups, -1, weight.data.shape[1]).transpose(0, 2, 1)
        matrix = np.ascontiguousarray(by_group if groups > 1 else by_group[0])
        return _Rows(make("matmul", self._regroup_rows(rows, groups, x.tensor_type.shape), Constant(matrix)), groups)

    def _elementwise(self, call: Call) -> _Rows | None:
        """Return the operator on rows; in groups where it has one operand alone that is no constant."""
        rows = [self._rows[arg] for arg in call.args if arg in self._rows]
        if call.op_name not in ELEMENTWISE or not rows:
            return None
        is_alone = all(arg in self._rows or isinstance(arg, Constant) for arg in call.args) and len(rows) == 1
        groups = rows[0].groups if is_alone else 1
        operands = [self._operand(arg, groups, call.tensor_type.shape) for arg in call.args]
        found = [operand for operand in operands if operand is not None]
        return _Rows(Call(call.op, found, call.attrs), groups) if len(found) == len(operands) else None

    def _operand(self, operand: Expr, groups: int, shape: Shape) -> Expr | None:
        """Return an operand of a result of `shape` (n, c, l) as it broadcasts to rows."""
        if not operand.tensor_type.shape:
            return operand
        if isinstance(operand, Constant):
            return _broadcast_to_rows(operand, groups)
        rows = self._rows_of(operand) if operand.tensor_type.shape == shape else None
        return None if rows is None else self._regroup_rows(rows, groups, shape)

    def _heads(self, reshape: Call) -> Expr | None:
        """Return the heads of a product: (n, heads, c / heads, l), a permutation of what the product gives."""
        x, (batch, *heads, length) = reshape.args[0], reshape.tensor_type.shape
        if x not in self._rows:
            return None
        last = self._regroup_rows(self._rows[x], 1, x.tensor_type.shape)
        return _permute(self.emit(make("reshape", last, shape=(batch, length, *heads))), (0, 2, 3, 1))

    def _rows_of(self, operand: Expr) -> _Rows | None:
        """Return what a value (n, c, l) is the permutation of; None for one that is none."""
        if operand in self._rows:
            return self._rows[operand]
        permute = defining_call(self, operand, "permute_dims")
        if permute is not None and permute.attrs["axes"] == FIRST:
            return _Rows(permute.args[0])
        return self._join_heads(operand)

    def _join_heads(self, operand: Expr) -> _Rows | None:
        """`reshape(permute_dims(x))`, from (n, heads, c / heads, l) to (n, c, l)."""
        reshape = defining_call(self, operand, "reshape")
        if reshape is None or not _joins_channels(reshape):
            return None
        permute = defining_call(self, reshape.args[0], "permute_dims")
        if permute is None or permute.attrs["axes"][-1] == 3:
            return None
        batch, channels, length = operand.tensor_type.shape
        last = self.emit(_permute(reshape.args[0], (0, 3, 1, 2)))
        return _Rows(self.emit(make("reshape", last, shape=(batch, length, channels))))

    def _regroup_rows(self, rows: _Rows, groups: int, shape: Shape) -> Expr:
        """Return rows of a value of `shape` (n, c, l) in other groups."""
        batch, channels, length = shape
        value = rows.value
        if rows.groups not in (1, groups):
            value = self.emit(make("reshape", self.emit(_permute(value, BY_GROUP)), shape=(batch, length, channels)))
        if groups not in (1, rows.groups):
            parts = (batch * length, groups, channels // groups)
            value = self.emit(_permute(self.emit(make("reshape", value, shape=parts)), BY_GROUP))
        return value


def _joins_channels(reshape: Call) -> bool:
    """Return True for a reshape from (n, heads, c / heads, l) to (n, c, l)."""
    before, after = reshape.args[0].tensor_type.shape, reshape.tensor_type.shape
    return len(before) == 4 and len(after) == 3 and (before[0], before[3]) == (after[0], after[2])


def _broadcast_to_rows(constant: Constant, groups: int) -> Constant | None:
    """Return a number, or one for each channel, as it broadcasts to rows; None for other constants."""
    shape = (1,) * (3 - constant.data.ndim) + constant.data.shape
    if len(shape) != 3 or shape[0] != 1 or shape[2] != 1:
        return None
    vector = constant.data.reshape(-1)
    return Constant(vector.reshape(groups, 1, -1) if groups > 1 and vector.size > 1 else vector)


def _permute(operand: Expr, axes: tuple[int, ...]) -> Call:
    return make("permute_dims", operand, axes=axes)
