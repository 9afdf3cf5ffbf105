"""DecomposeRandom: random numbers as arithmetic on random bits, which code generators have kernels for."""

from __future__ import annotations

import math

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ops.random import is_double, key_of_seed
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

DECOMPOSED = ("random.uniform", "random.normal")


class DecomposeRandom(FunctionPass):
    """Replace `random.uniform` and `random.normal` by what their references compute of `random.bits`.

    The key is the seed, or drawn by `random.key` in each call.
    """

    name = "decompose_random"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Decomposer().mutate(function)


class _Decomposer(FunctionMutator):
    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name not in DECOMPOSED:
            return value
        numbers = _Numbers(self, value)
        return numbers.uniform() if value.op_name == "random.uniform" else numbers.normal()


class _Numbers:
    """The numbers of one call, in float32 or float64 until the end."""

    def __init__(self, mutator: FunctionMutator, call: Call) -> None:
        self.mutator = mutator
        self.attrs = call.attrs
        self.dtype = "float64" if is_double(call.attrs["dtype"]) else "float32"
        seed = call.attrs["seed"]
        drawn = Call(get_op("random.key"), [])
        self.key = mutator.emit(drawn) if seed is None else Constant(np.asarray(key_of_seed(seed), np.uint64))

    def uniform(self) -> Expr:
        """Return numbers between two bounds."""
        low, high = self.attrs["low"], self.attrs["high"]
        return self._scale(self._fractions(0), high - low, low)

    def normal(self) -> Expr:
        """Return normally distributed numbers."""
        rest = self._op("subtract", self._constant(1), self._fractions(0))
        radius = self._op("sqrt", self._op("multiply", self._op("log", rest), self._constant(-2)))
        cosine = self._op("cos", self._op("multiply", self._fractions(1), self._constant(2 * math.pi)))
        return self._scale(self._op("multiply", radius, cosine), self.attrs["scale"], self.attrs["mean"])

    def _scale(self, numbers: Expr, factor: float, summand: float) -> Expr:
        scaled = self._op("multiply", numbers, self._constant(factor))
        return Call(
            get_op("astype"), [self._op("add", scaled, self._constant(summand))], {"dtype": self.attrs["dtype"]}
        )

    def _fractions(self, number: int) -> Expr:
        """Return numbers in [0, 1), made of one word or two: 0 the first."""
        if self.dtype == "float32":
            bits = self._op("right_shift", self._bits(number), Constant(np.asarray(8, np.uint32)))
            return self._op("multiply", self._cast(bits), self._constant(2.0**-24))
        high, low = (self._cast(self._bits(2 * number + n)) for n in (0, 1))
        upper = self._op("floor", self._op("multiply", high, self._constant(2.0**-5)))
        lower = self._op("floor", self._op("multiply", low, self._constant(2.0**-6)))
        whole = self._op("add", self._op("multiply", upper, self._constant(2.0**26)), lower)
        return self._op("multiply", whole, self._constant(2.0**-53))

    def _bits(self, word: int) -> Expr:
        attrs = {"shape": self.attrs["shape"], "word": word}
        return self.mutator.emit(Call(get_op("random.bits"), [self.key], attrs))

    def _cast(self, bits: Expr) -> Expr:
        return self.mutator.emit(Call(get_op("astype"), [bits], {"dtype": self.dtype}))

    def _constant(self, value: float) -> Constant:
        return Constant(np.asarray(value, to_numpy(self.dtype)))

    def _op(self, name: str, *operands: Expr) -> Expr:
        return self.mutator.emit(Call(get_op(name), operands))
