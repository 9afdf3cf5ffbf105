"""Put the bodies of module functions in place of their calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kernelyard.ir import Binding, Call, Expr, Function, GlobalVar, IRModule, Tuple, TupleGetItem, Var
from kernelyard.ir.expr import replace_operands


def inline_functions(module: IRModule, names: Collection[str], entries: Sequence[str] | None = None) -> IRModule:
    """Return the module with every call of the functions `names` replaced by what these do, calls inside them included.

    entries: functions to treat, default all entry functions. The inlined functions stay in the module.
    """
    if not names:
        return module
    functions = module.entry_functions()
    wanted = functions if entries is None else {name: functions[name] for name in entries}
    return module.with_functions({name: _Inliner(module, names).run(f) for name, f in wanted.items()})


def inline_into(function: Function, module: IRModule, names: Collection[str]) -> Function:
    """Return one function with every call of the functions `names` of a module replaced by what these do."""
    return _Inliner(module, names).run(function)


class _Inliner:
    def __init__(self, module: IRModule, names: Collection[str]) -> None:
        self.module = module
        self.names = names
        self._bindings: list[Binding] = []

    def run(self, function: Function) -> Function:
        replaced: dict[Expr, Expr] = {}
        for binding in function.bindings:
            self._place(binding, replaced)
        return Function(function.params, self._bindings, replace_operands(function.result, replaced), function.attrs)

    def _place(self, binding: Binding, replaced: dict[Expr, Expr], copy: bool = False) -> None:
        value = replace_operands(binding.value, replaced)
        body = self._body(value)
        if body is not None:
            assert isinstance(value, Call)
            replaced[binding.var] = self._expand(body, value.args)
        elif isinstance(value, TupleGetItem) and isinstance(value.tuple_value, Tuple):
            replaced[binding.var] = value.tuple_value.fields[value.index]
        elif copy:
            var = Var(binding.var.name, binding.var.type, binding.var.origin)
            replaced[binding.var] = var
            self._bindings.append(Binding(var, value))
        else:
            self._bindings.append(Binding(binding.var, value))

    def _body(self, value: Expr) -> Function | None:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in self.names:
            function = self.module[value.op.name]
            return function if isinstance(function, Function) else None
        return None

    def _expand(self, body: Function, args: Sequence[Expr]) -> Expr:
        """Bind copies of the body's values; return its result as an operand, or a Tuple of operands."""
        replaced: dict[Expr, Expr] = dict(zip(body.params, args, strict=True))
        for binding in body.bindings:
            self._place(binding, replaced, copy=True)
        return replace_operands(body.result, replaced)
