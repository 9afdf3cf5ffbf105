"""Evaluate calls of known operands at compile time, by the operators' own NumPy reference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import SymbolicDim
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var, operands
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.ir.visitor import definitions
from kernelyard.patterns.dequantized import CONVOLUTIONS, PRODUCTS, find_constant_values, is_dequantized, narrow_weights
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

Folded: TypeAlias = "dict[tuple[object, ...], tuple[Call, Expr]]"

MAX_BYTES = 1 << 30
MAX_GROWTH = 1 << 16
MAX_WEIGHT = 1 << 27
MAX_TABLE = 1 << 22
# Operators that take weights in a form which is made of what models store.
_WITH_WEIGHTS = (*PRODUCTS, "nn.dynamic_quantize_lstm")
_SPREADING = frozenset(("arange", "broadcast_to", "tile"))
# Operators that no reader computes with itself: each would take kernels of its own in every call.
_TABLE_MAKING = frozenset(("scatter_nd", "scatter_elements", "cumsum", "cumprod", "topk", "invert_permutation"))


class FoldConstants(FunctionPass):
    """Replace pure calls of constants by their result, where that does not make the program much larger.

    Weights of products that are computed, as the filters of a resampler are, become constants, too, which kernels
    read packed, and so do tables of up to 4 MiB that are made by a scatter or a scan, as indices of relative positions
    are. Quantized ones stay as they are stored: backends may compute with them (`FoldWeights` folds what none
    has taken). Options: "fold_constants.max_growth" (bytes, 65536): how much larger than its operands a result
    may be; "fold_constants.max_bytes" (1 GiB): the largest result.
    """

    name = "fold_constants"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        limits = dict.fromkeys(find_computed_tables(function), MAX_TABLE)
        limits |= dict.fromkeys(find_computed_weights(function), MAX_WEIGHT)
        return _Folder(context, narrow_weights(function), limits).mutate(function)


def find_computed_weights(function: Function) -> set[Var]:
    """Return what a function computes of constants alone to get an operand of a product; not what repeats numbers, nor
    what dequantizes them.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> angles = b.op("multiply", np.arange(4.0)[:, None], np.arange(2.0))
        >>> filters = b.op("cos", angles)
        >>> function = b.function(b.op("matmul", b.input("x", (3, 4), "float64"), filters))
        >>> find_computed_weights(function) == {angles, filters}
        True
    """
    values, constant = definitions(function), find_constant_values(function)

    def value_of(expr: Expr) -> Expr:
        return values.get(expr, expr) if isinstance(expr, Var) else expr

    calls = (value for value in values.values() if isinstance(value, Call) and value.op_name in _WITH_WEIGHTS)
    weights = [arg for call in calls for arg in call.args if isinstance(arg, Var) and arg in constant]
    return _with_sources((v for v in weights if not (_spreads(values[v]) or is_dequantized(v, value_of))), values)


def find_computed_tables(function: Function) -> set[Var]:
    """Return what a function computes of constants alone by a scatter or a scan, and what it is made of."""
    values, constant = definitions(function), find_constant_values(function)
    made = {var: values[var] for var in constant if isinstance(var, Var)}
    return _with_sources((v for v, call in made.items() if getattr(call, "op_name", "") in _TABLE_MAKING), values)


def _with_sources(wanted: Iterable[Var], values: Mapping[Var, Expr]) -> set[Var]:
    found: set[Var] = set()
    stack = list(wanted)
    while stack:
        var = stack.pop()
        if var not in found:
            found.add(var)
            stack += [operand for operand in operands(values[var]) if isinstance(operand, Var)]
    return found


def _spreads(value: Expr) -> bool:
    return isinstance(value, Call) and value.op_name in _SPREADING


class FoldWeights(FunctionPass):
    """Replace weights stored in 8 or 16 bits by the float32 that they stand for: those of convolutions, and small ones
    of matmuls.

    A matmul with large ones reads them as they are stored (`FuseDequantizeMatmul`, `FuseTransposeMatmul`). Options:
    those of `FoldConstants`.
    all_floats: replace all that are stored in 16 bits, as for a library, which packs them.
    folded: what an instance has folded so far, by the operands; equal weights are one constant.
    """

    name = "fold_weights"

    def __init__(self, all_floats: bool = False) -> None:
        self._all_floats = all_floats
        self.folded: Folded = {}

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        if not narrow_weights(function):
            return function
        large = narrow_weights(function, CONVOLUTIONS) | (_floats(function) if self._all_floats else set())
        return _Folder(context, limits=dict.fromkeys(large, MAX_WEIGHT), weights=self.folded).mutate(function)


def _floats(function: Function) -> set[Var]:
    values = definitions(function)
    return {var for var in narrow_weights(function) if getattr(values[var], "op_name", "") == "astype"}


class _Folder(FunctionMutator):
    """kept: what is not folded. limits: bytes by which single results may make the program larger. weights: see
    `FoldWeights.folded`."""

    def __init__(
        self,
        context: PassContext,
        kept: Collection[Var] = (),
        limits: Mapping[Var, int] = MappingProxyType({}),
        weights: Folded | None = None,
    ) -> None:
        super().__init__()
        self._max_growth = context.option("fold_constants.max_growth", MAX_GROWTH)
        self._max_bytes = context.option("fold_constants.max_bytes", MAX_BYTES)
        self._kept, self._limits, self._weights = kept, limits, weights

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        if var in self._kept or not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        growth = max(self._max_growth, self._limits.get(var, 0))
        return self._fold(value) if self._is_foldable(value, value.op, growth) else value

    def _fold(self, call: Call) -> Expr:
        if self._weights is None or call.op_name not in ("dequantize", "astype"):
            return fold_call(call)
        key = (*call.args, call.attrs.get("axis"), call.attrs["dtype"])
        if key not in self._weights:
            self._weights[key] = call, fold_call(call)
        return self._weights[key][1]

    def _is_foldable(self, call: Call, op: Op, growth: int) -> bool:
        if op.reference is None or op.opaque_type or not op.pure:
            return False
        if not all(isinstance(arg, Constant) for arg in call.args) or not all(map(_is_known, call.attrs.values())):
            return False
        size = _static_size(call.type)
        operands = sum(arg.data.nbytes for arg in call.args if isinstance(arg, Constant))
        return size is not None and size <= min(operands + growth, self._max_bytes)


def fold_call(call: Call) -> Expr:
    """Return the value of a call whose operands are all constants: a constant, or a tuple of them.

    Raises: PassError when the reference does not give what the type rule promised.
    """
    assert isinstance(call.op, Op)
    assert call.op.reference is not None
    arrays = [arg.data for arg in call.args if isinstance(arg, Constant)]
    result = call.op.reference(*arrays, **call.attrs)
    parts = result if isinstance(result, tuple) else (result,)
    types = tensors_of(call.type)
    constants = [_constant(part, type_, call.op) for part, type_ in zip(parts, types, strict=True)]
    return Tuple(constants) if isinstance(result, tuple) else constants[0]


def _constant(array: np.ndarray, type_: TensorType, op: Op) -> Constant:
    # A copy: views of broadcast or sliced operands would keep the whole operand alive, or be written as it.
    constant = Constant(np.array(array, dtypes.to_numpy(dtypes.from_numpy(array.dtype)), order="C"))
    if constant.type != type_:
        raise PassError(
            f"the reference of {op.name} does not give what its type rule says",
            found=repr(constant.type),
            expected=repr(type_),
        )
    return constant


def _is_known(value: object) -> bool:
    return not any(isinstance(item, SymbolicDim) for item in (value if isinstance(value, tuple) else (value,)))


def _static_size(type_: Type) -> int | None:
    sizes = [tensor.nbytes for tensor in tensors_of(type_)]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if len(known) == len(sizes) else None
