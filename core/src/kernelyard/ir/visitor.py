"""Visit and rewrite functions: a read-only visitor, a mutator, and use-def queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from kernelyard.errors import IRError
from kernelyard.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    replace_operands,
)
from kernelyard.ir.module import IRModule


class ExprVisitor:
    """Visits a function's parameters, its bindings in order, and its result; override what you want to see.

    `visit_call`, `visit_tuple` and `visit_tuple_get_item` visit their operands by default.
    """

    def visit_function(self, function: Function) -> None:
        for param in function.params:
            self.visit_param(param)
        for binding in function.bindings:
            self.visit_binding(binding)
        self.visit_expr(function.result)

    def visit_param(self, param: Var) -> None:
        """Visit a parameter where it is declared."""

    def visit_binding(self, binding: Binding) -> None:
        self.visit_expr(binding.value)

    def visit_expr(self, expr: Expr) -> None:
        method = _VISITS.get(type(expr))
        if method is None:
            raise IRError("an expression of an unknown class", found=type(expr).__name__)
        getattr(self, method)(expr)

    def visit_call(self, call: Call) -> None:
        self.visit_operands(call)

    def visit_tuple(self, value: Tuple) -> None:
        self.visit_operands(value)

    def visit_tuple_get_item(self, item: TupleGetItem) -> None:
        self.visit_operands(item)

    def visit_operands(self, value: Expr) -> None:
        for operand in operands(value):
            self.visit_expr(operand)

    def visit_var(self, var: Var) -> None:
        """Visit a variable where it is read."""

    def visit_constant(self, constant: Constant) -> None:
        """Visit a constant where it is read."""

    def visit_global_var(self, global_var: GlobalVar) -> None:
        """Visit a function given as an operand; the callee of a `Call` is in `call.op` and is not visited."""

    def visit_extern_func(self, extern: ExternFunc) -> None:
        """Visit an external function given as an operand."""


_VISITS: dict[type, str] = {
    Call: "visit_call",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_get_item",
    Var: "visit_var",
    Constant: "visit_constant",
    GlobalVar: "visit_global_var",
    ExternFunc: "visit_extern_func",
}


class FunctionMutator:
    """Rebuilds a function binding by binding, in one pass; override `rewrite`.

    `rewrite(var, value)` gets each binding's value with its operands already replaced and returns the value to bind.
    A returned `Var` or `Constant` takes the variable's place everywhere, and the binding goes; any other value is
    bound (to the same variable if its type stays). `emit` adds bindings in front. What is not rewritten is kept as
    the same object; nothing is removed for being unused (that is dead-code elimination's work).

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, get_op
        >>> class Swap(FunctionMutator):
        ...     def rewrite(self, var, value):
        ...         return Call(get_op("tanh"), value.args) if value.op_name == "nn.relu" else value
        >>> b = FunctionBuilder()
        >>> f = Swap().mutate(b.function(b.op("nn.relu", b.input("x", (2,)))))
        >>> f.bindings[0].value.op_name
        'tanh'
    """

    def __init__(self) -> None:
        self._replaced: dict[Expr, Expr] = {}  # by expressions of the new function: one look-up is enough
        self._bindings: list[Binding] = []
        self._values: dict[Var, Expr] = {}

    def mutate(self, function: Function) -> Function:
        """Return the rewritten function; the same object when nothing changed."""
        self._replaced, self._bindings, self._values = {}, [], {}
        for binding in function.bindings:
            self._visit(binding)
        result = replace_operands(function.result, self._replaced)
        unchanged = result is function.result and len(self._bindings) == len(function.bindings)
        if unchanged and all(new is old for new, old in zip(self._bindings, function.bindings, strict=True)):
            return function
        return Function(function.params, self._bindings, result, function.attrs)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        """Return the value to bind in place of `value`."""
        return value

    def emit(self, value: Expr, name: str = "lv", origin: str = "") -> Expr:
        """Bind `value` to a new variable in front of the current binding; atoms are returned as they are."""
        if isinstance(value, (Var, Constant)):
            return value
        var = Var(name, value.type, origin)
        self._append(Binding(var, value))
        return var

    def value_of(self, expr: Expr) -> Expr:
        """Return the value bound to a variable of the new function; other expressions are returned as is."""
        return self._values.get(expr, expr) if isinstance(expr, Var) else expr

    def _visit(self, binding: Binding) -> None:
        value = replace_operands(binding.value, self._replaced)
        new = self.rewrite(binding.var, value)
        if isinstance(new, (Var, Constant)):
            self._replaced[binding.var] = new
        elif new is binding.value:
            self._append(binding)
        elif new.type == binding.var.type:
            self._append(Binding(binding.var, new))
        else:
            var = Var(binding.var.name, new.type, binding.var.origin)
            self._replaced[binding.var] = var
            self._append(Binding(var, new))

    def _append(self, binding: Binding) -> None:
        self._bindings.append(binding)
        self._values[binding.var] = binding.value


class RewriteWith(FunctionMutator):
    """A mutator made of one function, for rewrites that need no state of their own."""

    def __init__(self, rewrite: Callable[[FunctionMutator, Var, Expr], Expr]) -> None:
        super().__init__()
        self._rewrite = rewrite

    def rewrite(self, var: Var, value: Expr) -> Expr:
        return self._rewrite(self, var, value)


def uses(function: Function) -> dict[Var, list[Binding]]:
    """Map every variable of a function to the bindings that read it, in order, each once.

    The result is no binding: see `result_vars`.
    """
    users: dict[Var, list[Binding]] = {param: [] for param in function.params}
    for binding in function.bindings:
        users.setdefault(binding.var, [])
        for var in dict.fromkeys(o for o in operands(binding.value) if isinstance(o, Var)):
            users.setdefault(var, []).append(binding)
    return users


def result_vars(function: Function) -> tuple[Var, ...]:
    """Return the variables that a function returns, in order."""
    return tuple(operand for operand in operands(function.result) if isinstance(operand, Var))


def read_once(function: Function) -> set[Var]:
    """Return the variables that one binding reads and nobody else: neither another binding nor the caller."""
    results = set(result_vars(function))
    return {var for var, readers in uses(function).items() if len(readers) == 1 and var not in results}


def definitions(function: Function) -> Mapping[Var, Expr]:
    """Map each bound variable to its value."""
    return {binding.var: binding.value for binding in function.bindings}


def free_operands(bindings: Sequence[Binding]) -> list[Var | Constant]:
    """Return the variables and constants that bindings read and do not define, in order of first use."""
    defined = {binding.var for binding in bindings}
    read = dict.fromkeys(operand for binding in bindings for operand in operands(binding.value))
    return [operand for operand in read if isinstance(operand, (Var, Constant)) and operand not in defined]


def callees(function: Function) -> Iterator[str]:
    """Return the names of the module's functions that a function calls or passes on, in order, with repetition."""
    for binding in function.bindings:
        if isinstance(binding.value, Call) and isinstance(binding.value.op, GlobalVar):
            yield binding.value.op.name
        yield from (operand.name for operand in operands(binding.value) if isinstance(operand, GlobalVar))


def reachable_functions(module: IRModule, roots: tuple[str, ...]) -> set[str]:
    """Return the names of the functions that can be reached from `roots` by calls."""
    seen: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in seen or name not in module:
            continue
        seen.add(name)
        function = module[name]
        if isinstance(function, Function):
            waiting.extend(callees(function))
    return seen
