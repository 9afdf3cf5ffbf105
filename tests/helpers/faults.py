"""Faults for tests: wrong kernels, a wrong pass, a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.ir import Call, FunctionBuilder, FunctionMutator, IRModule, get_op
from kernelyard.legalize import custom_kernel, unregister_kernel
from kernelyard.transform.pass_base import Pass, function_pass


def network(rows: object = 4) -> IRModule:
    """Three layers: tanh of a product, erf of a product, sigmoid of a product."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    value = b.input("x", (dims.symbol("n") if rows is None else rows, 8))
    for number, activation in enumerate(("tanh", "erf", "sigmoid")):
        weight = random.standard_normal((8, 8)).astype(np.float32)
        value = b.op("matmul", value, weight, origin=f"product {number}")
        value = b.op("add", value, random.standard_normal(8).astype(np.float32), origin=f"bias {number}")
        value = b.op(activation, value, origin=f"activation {number}")
    return IRModule({"main": b.function(value)})


@contextmanager
def wrong_kernel(op: str, factor: float = 0.5, addend: float = 0.0) -> Iterator[None]:
    """An elementwise kernel that gives something else."""

    @custom_kernel(op)
    def wrong(b: Any, x: Any, *rest: Any, **attributes: Any) -> Any:
        return b.compute(b.result.shape, lambda *i: x[i] * factor + addend)

    try:
        yield
    finally:
        unregister_kernel("wrong")


def wrong_pass(op: str, by: str) -> Pass:
    """A pass that replaces an operator by another one."""

    class Wrong(FunctionMutator):
        def rewrite(self, var: Any, value: Any) -> Any:
            if isinstance(value, Call) and value.op_name == op:
                return Call(get_op(by), value.args, {})
            return value

    return function_pass("wrong_rewrite")(lambda function, module, context: Wrong().mutate(function))


def crashing_pass(op: str, most: int | None = None) -> Pass:
    """A pass that ends the process where it finds an operator, in functions of at most so many bindings."""

    def crash(function: Any, module: Any, context: Any) -> Any:
        if _has(function, op) and (most is None or len(function.bindings) <= most):
            os.kill(os.getpid(), signal.SIGSEGV)
        return function

    return function_pass("crashing")(crash)


def failing_pass(op: str) -> Pass:
    """A pass that raises where it finds an operator."""

    def fail(function: Any, module: Any, context: Any) -> Any:
        if _has(function, op):
            raise ValueError(f"{len(function.bindings)} bindings are too many")
        return function

    return function_pass("failing")(fail)


def _has(function: Any, op: str) -> bool:
    return any(isinstance(binding.value, Call) and binding.value.op_name == op for binding in function.bindings)
