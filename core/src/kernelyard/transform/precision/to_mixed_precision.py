"""Compute what is heavy in a narrow float, and what is delicate in float32 as before."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import PassError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var, get_op
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType, tensors_of
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

WIDE = "float32"
NARROW = ("float16", "bfloat16")

# Always narrow: nearly all of a network's time. They accumulate wider than they store (see their references).
CONVOLUTIONS = tuple(f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose"))
HEAVY = ("matmul", *CONVOLUTIONS)
# Narrow where their operands already are: they lose no more than the rounding of their result, as they compute wider.
# Of what sums, exponentials and powers make, and of such chains, the rest is float32 as before.
FOLLOWING = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "where", "clip"),
    *("nn.relu", "nn.leaky_relu", "nn.prelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.hard_sigmoid", "nn.hard_swish"),
    *("nn.elu", "nn.mish", "sigmoid", "tanh", "max", "min", "mean", "image.resize"),
    *(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)),
    *("nn.softmax", "nn.layer_norm", "nn.rms_norm", "nn.instance_norm", "nn.group_norm", "nn.lrn"),
    *("reshape", "permute_dims", "broadcast_to", "concat", "split", "strided_slice", "take", "pad", "tile", "flip"),
)


class ToMixedPrecision(FunctionPass):
    """Products and convolutions of float32 are computed in `dtype` ("float16" or "bfloat16").

    What only moves or clips values goes along where its operands are narrow already; all else (norms, softmax, sums,
    exponentials) stays in float32. Parameters, results and other dtypes stay as they are. Constants are rounded at
    once; an operator with a constant that would overflow is left alone. keep: ops that stay in float32.

    The meaning stays up to the rounding of `dtype`.
    """

    name = "to_mixed_precision"

    def __init__(self, dtype: str = "float16", keep: Collection[str] = ()) -> None:
        if dtype not in NARROW:
            raise PassError("mixed precision needs a narrow float", found=dtype, expected=" or ".join(NARROW))
        self._dtype = dtype
        self._keep = frozenset(keep)

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Narrowing(self._dtype, self._keep).mutate(function)


class _Narrowing(FunctionMutator):
    """A narrow value is known by the cast to float32 that its readers see: who can, reads what is below the cast."""

    def __init__(self, dtype: str, keep: Collection[str]) -> None:
        super().__init__()
        self._dtype = dtype
        self._keep = keep
        self._narrowed: dict[Expr, Expr | None] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        if not isinstance(value, Call) or not isinstance(value.op, Op) or not self._should_narrow(value):
            return value
        operands = [self._narrow(arg) if _is_wide(arg) else arg for arg in value.args]
        narrow = [operand for operand in operands if operand is not None]
        if len(narrow) < len(operands):
            return value
        return self._widen(self.emit(Call(value.op, narrow, value.attrs), var.name, var.origin))

    def _should_narrow(self, call: Call) -> bool:
        if call.op_name in self._keep or not any(tensor.dtype == WIDE for tensor in tensors_of(call.type)):
            return False
        if call.op_name in HEAVY:
            return not _has_one_channel(call)
        wide = [arg for arg in call.args if _is_wide(arg) and not isinstance(arg, Constant)]
        return call.op_name in FOLLOWING and bool(wide) and all(self._below(arg) is not None for arg in wide)

    def _below(self, operand: Expr) -> Expr | None:
        """Return the narrow value that an operand is the float32 form of."""
        value = self.value_of(operand)
        if not isinstance(value, Call) or value.op_name != "astype":
            return None
        return value.args[0] if value.args[0].tensor_type.dtype == self._dtype else None

    def _narrow(self, operand: Expr) -> Expr | None:
        """Return the operand in the narrow dtype; None for a constant that does not fit."""
        if operand not in self._narrowed:
            self._narrowed[operand] = self._compute_narrow(operand)
        return self._narrowed[operand]

    def _compute_narrow(self, operand: Expr) -> Expr | None:
        if isinstance(operand, Constant):
            with np.errstate(over="ignore"):
                data = operand.data.astype(dtypes.to_numpy(self._dtype))
            fits = np.array_equal(np.isfinite(data.astype(np.float32)), np.isfinite(operand.data))
            return Constant(data) if fits else None
        below = self._below(operand)
        return self.emit(_cast(operand, self._dtype), "narrow") if below is None else below

    def _widen(self, narrow: Expr) -> Expr:
        if isinstance(narrow.type, TensorType):
            return _cast(narrow, WIDE)
        items = [self.emit(TupleGetItem(narrow, i)) for i in range(len(tensors_of(narrow.type)))]
        return Tuple([self.emit(_cast(item, WIDE)) for item in items])


def _has_one_channel(call: Call) -> bool:
    """Return True for convolutions of signals and the like: narrow numbers are multiplied in pairs of channels, so that
    these would be no faster, and spectra need more digits than others.
    """
    return call.op_name in CONVOLUTIONS and call.args[0].tensor_type.shape[1] == 1


def _is_wide(operand: Expr) -> bool:
    return isinstance(operand.type, TensorType) and operand.type.dtype == WIDE


def _cast(operand: Expr, dtype: str) -> Call:
    return Call(get_op("astype"), [operand], {"dtype": dtype})
