"""A closure that is invoked where it is known which function it is becomes a call of that function."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, FunctionMutator, GlobalVar, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.control_flow import INVOKE_CLOSURE, MAKE_CLOSURE, is_control_flow
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class InvokeKnownClosures(FunctionPass):
    """Replaces `invoke_closure` of what `make_closure` made in the same function by a plain call.

    Repeated with InlinePrivateFunctions, this reaches closures that are handed to functions, too. Those that come
    from branches and loops stay values.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b, inner = FunctionBuilder(), FunctionBuilder()
        >>> x, y = b.input("x", (2,)), inner.input("y", (2,))
        >>> add_x = b.closure("add_x", inner, inner.op("add", x, y))
        >>> module = IRModule({"main": b.function(b.invoke_closure(add_x, [x])), **b.lifted})
        >>> InvokeKnownClosures()(module)["main"].bindings[-1].value.op
        @add_x
    """

    name = "invoke_known_closures"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Invoke(module).mutate(function)


class _Invoke(FunctionMutator):
    def __init__(self, module: IRModule) -> None:
        super().__init__()
        self.module = module

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            source = self.value_of(value.tuple_value)
            return source.fields[value.index] if isinstance(source, Tuple) else value
        if not is_control_flow(value) or not isinstance(value, Call) or value.op_name != INVOKE_CLOSURE:
            return value
        made = self.value_of(value.args[0])
        if not is_control_flow(made) or not isinstance(made, Call) or made.op_name != MAKE_CLOSURE:
            return value
        name, *captured = made.args
        assert isinstance(name, GlobalVar)
        args = (*captured, *value.args[1:])
        return Call(name, args, type_=value.type) if self._takes(name, args, value) else value

    def _takes(self, name: GlobalVar, args: tuple[Expr, ...], call: Call) -> bool:
        """Return True when the types are the same; a closure may have other names for its sizes."""
        function = self.module[name.name]
        assert isinstance(function, Function)
        return [arg.type for arg in args] == [p.type for p in function.params] and call.type == function.result_type
