"""Every sample of every operator as a small module: what a backend, a legalization or a frontend is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.ir import (
    Call,
    Constant,
    Expr,
    FunctionBuilder,
    IRModule,
    Op,
    Sample,
    TensorType,
    TupleGetItem,
    all_ops,
    get_op,
)
from kernelyard.ir.types import TupleType
from kernelyard.testing.assertions import assert_allclose

DimOf = Callable[[int, int, int], Dim]  # operand, axis, size -> the dim of the parameter


@dataclass(frozen=True)
class OpCase:
    """Pair an operator with one of its samples.

    Example:
        >>> case = op_cases(["nn.relu"])[0]
        >>> case.id
        'nn.relu: matrix'
        >>> case.module()["main"].result_type
        Tensor[(3, 5), float32]
    """

    op: Op
    sample: Sample

    @property
    def id(self) -> str:
        """The operator and the sample's label."""
        return f"{self.op.name}: {self.sample.label}"

    @property
    def types(self) -> list[TensorType]:
        """Types of the inputs."""
        return [TensorType(array.shape, dtypes.from_numpy(array.dtype)) for array in self.sample.inputs]

    def expected(self) -> list[np.ndarray]:
        """Compute the result with the reference."""
        assert self.op.reference is not None
        result = self.op.reference(*self.sample.inputs, **self.sample.attributes)
        return list(result) if isinstance(result, tuple) else [result]

    def module(self, constants: Sequence[int] = (), dim_of: DimOf | None = None) -> IRModule:
        """Return one call of the operator on parameters; operands in `constants` become constants.

        dim_of: gives parameters other dims than their sizes, symbolic ones for instance (see `one_symbol_per_size`).
        Raises: TypeInferenceError when the operator needs to know a dim that `dim_of` made symbolic.
        """
        builder = FunctionBuilder()
        args = []
        for number, (array, type_) in enumerate(zip(self.sample.inputs, self.types, strict=True)):
            if number in constants:
                args.append(Constant(array))
                continue
            sizes = enumerate(array.shape)
            shape = [dim_of(number, axis, size) for axis, size in sizes] if dim_of else type_.shape
            args.append(builder.input(f"x{number}", shape, type_.dtype))
        return self.call(builder, args)

    def call(self, builder: FunctionBuilder, args: Sequence[Expr]) -> IRModule:
        """Return a module whose results are those of the operator on these operands, with the sample's attributes."""
        result = builder.bind(Call(self.op, args, self.sample.attributes))
        fields = len(result.type.fields) if isinstance(result.type, TupleType) else 0
        results = [builder.bind(TupleGetItem(result, i)) for i in range(fields)] or [result]
        return IRModule({"main": builder.function(*results)})

    def inputs(self, constants: Sequence[int] = ()) -> list[np.ndarray]:
        """Return the arrays for the parameters of `module(constants)`."""
        return [array for number, array in enumerate(self.sample.inputs) if number not in constants]


def op_cases(names: Iterable[str] | None = None) -> list[OpCase]:
    """Return all samples of some operators, or of every operator that has a reference."""
    ops = all_ops() if names is None else tuple(map(get_op, names))
    return [OpCase(op, sample) for op in ops if op.reference for sample in op.samples()]


def one_symbol_per_size(operand: int, axis: int, size: int) -> Dim:
    """Return the same symbol for equal sizes; size 1 stays, since it decides about broadcasting."""
    return dims.symbol(f"n{size}") if size > 1 else size


def one_symbol_per_axis(operand: int, axis: int, size: int) -> Dim:
    """Return a symbol of its own for every axis: nothing can be proved equal."""
    return dims.symbol(f"n{operand}_{axis}") if size > 1 else size


def assert_conforms(case: OpCase, run: Callable[[IRModule, list[np.ndarray]], Sequence[object]]) -> None:
    """Assert that an implementation gives what the reference gives.

    run: takes the case's module and inputs to outputs.
    Raises: AssertionError naming the case.
    """
    outputs, expected = run(case.module(), case.inputs()), case.expected()
    assert len(outputs) == len(expected), f"{case.id}: {len(outputs)} outputs, expected {len(expected)}"
    for actual, wanted in zip(outputs, expected, strict=True):
        try:
            assert_allclose(actual, wanted)
        except AssertionError as error:
            raise AssertionError(f"{case.id}: {error}") from error
