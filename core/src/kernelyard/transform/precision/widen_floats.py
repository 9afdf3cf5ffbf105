"""Compute in float32 what a model states in narrower floats, for targets whose arithmetic is wider anyway."""

from __future__ import annotations

from collections.abc import Collection

from kernelyard.errors import KernelyardError
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var, get_op
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType, tensors_of
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

NARROW = ("float16", "bfloat16")
WIDE = "float32"
# What moves elements reads stored numbers as they are stored: a lookup in a table does not widen the table.
MOVING = frozenset(
    (
        *("reshape", "permute_dims", "broadcast_to", "concat", "split", "strided_slice", "take", "gather_nd"),
        *("take_along_axis", "pad", "tile", "flip", "roll"),
    )
)

# What jumps from one integer to the next: a value that is rounded later may lie on the other side of the jump.
JUMPING = frozenset(("ceil", "floor", "round", "trunc"))


class WidenFloats(FunctionPass):
    """Operators of narrow floats are computed in float32, and rounded where a value leaves the function.

    Parameters, results, operands of other functions, explicit casts, and what integers, booleans and whole numbers are
    made of keep their dtype: there a value is rounded, once. Constants are stored as they were; what reads them widens
    them.
    dtypes: which floats are narrow.

    The meaning stays up to the roundings in between, of which there are fewer.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> y = b.op("sin", b.op("exp", b.input("x", (2,), "float16")))
        >>> widened = WidenFloats(["float16"])(IRModule({"main": b.function(y)}))
        >>> calls = [binding.value for binding in widened["main"].bindings]
        >>> [(call.op_name, call.tensor_type.dtype) for call in calls if call.op_name != "astype"]
        [('exp', 'float32'), ('sin', 'float32')]
    """

    name = "widen_floats"

    def __init__(self, dtypes: Collection[str] = NARROW) -> None:
        self._dtypes = frozenset(dtypes)

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Widening(self._dtypes).mutate(function)


class _Widening(FunctionMutator):
    """A computed value is known by the cast that its readers see: who can, reads the float32 below that cast."""

    def __init__(self, narrow: Collection[str]) -> None:
        super().__init__()
        self._narrow = narrow
        self._wide: dict[Expr, Expr] = {}

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        if value.op_name == "astype":
            return self._cast(value)
        return self._widen(value, var) if self._is_computed(value) else value

    def _cast(self, call: Call) -> Expr:
        """Let a cast to float32 read the value before it was rounded to a narrower float; other casts round first."""
        return self._wide.get(call.args[0], call) if call.attrs["dtype"] == WIDE else call

    def _is_computed(self, call: Call) -> bool:
        """Return True where narrow floats are computed of narrow floats."""
        operands = [arg for arg in call.args if self._is_narrow(arg)]
        if not operands or not any(tensor.dtype in self._narrow for tensor in tensors_of(call.type)):
            return False
        if call.op_name not in MOVING:
            return True
        moved = [arg for arg in operands if not isinstance(arg, Constant)]
        return bool(moved) and all(arg in self._wide for arg in moved)

    def _widen(self, call: Call, var: Var) -> Expr:
        widen = self._cast_wide if call.op_name in JUMPING else self._wide_form
        operands = [widen(arg) if self._is_narrow(arg) else arg for arg in call.args]
        dtype = call.attrs.get("dtype")
        attrs = {**call.attrs, "dtype": WIDE} if dtype in self._narrow else call.attrs
        try:
            wide = Call(call.op, operands, attrs)
        except KernelyardError:  # an operator that has no float32 form
            return call
        if not self._is_wide_form(wide, call):
            return call
        return self._round(self.emit(wide, var.name, var.origin), call)

    def _is_wide_form(self, wide: Call, call: Call) -> bool:
        pairs = zip(tensors_of(wide.type), tensors_of(call.type), strict=True)
        return all(new.dtype == (WIDE if old.dtype in self._narrow else old.dtype) for new, old in pairs)

    def _wide_form(self, operand: Expr) -> Expr:
        if operand not in self._wide:
            self._wide[operand] = self._cast_wide(operand)
        return self._wide[operand]

    def _cast_wide(self, operand: Expr) -> Expr:
        return self.emit(Call(get_op("astype"), [operand], {"dtype": WIDE}), "wide")

    def _round(self, wide: Expr, call: Call) -> Expr:
        if isinstance(wide.type, TensorType):
            return self._round_tensor(wide, call.tensor_type.dtype)
        parts = [self.emit(TupleGetItem(wide, index)) for index in range(len(tensors_of(wide.type)))]
        dtypes = [tensor.dtype for tensor in tensors_of(call.type)]
        return Tuple([self._round_tensor(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)])

    def _round_tensor(self, wide: Expr, dtype: str) -> Expr:
        """Return the float32 value in a dtype; readers that compute find it in `_wide`."""
        if wide.tensor_type.dtype == dtype:
            return wide
        rounded = self.emit(Call(get_op("astype"), [wide], {"dtype": dtype}), "rounded")
        self._wide[rounded] = wide
        return rounded

    def _is_narrow(self, operand: Expr) -> bool:
        return isinstance(operand.type, TensorType) and operand.type.dtype in self._narrow
