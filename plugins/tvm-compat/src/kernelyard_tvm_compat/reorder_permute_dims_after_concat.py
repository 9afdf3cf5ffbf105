"""Transposed copies that are put together: put the originals together, and transpose once."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, IRModule, Var
from kernelyard.patterns import Dataflow
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import defining_call, make


class ReorderPermuteDimsAfterConcat(FunctionPass):
    """`concat(permute_dims(a), permute_dims(b), ...)` becomes `permute_dims(concat(a, b, ...))`.

    All operands must be permuted in the same way, and nothing else may read a permuted copy. So the transposed weights
    that CombineParallelMatmul puts together are one transposed operand, as libraries take it.

    Example:
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> parts = [b.op("permute_dims", b.input(name, (2, 3)), axes=(1, 0)) for name in "xy"]
        >>> module = IRModule({"main": b.function(b.op("concat", *parts, axis=1))})
        >>> [binding.value.op_name for binding in ReorderPermuteDimsAfterConcat()(module)["main"].bindings][-2:]
        ['concat', 'permute_dims']
    """

    name = "reorder_permute_dims_after_concat"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Reorderer(Dataflow.of(function)).mutate(function)


class _Reorderer(FunctionMutator):
    def __init__(self, dataflow: Dataflow) -> None:
        super().__init__()
        self.dataflow = dataflow

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "concat":
            return value
        copies = [self._copy(arg, var) for arg in value.args]
        orders = {copy.attrs["axes"] for copy in copies if copy}
        if len(copies) < 2 or None in copies or len(orders) != 1:
            return value
        (axes,) = orders
        originals = [copy.args[0] for copy in copies if copy]
        return make("permute_dims", self.emit(make("concat", *originals, axis=axes[value.attrs["axis"]])), axes=axes)

    def _copy(self, arg: Expr, reader: Var) -> Call | None:
        """Return the permutation that makes an operand which nothing else reads."""
        if not isinstance(arg, Var) or self.dataflow.is_returned(arg) or self.dataflow.users(arg) != (reader,):
            return None
        return defining_call(self, arg, "permute_dims")
