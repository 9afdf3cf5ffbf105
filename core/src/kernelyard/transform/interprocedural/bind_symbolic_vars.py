"""Give symbolic dims their sizes at compile time, so that everything that depends on them becomes known."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kernelyard import dims
from kernelyard.dims import Dim, SymbolicDim
from kernelyard.errors import PassError, did_you_mean
from kernelyard.ir import Binding, Call, Constant, Expr, Function, IRModule, Var, operands, with_operands
from kernelyard.ir.expr import replace_operands
from kernelyard.ir.op import Op
from kernelyard.ir.types import substitute, symbols_of
from kernelyard.ir.visitor import reachable_functions
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

NONE: Mapping[Var, Constant] = MappingProxyType({})


class BindSymbolicVars(Pass):
    """Replace symbols by sizes, or by other dims, in every graph-level function.

    values: dims by symbol, e.g. {"batch": 1}. Other symbols stay symbolic. function: an entry function, when its
    symbols alone are meant; what it calls is bound with it.
    Raises: PassError for a symbol that no parameter has, and for a function that another entry function needs as it
      is; ShapeError or TypeInferenceError for sizes that do not fit.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> n = dims.symbol("n")
        >>> y = b.op("reshape", b.input("x", (n, 4)), shape=(n * 4,))
        >>> BindSymbolicVars({"n": 3})(IRModule({"main": b.function(y)}))["main"].result_type
        Tensor[(12,), float32]
    """

    name = "bind_symbolic_vars"
    is_required = True

    def __init__(self, values: Mapping[str, Dim], function: str | None = None) -> None:
        self._values = dict(values)
        self._function = function

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        functions = module.graph_functions()
        if self._function is not None:
            names = _with_callees(module, self._function)
            functions = {name: function for name, function in functions.items() if name in names}
        known = symbols_of(param.type for function in functions.values() for param in function.params)
        for name in self._values:
            if name not in known:
                raise _unknown(name, known)
        return module.with_functions({n: bind_function(f, self._values) for n, f in functions.items()})


def bind_function(function: Function, values: Mapping[str, Dim], constants: Mapping[Var, Constant] = NONE) -> Function:
    """Return the function with symbols replaced by dims, and some of its parameters by constants."""
    return _Binder(dict(values)).bind(function, constants)


def _unknown(name: str, known: frozenset[str]) -> PassError:
    return PassError(
        f"no parameter has the symbol {name!r}",
        expected=", ".join(sorted(known)) or "no symbols",
        hint=did_you_mean(name, known),
    )


def _with_callees(module: IRModule, entry: str) -> set[str]:
    """Return an entry function and all that it calls, which must be its own."""
    names = reachable_functions(module, (entry,))
    others = reachable_functions(module, tuple(name for name in module.public_functions() if name != entry))
    shared = sorted(name for name in names & others if name in module.graph_functions())
    if shared:
        raise PassError(
            "binding sizes in one function would change functions that another entry function calls",
            where=f"@{entry}",
            found=", ".join(f"@{name}" for name in shared),
            hint="bind before functions are shared, or in all functions",
        )
    return names


class _Binder:
    def __init__(self, values: dict[str, Dim]) -> None:
        self._values = values

    def bind(self, function: Function, constants: Mapping[Var, Constant]) -> Function:
        replaced: dict[Expr, Expr] = {**constants}
        params = [param for param in function.params if param not in constants]
        for param in params:
            replaced[param] = Var(param.name, substitute(param.type, self._values), param.origin)
        bindings: list[Binding] = []
        for binding in function.bindings:
            value = self._rebuilt(binding.value, tuple(replaced.get(o, o) for o in operands(binding.value)))
            replaced[binding.var] = var = Var(binding.var.name, value.type, binding.var.origin)
            bindings.append(Binding(var, value))
        result = replace_operands(function.result, replaced)
        new_params = [replaced[param] for param in params]
        return Function(new_params, bindings, result, function.attrs)  # pyright: ignore[reportArgumentType]

    def _rebuilt(self, value: Expr, new: tuple[Expr, ...]) -> Expr:
        if not isinstance(value, Call):
            return with_operands(value, new)
        attrs = {name: self._in_attribute(item) for name, item in value.attrs.items()}
        is_inferred = isinstance(value.op, Op) and not value.op.opaque_type
        return Call(value.op, new, attrs, None if is_inferred else substitute(value.type, self._values))

    def _in_attribute(self, item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(self._in_attribute, item))
        return dims.substitute(item, self._values) if isinstance(item, SymbolicDim) else item
