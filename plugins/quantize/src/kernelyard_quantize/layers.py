"""Find what to quantize: products with constant weights, and the values that they read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, Var
from kernelyard.ir.visitor import definitions
from kernelyard.patterns.dequantized import CONVOLUTIONS, PRODUCTS
from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme

FLOAT = "float32"
# The least and the largest number of their result are numbers of their operands: one scale serves both.
KEEPS_RANGE = frozenset(
    ("reshape", "permute_dims", "concat", "flip", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "broadcast_to")
)


@dataclass(frozen=True, eq=False)
class Layer:
    """A product to quantize.

    name: of its result; unique in the function. var: what it is bound to. weight: its constant operand, None for a
    matmul of two computed ones. axis: that of the weight whose indices get a scale each, None for one scale. bias: the
    constant that is added to it, None where there is none.
    """

    name: str
    var: Var
    call: Call
    weight: Constant | None
    axis: int | None
    bias: Constant | None = None

    @property
    def data(self) -> tuple[Var, ...]:
        """The operands that are computed."""
        return tuple(arg for arg in self.call.args if isinstance(arg, Var))


def find_layers(function: Function, scheme: QuantizationScheme) -> tuple[Layer, ...]:
    """Return the float32 products of a function that a scheme quantizes, in order.

    Convolutions of constant filters (transposed ones where `operators` names them), matmuls with a constant matrix on
    the right, and with `both_operands` matmuls of two computed operands.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.plugins.interfaces.quantization_scheme import STATIC
        >>> b = FunctionBuilder()
        >>> y = b.op("matmul", b.input("x", (2, 4)), np.eye(4, dtype=np.float32))
        >>> [layer.axis for layer in find_layers(b.function(y), STATIC)]
        [1]
    """
    names: dict[str, int] = {}
    biases = _biases(function)
    return tuple(
        Layer(_unique(binding.var, names), binding.var, call, weight, axis, biases.get(binding.var))
        for binding in function.bindings
        if isinstance(call := binding.value, Call) and call.op_name in PRODUCTS and call.type == binding.var.type
        for weight, axis in _weight(call, scheme)
    )


def _biases(function: Function) -> Mapping[Expr, Constant]:
    """Return the constants that are added to values, by the value."""
    sums = [b.value.args for b in function.bindings if isinstance(b.value, Call) and b.value.op_name == "add"]
    pairs = [pair for args in sums for pair in (args, args[::-1])]
    return {value: constant for value, constant in pairs if isinstance(constant, Constant)}


def _weight(call: Call, scheme: QuantizationScheme) -> Iterator[tuple[Constant | None, int | None]]:
    """Yield the weight of a product and the axis of its channels, where the scheme quantizes it."""
    data, weight = call.args
    if call.op_name.endswith("_transpose") and call.op_name not in scheme.operators:
        return  # libraries compute these in float32
    if isinstance(data, Constant) or {data.tensor_type.dtype, weight.tensor_type.dtype} != {FLOAT}:
        return
    if isinstance(weight, Constant):
        is_matrix = call.op_name == "matmul" and weight.data.ndim == 2
        if (is_matrix or call.op_name in CONVOLUTIONS) and weight.data.size and bool(np.isfinite(weight.data).all()):
            yield weight, _channels(call) if scheme.per_channel else None
    elif scheme.both_operands and call.op_name == "matmul" and scheme.kind == "static":
        yield None, None


def _channels(call: Call) -> int | None:
    """Return the axis of a weight that is the axis of the result's channels; None where no axis is."""
    if call.op_name == "matmul":
        return 1
    if not call.op_name.endswith("_transpose"):
        return 0
    return 1 if call.attrs["groups"] == 1 else None  # with groups, an index of axis 1 is a channel in each


def _unique(var: Var, names: dict[str, int]) -> str:
    count = names[var.name] = names.get(var.name, 0) + 1
    return var.name if count == 1 else f"{var.name}.{count}"


def find_quantized_values(
    function: Function, layers: Iterable[Layer], operators: Collection[str]
) -> Mapping[Var, frozenset[Var]]:
    """Return the values to store as integers, each with those that are to share its scale, itself included.

    They are what layers and `operators` read. In place of what an operator only moves or pools it is its operand, so
    that integers are moved; what is concatenated gets one scale. A layer's result is not stored before the bias is
    added: devices add it to the sum of products, and a pattern of layers has no integers in between.
    """
    layers = tuple(layers)
    values = definitions(function)
    wanted = [var for layer in layers for var in layer.data]
    biases = {layer.var: layer.bias for layer in layers}
    for call in _calls_of(function, operators):
        wanted += [arg for arg in call.args if isinstance(arg, Var) and biases.get(arg) not in call.args]
    groups: dict[Var, set[Var]] = {}
    for var in dict.fromkeys(var for var in wanted if _is_float(var)):
        group = set(sources(var, values))
        for source in tuple(group):
            group |= groups.get(source, set())
        for source in group:
            groups[source] = group
    return {var: frozenset(group) for var, group in groups.items()}


def _calls_of(function: Function, operators: Collection[str]) -> list[Call]:
    return [b.value for b in function.bindings if isinstance(b.value, Call) and b.value.op_name in operators]


def sources(var: Var, values: Mapping[Var, Expr]) -> Sequence[Var]:
    """Return what a value is moved together from; itself where it is computed."""
    found: list[Var] = []
    waiting = [var]
    while waiting:
        current = waiting.pop()
        value = values.get(current)
        if isinstance(value, Call) and value.op_name in KEEPS_RANGE and all(isinstance(a, Var) for a in value.args):
            waiting += [arg for arg in value.args if isinstance(arg, Var)]
        else:
            found.append(current)
    return found


def _is_float(var: Var) -> bool:
    return var.tensor_type.dtype == FLOAT and var.tensor_type.rank > 0
