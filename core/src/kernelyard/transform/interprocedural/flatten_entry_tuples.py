"""Take tuples apart where a program meets its callers: it takes and returns tensors."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Binding, Expr, Function, IRModule, Tuple, TupleGetItem, TupleType, Var
from kernelyard.ir.module import PRIVATE
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

NAMES = ("input_names", "output_names")


class FlattenEntryTuples(FunctionPass):
    """Entry functions take and return tensors alone: a tuple becomes its fields, in order, `name_0`, `name_1`, ...

    Holds for parameters, for fields of the result, and for the names of both.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, TensorType
        >>> b = FunctionBuilder()
        >>> pair = b.parameter(TupleType((TensorType((2,), "float32"), TensorType((3,), "float32"))), "pair")
        >>> module = FlattenEntryTuples()(IRModule({"main": b.function(b.op("nn.relu", b.get(pair, 1)))}))
        >>> module["main"].params
        (%pair_0, %pair_1)
    """

    name = "flatten_entry_tuples"
    is_required = True

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
        has_tuples = any(isinstance(value.type, TupleType) for value in (*function.params, *results))
        if not has_tuples or function.attrs.get(PRIVATE):  # callers of private functions take tuples as they are
            return function
        flat = _Flat()
        for param in function.params:
            flat.parameter(param)
        flat.bindings += function.bindings
        fields = [leaf for value in results for leaf in flat.leaves(value)]
        result = fields[0] if len(fields) == 1 else Tuple(fields)
        names = _names(function, function.params, results)
        return Function(flat.params, flat.bindings, result, {**function.attrs, **names})


class _Flat:
    """A function without tuples at its ends: the old parameter is a tuple that is put together of the new ones."""

    def __init__(self) -> None:
        self.params: list[Var] = []
        self.bindings: list[Binding] = []

    def parameter(self, param: Var) -> None:
        if isinstance(param.type, TupleType):
            self.bindings.append(Binding(param, self._tuple(param.type, param.name)))
        else:
            self.params.append(param)

    def _tuple(self, type_: TupleType, name: str) -> Tuple:
        fields: list[Expr] = []
        for number, field in enumerate(type_.fields):
            var = Var(f"{name}_{number}", field)
            if isinstance(field, TupleType):
                self.bindings.append(Binding(var, self._tuple(field, var.name)))
            else:
                self.params.append(var)
            fields.append(var)
        return Tuple(fields)

    def leaves(self, value: Expr) -> list[Expr]:
        """Return the tensors in a value."""
        if not isinstance(value.type, TupleType):
            return [value]
        found: list[Expr] = []
        for index, field in enumerate(value.type.fields):
            var = Var("item", field)
            self.bindings.append(Binding(var, TupleGetItem(value, index)))
            found += self.leaves(var)
        return found


def _names(function: Function, params: Sequence[Expr], results: Sequence[Expr]) -> dict[str, tuple[str, ...]]:
    """Return the function's names of inputs and outputs, one for each tensor."""
    found: dict[str, tuple[str, ...]] = {}
    for attribute, values in zip(NAMES, (params, results), strict=True):
        given = function.attrs.get(attribute)
        if given:
            pairs = zip(given, values, strict=True)
            found[attribute] = tuple(name for label, value in pairs for name in _flat_names(label, value.type))
    return found


def _flat_names(name: str, type_: object) -> list[str]:
    if not isinstance(type_, TupleType):
        return [name]
    return [leaf for number, field in enumerate(type_.fields) for leaf in _flat_names(f"{name}_{number}", field)]
