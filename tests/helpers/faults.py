"""Faults for tests: wrong kernels, a wrong pass, a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.ir import Call, FunctionBuilder, FunctionMutator, IRModule, get_op
from kernelyard.legalize import custom_kernel, unregister_kernel
from kernelyard.tir import PrimFunc
from kernelyard.transform.fusion.fuse_tir import FuseTIR
from kernelyard.transform.pass_infra.pass_base import Pass, function_pass


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


def deep(layers: int) -> IRModule:
    """Layers of a product and a tanh."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    value = b.input("x", (4, 8))
    for number in range(layers):
        value = b.op("matmul", value, random.standard_normal((8, 8)).astype(np.float32) / 3, origin=f"product {number}")
        value = b.op("tanh", value, origin=f"activation {number}")
    return IRModule({"main": b.function(value)})


def flattened() -> IRModule:
    """A tanh, ops that take any number of rows, and a reshape that does not."""
    b = FunctionBuilder()
    value = b.op("tanh", b.input("x", (4, 8)), origin="doubled")
    for number in range(3):
        value = b.op(("exp", "sigmoid", "nn.relu")[number], value, origin=f"between {number}")
    return IRModule({"main": b.function(b.op("reshape", value, shape=(32,), origin="flat"))})


@contextmanager
def fused_kernels_are_wrong() -> Iterator[None]:
    """A code generator that halves what kernels of several ops compute."""
    honest = FuseTIR.run

    def run(self: FuseTIR, module: IRModule, context: Any) -> IRModule:
        fused = honest(self, module, context)
        functions = {n: _halved(f) for n, f in fused.functions.items() if isinstance(f, PrimFunc) and _is_fused(f)}
        return fused.with_functions(functions)

    FuseTIR.run = run
    try:
        yield
    finally:
        FuseTIR.run = honest


def _is_fused(function: PrimFunc) -> bool:
    return len(function.attrs.get("ops", ())) > 1 and "halved" not in function.attrs


def _halved(function: PrimFunc) -> PrimFunc:
    [output] = function.outputs
    blocks = tuple(replace(each, body=each.body * 0.5) if each.output == output else each for each in function.blocks)
    return PrimFunc(function.params, blocks, 1, function.locals, {**function.attrs, "halved": True})


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


def doubling_pass(op: str) -> Pass:
    """A pass that gives the results of an operator twice as many rows."""

    class Doubled(FunctionMutator):
        def rewrite(self, var: Any, value: Any) -> Any:
            if not isinstance(value, Call) or value.op_name != op:
                return value
            inner = self.emit(value, var.name, var.origin)
            return Call(get_op("concat"), [inner, inner], {"axis": 0})

    return function_pass("doubling")(lambda function, module, context: Doubled().mutate(function))


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
