"""Give symbolic dims their sizes at compile time, so that everything that depends on them becomes known."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kernelyard import dims
from kernelyard.dims import Dim, SymbolicDim
from kernelyard.errors import PassError
from kernelyard.ir import Binding, Call, Expr, Function, IRModule, Var, operands, with_operands
from kernelyard.ir.op import Op
from kernelyard.ir.types import substitute, symbols_of
from kernelyard.transform.pass_base import Pass, PassContext


class BindSymbols(Pass):
    """Replace symbols by sizes, or by other dims, in every graph-level function.

    values: dims by symbol, e.g. {"batch": 1}. Other symbols stay symbolic.
    Raises: PassError for a symbol that no parameter has; ShapeError or TypeInferenceError for sizes that do not fit.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> n = dims.symbol("n")
        >>> y = b.op("reshape", b.input("x", (n, 4)), shape=(n * 4,))
        >>> BindSymbols({"n": 3})(IRModule({"main": b.function(y)}))["main"].result_type
        Tensor[(12,), float32]
    """

    name = "bind_symbols"

    def __init__(self, values: Mapping[str, Dim]) -> None:
        self._values = dict(values)

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        functions = module.graph_functions()
        known = symbols_of(param.type for function in functions.values() for param in function.params)
        for name in self._values:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                raise PassError(
                    f"no parameter has the symbol {name!r}",
                    expected=", ".join(sorted(known)) or "no symbols",
                    hint=f"did you mean {close[0]!r}?" if close else None,
                )
        return module.with_functions({name: self._bound(function) for name, function in functions.items()})

    def _bound(self, function: Function) -> Function:
        replaced: dict[Expr, Expr] = {}
        for param in function.params:
            replaced[param] = Var(param.name, substitute(param.type, self._values), param.origin)
        bindings: list[Binding] = []
        for binding in function.bindings:
            value = self._rebuilt(binding.value, tuple(replaced.get(o, o) for o in operands(binding.value)))
            replaced[binding.var] = Var(binding.var.name, value.type, binding.var.origin)
            bindings.append(Binding(replaced[binding.var], value))  # pyright: ignore[reportArgumentType]
        result = with_operands(function.result, [replaced.get(o, o) for o in operands(function.result)])
        params = [replaced[param] for param in function.params]
        return Function(params, bindings, result, function.attrs)  # pyright: ignore[reportArgumentType]

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
