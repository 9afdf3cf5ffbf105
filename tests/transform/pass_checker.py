"""What tests of passes share: run a pass, verify what it gives, and compare the meaning with the oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.ir import (
    Binding,
    Call,
    Expr,
    Function,
    FunctionBuilder,
    IRModule,
    Tuple,
    Var,
    operands,
    verify,
    with_operands,
)
from kernelyard.ir.types import symbols_of
from kernelyard.ops.samples import draw_numbers
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.interprocedural.inline_private_functions import InlinePrivateFunctions
from kernelyard.transform.pass_infra.pass_base import Pass
from kernelyard.transform.pipelines import get_pipeline

SIZE = 3


class Checker:
    """Applies passes to functions and checks that the result is well-formed and means the same."""

    def __call__(self, pass_: Pass, function: Function, inputs: list[np.ndarray] | None = None) -> Function:
        """The function after a pass."""
        before = verify(IRModule({"main": function}))
        after = verify(pass_(before))
        assert after["main"].result_type == function.result_type  # pyright: ignore[reportAttributeAccessIssue]
        assert_same_meaning(before, after, inputs or _inputs(function))
        return after["main"]  # pyright: ignore[reportReturnType]

    def clean(self, pass_: Pass, function: Function, inputs: list[np.ndarray] | None = None) -> Function:
        """The function after canonical forms, the pass, and the removal of what is left over."""
        before = get_pipeline("clean")(IRModule({"main": function}))["main"]
        after = self(pass_, before, inputs)  # pyright: ignore[reportArgumentType]
        assert_same_meaning(IRModule({"main": function}), IRModule({"main": after}), inputs or _inputs(function))
        return get_pipeline("clean")(IRModule({"main": after}))["main"]  # pyright: ignore[reportReturnType]

    @staticmethod
    def of(build: Callable[[FunctionBuilder, Var], Expr], shape: Shape = (4, 6), dtype: str = "float32") -> Function:
        """A function of one tensor."""
        b = FunctionBuilder()
        return b.function(build(b, b.input("x", shape, dtype)))

    @staticmethod
    def ops(function: Function) -> list[str]:
        """Names of the operators that a function calls, in order."""
        return [binding.value.op_name for binding in function.bindings if isinstance(binding.value, Call)]


def _inputs(function: Function) -> list[np.ndarray]:
    sizes = dict.fromkeys(symbols_of(param.type for param in function.params), SIZE)
    arrays = []
    for seed, param in enumerate(function.params):
        shape = [dims.evaluate(dim, sizes) for dim in param.tensor_type.shape]
        arrays.append(draw_numbers(*shape, dtype=param.tensor_type.dtype, seed=seed))
    return arrays


@pytest.fixture
def check() -> Checker:
    return Checker()


def branching(module: IRModule) -> IRModule:
    """What the module does, added to what it does again in the branch that is taken; the other one negates it."""
    function = module.public_functions()["main"]
    inner = InlinePrivateFunctions()(module).public_functions()["main"]
    results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
    b = FunctionBuilder()
    flag = b.input("flag", (), "bool")
    b.params[:0], b.bindings[:0] = function.params, function.bindings
    again = b.if_(flag, "then", "otherwise", function.params, function.result_type)
    sums = []
    for index, result in enumerate(results):
        other = again if function.result is result else b.get(again, index)
        sums.append(b.op("logical_xor" if result.type.dtype == "bool" else "add", result, other))
    private = {"private": True}
    then = Function(inner.params, inner.bindings, inner.result, private)
    main = b.function(*sums) if isinstance(function.result, Tuple) else b.function(sums[0])
    functions = {**module.functions, "main": main, "then": copied(then), "otherwise": copied(then)}
    return verify(IRModule(functions))


def copied(function: Function) -> Function:
    """The function over variables of its own."""
    new: dict = {p: Var(p.name, p.type) for p in function.params}
    bindings = []
    for binding in function.bindings:
        value = with_operands(binding.value, [new.get(o, o) for o in operands(binding.value)])
        new[binding.var] = Var(binding.var.name, binding.var.type)
        bindings.append(Binding(new[binding.var], value))
    result = function.result
    result = new.get(result, result) if not isinstance(result, Tuple) else Tuple([new.get(f, f) for f in result.fields])
    return Function([new[p] for p in function.params], bindings, result, function.attrs)
