"""Compile a module so that it returns other values than its results: what observers and error tables look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard.driver.compile import compile as compile_model
from kernelyard.ir import Binding, Call, Constant, Expr, Function, IRModule, Tuple, Var, get_op
from kernelyard.runtime.execute.executable import Executable

MAIN = "main"


@dataclass(frozen=True)
class Compilation:
    """The arguments of `compile` for all that is run while a model is quantized."""

    target: Any = "cpu"
    backends: Sequence[str] | str = "auto"
    options: Mapping[str, Mapping[str, Any]] | None = None

    def __call__(self, module: IRModule) -> Executable:
        """Compile a module."""
        return compile_model(module, self.target, self.backends, self.options)


@dataclass
class Emitter:
    """Appends calls to the bindings of a function.

    layer: the value of the layer whose weights come next, which are made of constants alone.
    """

    bindings: list[Binding] = field(default_factory=list)
    layer: Var | None = None
    _sources: dict[Var, str] = field(default_factory=dict)  # the model's node, or input, behind each emitted value

    def __call__(self, name: str, *args: Expr | np.ndarray | np.generic, **attrs: Any) -> Var:
        """Return the variable of a new call of an operator; arrays become constants.

        Its origin is the model's node that it is made for, and the operator: reports name it by that.
        """
        operands = [arg if isinstance(arg, Expr) else Constant(arg) for arg in args]
        read = next((operand for operand in operands if isinstance(operand, Var)), self.layer)
        source = "" if read is None else self._sources.get(read) or read.origin or repr(read)
        label = name.rsplit(".", 1)[-1]
        var = self.bind(Call(get_op(name), operands, attrs), label, f"{source}, {label}" if source else "")
        self._sources[var] = source
        return var

    def bind(self, value: Expr, name: str = "lv", origin: str = "") -> Var:
        """Return a new variable of a value."""
        var = Var(name, value.type, origin)
        self.bindings.append(Binding(var, value))
        return var

    def reduce(self, name: str, x: Var) -> Var:
        """Return a reduction of all elements: "min", "max" or "sum"."""
        return self(name, x, axes=tuple(range(x.tensor_type.rank)))


def returning(module: IRModule, emit_results: Callable[[Emitter, Function], Sequence[Expr]]) -> IRModule:
    """Return a module whose function `main` returns other values: those that `emit_results` gives, in order."""
    function = module[MAIN]
    assert isinstance(function, Function)
    emitter = Emitter(list(function.bindings))
    results = emit_results(emitter, function)
    names = tuple(str(number) for number in range(len(results)))
    result = results[0] if len(results) == 1 else Tuple(results)
    attrs = {**function.attrs, "output_names": names}
    return module.with_functions({MAIN: Function(function.params, emitter.bindings, result, attrs)})


def runs(exe: Executable, feeds: Iterator[Mapping[str, np.ndarray]]) -> Iterator[list[np.ndarray]]:
    """Yield the results of a program for each feed."""
    for feed in feeds:
        yield [tensor.numpy() for tensor in exe.run(feed).values()]
