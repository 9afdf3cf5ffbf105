"""GraphBuilder: a FunctionBuilder that computes what it can while the model is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dims import symbols_of as symbols_of_dim
from kernelyard.dtypes import is_integer
from kernelyard.plugins.api import (
    Binding,
    Call,
    Constant,
    Expr,
    FunctionBuilder,
    TensorType,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    attribute_symbols,
    get_op,
    introduces_symbols,
    operands,
    symbols_of,
)
from kernelyard_onnx.known_values import KnownValues
from kernelyard_onnx.rational import UndecidedError


class GraphBuilder(FunctionBuilder):
    """Emits calls; results that are known at once become constants, sizes become `shape_tensor`.

    around: the builder of the function around this one, whose known values are known here too.
    """

    def __init__(self, around: GraphBuilder | None = None) -> None:
        super().__init__()
        self.around = around
        self.known = KnownValues() if around is None else around.known
        self._sizes_of: dict[Expr, tuple[Dim, ...]] = {}

    def emit(self, name: str, args: Sequence[Expr], attrs: dict[str, Any], origin: str) -> list[Expr]:
        """Return the results of an op: one expression per tensor that it returns.

        Raises: TypeInferenceError, AttributeTypeError, IRError.
        """
        call = Call(get_op(name), args, attrs)
        values = None if _is_weight(call) else self.known.evaluate(call)
        if values is not None and all(value.dtype != object for value in values):
            return [Constant(value) for value in values]
        if values is not None and len(values) == 1:
            return [self._sizes(call, values[0], origin)]
        results = self._bind_results(call, origin)
        for result, value in zip(results, values or (), strict=False):
            self.known.set(result, value)
        return results

    def _bind_results(self, call: Call, origin: str) -> list[Expr]:
        label = call.op_name.rsplit(".", 1)[-1]
        if not isinstance(call.type, TupleType):
            return [self.bind(call, label, origin)]
        whole = self.bind(call, label, origin)
        count = len(call.type.fields)
        return [self.bind(TupleGetItem(whole, index), f"{label}_{index}", origin) for index in range(count)]

    def _sizes(self, call: Call, value: np.ndarray, origin: str) -> Expr:
        """Return a known value that depends on sizes: whole vectors of integers are written as one `shape_tensor`."""
        dtype = call.type.dtype if isinstance(call.type, TensorType) else ""
        result: Expr | None = None
        if value.ndim <= 1 and is_integer(dtype):
            result = self._shape_tensor(value, dtype, origin)
        if result is None:
            (result,) = self._bind_results(call, origin)
        self.known.set(result, value)
        return result

    def _shape_tensor(self, value: np.ndarray, dtype: str, origin: str) -> Expr | None:
        try:
            sizes = tuple(item.dim() for item in value.reshape(-1).tolist())
        except UndecidedError:
            return None
        call = Call(get_op("shape_tensor"), [], {"dims": sizes})
        if value.ndim == 0:
            call = Call(get_op("reshape"), [self.bind(call, "sizes", origin)], {"shape": ()})
        if dtype != "int64":
            call = Call(get_op("astype"), [self.bind(call, "sizes", origin)], {"dtype": dtype})
        return self.bind(call, "sizes", origin)

    def emit_data_dependent(self, name: str, args: Sequence[Expr], type_: Type, origin: str, **attrs: Any) -> Var:
        """Emit an operator the sizes of whose result depend on data: they are new symbols of the type."""
        return self.bind(Call(get_op(name), args, attrs, type_), name.rsplit(".", 1)[-1], origin)

    def sizes(self, vector: Expr, new_size: Callable[[], Dim], origin: str) -> tuple[Dim, ...]:
        """Return the elements of an int64 vector, none negative, as sizes that are known when the program runs."""
        if vector not in self._sizes_of:
            (count,) = vector.tensor_type.shape
            sizes = tuple(new_size() for _ in range(int(count)))  # pyright: ignore[reportArgumentType]
            self.emit_data_dependent("tensor_to_shape", [vector], TensorType(sizes, "bool"), origin)
            self._sizes_of[vector] = sizes
        return self._sizes_of[vector]

    def deciding(self, shape: Sequence[Dim]) -> list[Expr]:
        """Return the vectors that the program takes sizes of a shape from; none where one comes from elsewhere."""
        missing = frozenset().union(*(symbols_of_dim(dim) for dim in shape))
        found: list[Expr] = []
        builder: GraphBuilder | None = self
        while builder is not None:
            for vector, sizes in builder._sizes_of.items():
                own = frozenset().union(*(symbols_of_dim(size) for size in sizes))
                if own & missing:
                    found.append(vector)
                    missing -= own
            builder = builder.around
        return [] if missing else found

    def inputs_of(self, expr: Expr) -> frozenset[str]:
        """Return the inputs of the model that a value is computed from; none where it comes out of a loop or branch."""
        builders: list[GraphBuilder] = [self]
        while builders[-1].around is not None:
            builders.append(builders[-1].around)
        made = {binding.var: binding.value for builder in builders for binding in builder.bindings}
        params: dict[Expr, str] = {param: param.name for param in builders[-1].params}
        found: set[str] = set()
        seen: set[Expr] = {expr}
        waiting = [expr]
        while waiting:
            current = waiting.pop()
            value = made.get(current) if isinstance(current, Var) else None
            if current in params:
                found.add(params[current])
            elif value is None and isinstance(current, Var):
                return frozenset()
            new = [operand for operand in (operands(value) if value is not None else ()) if operand not in seen]
            seen.update(new)
            waiting += new
        return frozenset(found)

    def live_bindings(self, results: Sequence[Expr]) -> list[Binding]:
        """Return the bindings that the results need, in order: what they read, and what makes their sizes known."""
        live: set[Expr] = set(results)
        symbols = symbols_of(result.type for result in results)
        kept: list[Binding] = []
        for binding in reversed(self.bindings):
            own = symbols_of([binding.var.type])
            if binding.var in live or (introduces_symbols(binding.value) and own & symbols):
                kept.append(binding)
                live.update(operands(binding.value))
                symbols |= own | attribute_symbols(binding.value)
        kept.reverse()
        return kept


def _is_weight(call: Call) -> bool:
    """Return True for what may be the quantized weight of a product, which stays as it is stored."""
    return call.op_name == "dequantize" and call.tensor_type.rank >= 2
