"""Problem: a matmul as cuBLASLt takes it, column by column, made of row-major operands of known sizes.

A row-major matrix is the transpose of a column-major one, and (x @ w).T is w.T @ x.T: so the library's A is the right
operand, its B the left one, and what it calls rows are our columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kernelyard.runtime.api import Fields, JSONNode, corrupted, write_json
from kernelyard_cublas._enums import DATA_TYPES, ComputeType, DataType, Epilogue
from kernelyard_cublas.type_table import PRODUCTS, ProductType, c_type

Shape = tuple[int, ...]
KERNEL = "matmul"
ROLES = ("lhs", "rhs", "bias", "residual", "scale_a", "scale_b")
ACTIVATIONS = {"none": Epilogue.DEFAULT, "relu": Epilogue.RELU, "gelu": Epilogue.GELU}
TF32 = "tf32"
COMPUTE = ("default", TF32)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a matmul node, beside the shapes and dtypes of its operands.

    transpose_lhs, transpose_rhs: the operand is stored with its last two axes exchanged. alpha: what the matmul is
    multiplied by. tune: measure algorithms instead of trusting the library's first choice.
    """

    transpose_lhs: bool = False
    transpose_rhs: bool = False
    activation: str = "none"
    alpha: float = 1.0
    compute: str = "default"
    tune: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as plain values."""
        return asdict(self)


def read_attributes(node: JSONNode, where: str) -> Attributes:
    """Read and validate a node's attributes.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(dict(node.attrs), f"{where}.attrs")
    values = {name: fields.any(name) for name in Attributes.__dataclass_fields__}
    for name, value in values.items():
        expected = type(getattr(Attributes, name))
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise corrupted(f"{where}.attrs.{name}", value, expected.__name__)
    for name, choices in (("activation", ACTIVATIONS), ("compute", COMPUTE)):
        if values[name] not in choices:
            raise corrupted(f"{where}.attrs.{name}", values[name], ", ".join(choices))
    return Attributes(**{**values, "alpha": float(values["alpha"])})


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix, and how many follow it how many elements apart; a stride of 0 repeats it."""

    dtype: DataType
    rows: int
    columns: int
    batch: int = 1
    stride: int = 0


@dataclass(frozen=True)
class Problem:
    """D = epilogue(alpha * op(A) @ op(B) + beta * C), of column-major matrices."""

    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transpose_a: bool
    transpose_b: bool
    compute: ComputeType
    scale_type: DataType
    epilogue: Epilogue
    alpha: float
    beta: float
    bias: DataType | None
    scaled: bool

    @property
    def is_empty(self) -> bool:
        """Nothing is to be computed."""
        return not self.d.rows or not self.d.columns or not self.d.batch

    def key(self) -> str:
        """Return a key that problems share which one algorithm serves; `alpha` does not matter."""
        return write_json({**asdict(self), "alpha": None}).decode()


def problem_of(attributes: Attributes, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> Problem:
    """Return the problem of operands by role ("lhs", "rhs", and perhaps "bias", "residual", "scale_a"), and of the
    "out".

    Raises: ArtifactCorruptedError for shapes and types that do not go together.
    """
    product = _product(dtypes)
    lhs, rhs, out = shapes["lhs"], shapes["rhs"], shapes["out"]
    if min(map(len, (lhs, rhs, out))) < 2:
        raise corrupted("ranks of a matmul", f"{lhs} @ {rhs} -> {out}", "matrices")
    batches = _Batches.of(lhs, rhs, out, shapes.get("residual"), attributes.transpose_lhs)
    dtype = DATA_TYPES[dtypes["lhs"]]
    columns, residual = out[-1], shapes.get("residual", out)
    problem = Problem(
        a=Matrix(dtype, rhs[-1], rhs[-2], batches.count, batches.stride(rhs)),
        b=Matrix(dtype, lhs[-1], batches.rows(lhs), batches.count, batches.stride(lhs)),
        c=Matrix(c_type(dtypes["out"]), columns, batches.rows(out), batches.count, batches.stride(residual)),
        d=Matrix(DATA_TYPES[dtypes["out"]], columns, batches.rows(out), batches.count, batches.stride(out)),
        transpose_a=attributes.transpose_rhs,
        transpose_b=attributes.transpose_lhs,
        compute=_compute(product, dtypes["lhs"], attributes),
        scale_type=product.scale_type,
        epilogue=_epilogue(attributes, "bias" in shapes),
        alpha=attributes.alpha,
        beta=1.0 if "residual" in shapes else 0.0,
        bias=DATA_TYPES[dtypes["bias"]] if "bias" in shapes else None,
        scaled="scale_a" in shapes,
    )
    _check(problem, shapes)
    return problem


def _product(dtypes: Mapping[str, str]) -> ProductType:
    """Return the library's compute type for operands of these dtypes: it reads each as the type that it must have."""
    operands, result = dtypes["lhs"], dtypes["out"]
    product = PRODUCTS.get((operands, result))
    if product is None:
        raise corrupted("types of a matmul", f"{operands} -> {result}", "types that cuBLASLt multiplies")
    residual = result if product.residual else None
    scale = "float32" if product.scales else None
    of_role = {"rhs": operands, "bias": product.bias, "residual": residual, "scale_a": scale, "scale_b": scale}
    for role, expected in of_role.items():
        if dtypes.get(role, expected) != expected:
            raise corrupted(f"type of {role}", dtypes[role], expected or f"none, for a matmul {operands} -> {result}")
    return product


def _compute(product: ProductType, operands: str, attributes: Attributes) -> ComputeType:
    is_tf32 = attributes.compute == TF32 and operands == "float32"
    return ComputeType.C_32F_FAST_TF32 if is_tf32 else product.compute


def _epilogue(attributes: Attributes, has_bias: bool) -> Epilogue:
    activation = ACTIVATIONS[attributes.activation]
    if not has_bias:
        return activation
    return Epilogue.BIAS if activation == Epilogue.DEFAULT else Epilogue(activation | Epilogue.BIAS)


@dataclass(frozen=True)
class _Batches:
    """The batch of a matmul: the axes before the last two, merged into one.

    flat: all of them are rows of the left operand, which one right operand serves.
    """

    count: int
    flat: bool

    @staticmethod
    def of(lhs: Shape, rhs: Shape, out: Shape, residual: Shape | None, transpose_lhs: bool) -> _Batches:
        one_right = math.prod(rhs[:-2]) == 1
        repeats_residual = residual is not None and math.prod(residual) != math.prod(out)
        if one_right and not transpose_lhs and not repeats_residual:
            return _Batches(1, True)
        return _Batches(math.prod(out[:-2]), False)

    def rows(self, shape: Shape) -> int:
        """Return the columns of the library's matrix: rows of ours."""
        return math.prod(shape[:-1]) if self.flat else shape[-2]

    def stride(self, shape: Shape) -> int:
        """Return the batch stride in elements."""
        own = math.prod(shape[:-2])
        return 0 if self.count == 1 or own == 1 else math.prod(shape[-2:])


def _check(problem: Problem, shapes: Mapping[str, Shape]) -> None:
    """Check the sizes that must agree, so that nothing is read or written out of bounds."""
    a, b, d = problem.a, problem.b, problem.d
    m, k = (a.columns, a.rows) if problem.transpose_a else (a.rows, a.columns)
    k_too, n = (b.columns, b.rows) if problem.transpose_b else (b.rows, b.columns)
    found = {role: list(shape) for role, shape in shapes.items()}
    if (m, n, k) != (d.rows, d.columns, k_too):
        raise corrupted("sizes of a matmul", found, "M, N and K that agree")
    elements = {"lhs": b, "rhs": a, "out": d, "residual": problem.c}
    for role, matrix in elements.items():
        last = (matrix.batch - 1) * matrix.stride + matrix.rows * matrix.columns
        if role in shapes and last != math.prod(shapes[role]):
            raise corrupted(f"size of {role}", found, f"{last} elements")
    if "bias" in shapes and math.prod(shapes["bias"]) != d.rows:
        raise corrupted("size of the bias", found, f"{d.rows} elements")
    for role in ("scale_a", "scale_b"):
        if math.prod(shapes.get(role, ())) != 1:
            raise corrupted(f"size of {role}", found, "one element")
