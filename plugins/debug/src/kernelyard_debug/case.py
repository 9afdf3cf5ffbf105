"""Case: a model and its feeds; cut into pieces, and made to return values from its middle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kernelyard.errors import KernelyardError
from kernelyard.ir import Binding, Expr, Function, IRModule, TensorType, Tuple, TupleGetItem, Var, operands
from kernelyard.ir.types import symbols_of
from kernelyard.ir.visitor import reachable_functions
from kernelyard.ops.interpreter import run
from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard_debug.errors import DebugError

MAIN = "main"
Recorded: TypeAlias = "Mapping[Var, np.ndarray]"


@dataclass(frozen=True, eq=False)
class Case:
    """The function `main` of a module, and feeds by the names of its inputs."""

    module: IRModule
    feeds: Mapping[str, np.ndarray]

    @property
    def function(self) -> Function:
        """The function `main`. Raises: DebugError where the module has none."""
        function = self.module.functions.get(MAIN)
        if not isinstance(function, Function):
            found = ", ".join(f"@{name}" for name in self.module) or "no function"
            raise DebugError("the model has no graph-level function main", found=found, expected="@main")
        return function

    @property
    def results(self) -> tuple[Expr, ...]:
        """Return the results of `main`, in order."""
        result = self.function.result
        return result.fields if isinstance(result, Tuple) else (result,)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        names = self.function.attrs.get("input_names", ())
        return tuple(names) if names else tuple(param.name for param in self.function.params)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        names = tuple(self.function.attrs.get("output_names", ()))
        return names if len(names) == len(self.results) else tuple(f"output_{n}" for n in range(len(self.results)))

    @property
    def values(self) -> tuple[Var, ...]:
        """The tensors that are computed, in order."""
        return tuple(b.var for b in self.function.bindings if isinstance(b.var.type, TensorType))

    def with_function(self, function: Function, feeds: Mapping[str, np.ndarray] | None = None) -> Case:
        """Return the case with another function `main`, and without functions that it does not reach."""
        module = self.module.with_functions({MAIN: function})
        unused = set(module) - reachable_functions(module, (MAIN,))
        return Case(module.without_functions(unused), self.feeds if feeds is None else feeds)

    def exposing(self, values: Sequence[Var]) -> Case:
        """Return a case whose model returns values from its middle too, after its own results."""
        function, results = self.function, (*self.results, *values)
        names = unique([*self.output_names, *(var.name for var in values)])
        result = results[0] if len(results) == 1 else Tuple(results)
        attrs = {**function.attrs, "output_names": names}
        return self.with_function(Function(function.params, function.bindings, result, attrs))


def record(case: Case) -> dict[Var, np.ndarray]:
    """Return every tensor of a model, inputs included, as the operators' references compute it."""
    values = case.values
    with np.errstate(all="ignore"):
        arrays = run(case.exposing(values).module, case.feeds)[len(case.results) :]
    recorded = dict(zip(values, arrays, strict=True))
    return recorded | {
        param: np.asarray(case.feeds[name]) for param, name in zip(case.function.params, case.input_names, strict=True)
    }


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return names with numbers appended where one occurs again."""
    found: dict[str, None] = {}
    for name in names:
        fresh, count = name, 0
        while fresh in found:
            count += 1
            fresh = f"{name}_{count}"
        found[fresh] = None
    return tuple(found)


def cut_case(case: Case, kept: Iterable[Binding], recorded: Recorded) -> Case | None:
    """Return a case of some bindings alone: what they read becomes inputs, fed with recorded values.

    What others read, or nobody, becomes results. Sizes stay symbolic: where the inputs do not tell them, the model's
    own inputs stay too. Returns None where nothing of these bindings can stand alone.
    """
    bindings = _whole(case.function, set(kept))
    results, read = _live_out(case, bindings), _live_in(bindings)
    if not results or not all(isinstance(var.type, TensorType) and var in recorded for var in read):
        return None
    params = list(read)
    if not _sizes_known(params, bindings, recorded):
        params += [param for param in case.function.params if param not in read]
    names = unique(param.name for param in params)
    attrs = {**case.function.attrs, "input_names": names, "output_names": unique(f"{var.name}_out" for var in results)}
    function = Function(params, bindings, results[0] if len(results) == 1 else Tuple(results), attrs)
    return case.with_function(function, {name: recorded[param] for name, param in zip(names, params, strict=True)})


def _whole(function: Function, kept: set[Binding]) -> list[Binding]:
    """Return kept bindings with all fields of the tuples that they make, and without fields of other tuples."""
    made: set[Expr] = set()
    bindings: list[Binding] = []
    for binding in function.bindings:
        value = binding.value
        is_field = isinstance(value, TupleGetItem)
        if (is_field and value.tuple_value in made) or (not is_field and binding in kept):
            opaque = [o for o in operands(value) if isinstance(o, Var) and not isinstance(o.type, TensorType)]
            if all(each in made for each in opaque):
                made.add(binding.var)
                bindings.append(binding)
    return bindings


def _live_in(bindings: Sequence[Binding]) -> list[Var]:
    made = {binding.var for binding in bindings}
    read = (operand for binding in bindings for operand in operands(binding.value))
    return list(dict.fromkeys(each for each in read if isinstance(each, Var) and each not in made))


def _live_out(case: Case, bindings: Sequence[Binding]) -> list[Var]:
    own = set(bindings)
    outside: set[Expr] = {o for b in case.function.bindings if b not in own for o in operands(b.value)}
    outside.update(case.results)
    inside: set[Expr] = {o for b in bindings for o in operands(b.value)}
    tensors = [b.var for b in bindings if isinstance(b.var.type, TensorType)]
    return [var for var in tensors if var in outside or var not in inside]


def _sizes_known(params: Sequence[Var], bindings: Sequence[Binding], recorded: Recorded) -> bool:
    """Return True where the inputs' shapes tell all symbolic sizes that are not decided inside."""
    values: dict[str, int] = {}
    specs = [TensorSpec(p.tensor_type.shape, p.tensor_type.dtype, p.name) for p in params]
    try:
        solve_symbols(specs, [recorded[param].shape for param in params], values)
    except KernelyardError:
        return False
    return symbols_of(binding.var.type for binding in bindings) <= values.keys()
