"""Compile a model again for inputs of size 0, if some of its results are not empty then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kernelyard.dims import Dim, evaluate, product, symbols_of
from kernelyard.driver.import_model import frontend_for
from kernelyard.errors import ShapeError
from kernelyard.ir import IRModule
from kernelyard.runtime.program.vm_function import VMFunction
from kernelyard.transform.interprocedural.bind_symbolic_vars import BindSymbolicVars

if TYPE_CHECKING:
    from kernelyard.driver.session import CompileSession, Options
    from kernelyard.runtime.abi.spec import TensorSpec
    from kernelyard.runtime.execute.compiled_model import CompileForEmpty
    from kernelyard.runtime.execute.executable import Executable
    from kernelyard.runtime.program.execution_plan import Zeros
    from kernelyard.runtime.program.program import Program

SOME_SIZE = 16

Bind: TypeAlias = Callable[[IRModule], IRModule]


def compiler_for_empty(
    session: CompileSession, model: object, exe: Executable, compile_again: Callable[[Options, Bind], Executable]
) -> CompileForEmpty | None:
    """Return what compiles a model for empty inputs; None where all results are empty whenever a size is 0.

    exe: the model, compiled. compile_again: compiles it with these options, once a function has bound its sizes.
    """
    entries = exe.entries
    if not any(map(_may_fill, entries.values())):
        return None
    frontend = None if isinstance(model, IRModule) else frontend_for(session.manager, model)
    options = session.options  # the session itself holds what its recorder saw, weights too
    given = {} if frontend is None else options.get(frontend.name, {})
    inputs = {name: entry.inputs for name, entry in entries.items()}

    def compile_for(function: str, zeros: Zeros) -> Executable:
        if [len(shape) for shape in zeros] != [len(spec.shape) for spec in inputs[function]]:
            raise ShapeError("a tensor has the wrong rank")
        shapes = {spec.name: shape for spec, shape in zip(inputs[function], zeros, strict=True) if 0 in shape}
        fixed = None if frontend is None else frontend.with_shapes(given, shapes)
        chosen = options if frontend is None or fixed is None else {**options, frontend.name: fixed}
        return compile_again(chosen, lambda imported: _bound(imported, function, zeros))

    return compile_for


def _may_fill(entry: Program | VMFunction) -> bool:
    """Return whether some result may have elements although a symbol of the inputs is 0."""
    names = _symbols(entry.inputs)
    if isinstance(entry, VMFunction):  # what its blocks and callees make may be anything
        return bool(names)
    known = dict.fromkeys(names | _symbols(entry.outputs), SOME_SIZE)
    counts = [product(spec.shape) for spec in entry.outputs]
    return any(_is_filled(count, {**known, name: 0}) for name in names for count in counts)


def _symbols(specs: Sequence[TensorSpec]) -> frozenset[str]:
    return frozenset(name for spec in specs for dim in spec.shape for name in symbols_of(dim))


def _is_filled(count: Dim, symbols: Mapping[str, int]) -> bool:
    try:
        return evaluate(count, symbols) != 0
    except ShapeError:  # it divides by the size
        return True


def _bound(module: IRModule, function: str, zeros: Zeros) -> IRModule:
    """Return the module with the sizes of 0 in it that the import did not know."""
    entries = module.entry_functions()
    values: dict[str, Dim] = {}
    for param, shape in zip(entries[function].params, zeros, strict=True):
        for dim, size in zip(param.tensor_type.shape, shape, strict=True):
            if size == 0:
                values.update(dict.fromkeys(_symbols_at_zero(dim), 0))
    if not values:
        return module
    return BindSymbolicVars(values, function if len(entries) > 1 else None)(module)


def _symbols_at_zero(dim: Dim) -> frozenset[str]:
    """Return the symbols that are 0 where a dim is: that of `n` or `4 * n`; code for `n - 1` takes 0 as it is."""
    names = symbols_of(dim)
    return names if len(names) == 1 and evaluate(dim, dict.fromkeys(names, 0)) == 0 else frozenset()
