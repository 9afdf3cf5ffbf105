"""GraphWriter: collects the nodes and constants of an ONNX graph, under names that are unique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from kernelyard import dims
from kernelyard.dims import Dim, Function, Symbol, SymbolicDim
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Call, Constant, Expr, TensorType, Var
from kernelyard.plugins.api import Function as GraphFunction

# The operation on two int64 numbers that computes a function of sizes.
_OF_SIZES = {"max": "Max", "min": "Min", "broadcast": "Max"}

OPSET = 20  # the first with Gelu; onnxruntime 1.32 cannot open int8 models of 21 whose transposes it moves
WIDER_OPSET = 21  # the first with 16-bit, 4-bit and blocked QuantizeLinear, and with GroupNormalization by channel
INT4 = TensorProto.INT4
SMALL = 64  # elements of constants that a model has in it even where others are beside it


class DtypeError(Exception):
    """ONNX has no operator for a dtype; the exporter says where."""


class MeaningError(Exception):
    """ONNX's operator would compute something else here."""


def element_type(dtype: str) -> int:
    """Return ONNX's number of a dtype."""
    return helper.np_dtype_to_tensor_dtype(to_numpy(dtype))


class GraphWriter:
    """Nodes in order, and constants, each content once.

    values: what each variable of the function is bound to. opset: the version that the nodes need. external: takes
    the data of constants that are not small, by their name in the graph; None puts it into the model.
    """

    def __init__(
        self, function: GraphFunction, taken: Sequence[str], external: dict[str, np.ndarray] | None = None
    ) -> None:
        self._external = external
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.opset = OPSET
        self.values: Mapping[Expr, Expr] = {binding.var: binding.value for binding in function.bindings}
        self._names: dict[Expr, Sequence[str]] = {}
        self._constants: dict[object, str] = {}
        self._dtypes: dict[str, str] = {}  # of what variables stand for
        self._taken: dict[str, int] = dict.fromkeys(taken, 0)
        self._sizes: dict[Dim, str] = {}
        self._symbols: dict[str, tuple[str, int]] = {}

    # --- names --------------------------------------------------------------------------------------------------------
    def fresh(self, wanted: str) -> str:
        """Return a name that nothing has."""
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1
            name = f"{wanted}_{self._taken[wanted]}"
        self._taken[name] = 0
        return name

    def name_input(self, var: Var, name: str) -> None:
        """Name an input of the graph, and the sizes that it makes known."""
        self.bind(var, [name])
        for axis, dim in enumerate(var.tensor_type.shape):
            symbol = dims.as_symbol(dim)
            if symbol is not None:
                self._symbols.setdefault(symbol, (name, axis))

    def bind(self, var: Expr, names: Sequence[str]) -> None:
        """Name the tensors that a variable stands for."""
        self._names[var] = names
        if isinstance(var.type, TensorType):
            self._dtypes[names[0]] = var.type.dtype

    def names_of(self, expr: Expr) -> Sequence[str]:
        """Return the names of the tensors of an expression."""
        return [self.constant(expr.data)] if isinstance(expr, Constant) else self._names[expr]

    def name(self, expr: Expr) -> str:
        """Return the name of a tensor."""
        (name,) = self.names_of(expr)
        return name

    def value_of(self, expr: Expr) -> Expr:
        """Return what a variable is bound to; other expressions as they are."""
        return self.values.get(expr, expr)

    def call_of(self, expr: Expr, op: str) -> Call | None:
        """Return the call of an operator that a variable is bound to."""
        value = self.value_of(expr)
        return value if isinstance(value, Call) and value.op_name == op else None

    # --- nodes --------------------------------------------------------------------------------------------------------
    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Add a node of one result and return its name; inputs of the name "" are left out."""
        (name,) = self.nodes_of(op_type, inputs, 1, **attrs)
        return name

    def nodes_of(self, op_type: str, inputs: Sequence[str], count: int, **attrs: Any) -> Sequence[str]:
        """Add a node and return the names of its results."""
        kept = {name: value for name, value in attrs.items() if value is not None and value != ()}
        self._check_dtype(op_type, inputs)
        names = [self.fresh(op_type.lower()) for _ in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=names[0], **kept))
        return names

    def _check_dtype(self, op_type: str, inputs: Sequence[str]) -> None:
        """Check the dtype of an operator's first input, if it is known. Raises: DtypeError if ONNX excludes it."""
        dtype = self._dtypes.get(inputs[0]) if inputs else None
        if dtype is None:
            return
        taken = defs.get_schema(op_type, WIDER_OPSET).inputs[0].types
        tensor = helper.tensor_dtype_to_string(element_type(dtype)).removeprefix("TensorProto.").lower()
        if f"tensor({tensor})" not in taken:
            raise DtypeError(f"{op_type} of {dtype}")

    def constant(self, data: np.ndarray | np.generic, element: int | None = None) -> str:
        """Return the name of a constant; `element`: its type where NumPy has none for it (INT4)."""
        array = np.asarray(data)
        if self._external is not None and array.size > SMALL and element is None:
            return self._external_constant(array, self._external)
        key = array.dtype.str, array.dtype.name, array.shape, array.tobytes(), element
        if key not in self._constants:
            name = self._constants[key] = self.fresh("constant")
            if element is None:
                tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            else:
                tensor = helper.make_tensor(name, element, array.shape, array.reshape(-1))
            self.initializers.append(tensor)
        return self._constants[key]

    def _external_constant(self, array: np.ndarray, external: dict[str, np.ndarray]) -> str:
        """Return the name of a constant whose data is not copied, nor read: the same array has one name."""
        key = id(array)  # which `external` keeps alive
        if key not in self._constants:
            name = self._constants[key] = self.fresh("constant")
            type_ = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = TensorProto(name=name, dims=array.shape, data_type=type_, data_location=TensorProto.EXTERNAL)
            tensor.external_data.add(key="location", value=name)
            self.initializers.append(tensor)
            external[name] = array
        return self._constants[key]

    def integers(self, values: Sequence[int]) -> str:
        """Return the name of an int64 vector."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float, dtype: str) -> str:
        """Return the name of a constant of rank 0."""
        return self.constant(np.asarray(value).astype(to_numpy(dtype)))

    def cast(self, name: str, dtype: str) -> str:
        """Add a Cast."""
        return self.node("Cast", name, to=element_type(dtype))

    # --- sizes --------------------------------------------------------------------------------------------------------
    def shape(self, sizes: Sequence[Dim]) -> str:
        """Return the name of an int64 vector of sizes. Raises: KeyError for a size that no input has."""
        if all(isinstance(size, int) for size in sizes):
            return self.integers([int(size) for size in sizes])  # pyright: ignore[reportArgumentType]
        return self.node("Concat", *(self.size(size) for size in sizes), axis=0)

    def size(self, dim: Dim) -> str:
        """Return the name of an int64 vector of one size. Raises: KeyError for a size that no input has."""
        if not isinstance(dim, SymbolicDim):
            return self.integers([dim])
        if dim not in self._sizes:
            terms = [self._term(monomial, factor) for monomial, factor in dim.terms]
            total = terms[0]
            for term in terms[1:]:
                total = self.node("Add", total, term)
            self._sizes[dim] = total
        return self._sizes[dim]

    def _term(self, monomial: Sequence[Symbol | Function], factor: int) -> str:
        names = [self._atom(atom) for atom in monomial]
        if factor != 1 or not names:
            names.append(self.integers([factor]))
        total = names[0]
        for name in names[1:]:
            total = self.node("Mul", total, name)
        return total

    def _atom(self, atom: Symbol | Function) -> str:
        if isinstance(atom, Symbol):
            source, axis = self._symbols[atom.name]
            return self.node("Shape", source, start=axis, end=axis + 1)
        left, right = self.size(atom.left), self.size(atom.right)
        if atom.name != "floordiv":
            return self.node(_OF_SIZES[atom.name], left, right)
        # Div rounds towards 0, and what is divided may be negative; Mod has the sign of the divisor.
        return self.node("Div", self.node("Sub", left, self.node("Mod", left, right)), right)
