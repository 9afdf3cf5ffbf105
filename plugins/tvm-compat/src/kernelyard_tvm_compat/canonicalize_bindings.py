"""Remove bindings that compute nothing, so that patterns and people see values and not their second names."""

from __future__ import annotations

from kernelyard.ir import Expr, Function, FunctionMutator, IRModule, Tuple, TupleGetItem, Var
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class CanonicalizeBindings(FunctionPass):
    """`y = x` goes and its readers read `x`; an item of a tuple that is built in the function is the field itself.

    A tuple that is put together from all items of another one, in order, is that other one. Composites and regions
    are treated as well. Types and values stay.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> x = b.input("x", (2,))
        >>> f = b.function(b.get(b.tuple(b.bind(x), b.op("tanh", x)), 0))
        >>> CanonicalizeBindings()(IRModule({"main": f}))["main"].result
        %x
    """

    name = "canonicalize_bindings"
    only_entry_functions = False

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Canonicalizer().mutate(function)


class _Canonicalizer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self.value_of(value.tuple_value)
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        return self._whole(value) or value if isinstance(value, Tuple) else value

    def _whole(self, value: Tuple) -> Expr | None:
        """Return the tuple whose items, all and in order, are the fields."""
        items = [self.value_of(field) for field in value.fields]
        if not items or not all(isinstance(item, TupleGetItem) and item.index == i for i, item in enumerate(items)):
            return None
        sources = {item.tuple_value for item in items if isinstance(item, TupleGetItem)}
        source = sources.pop()
        return source if not sources and source.type == value.type else None
