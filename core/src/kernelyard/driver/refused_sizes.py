"""Compile a model again for sizes of 0, if some results are not empty then, and for images smaller than a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kernelyard.dims import Dim, evaluate, maximum, product, symbols_of
from kernelyard.driver.session.import_model import frontend_for
from kernelyard.errors import ShapeError
from kernelyard.ir import IRModule
from kernelyard.runtime.program.vm_function import VMFunction
from kernelyard.transform.interprocedural.bind_symbolic_vars import BindSymbolicVars

if TYPE_CHECKING:
    from kernelyard.driver.session.session import CompileSession, Options
    from kernelyard.runtime.abi.spec import TensorSpec
    from kernelyard.runtime.execute.compiled_model import CompileForSizes
    from kernelyard.runtime.execute.executable import Executable
    from kernelyard.runtime.program.execution_plan import FixedSizes
    from kernelyard.runtime.program.program import Program

SOME_SIZE = 16

Bind: TypeAlias = Callable[[IRModule], IRModule]


def compiler_for_refused_sizes(
    session: CompileSession, model: object, exe: Executable, compile_again: Callable[[Options, Bind], Executable]
) -> CompileForSizes | None:
    """Return what compiles a model for sizes that its program refuses; None where it refuses none that mean anything.

    exe: the model, compiled. compile_again: compiles it with these options, once a function has bound its sizes.
    """
    entries = exe.entries
    frontend = None if isinstance(model, IRModule) else frontend_for(session.manager, model)
    has_windows = frontend is not None and any(map(_has_windows, entries.values()))
    if not has_windows and not any(map(_may_fill, entries.values())):
        return None
    options = session.options  # the session itself holds what its recorder saw, weights too
    given = {} if frontend is None else options.get(frontend.name, {})
    inputs = {name: entry.inputs for name, entry in entries.items()}

    def compile_for(function: str, sizes: FixedSizes) -> Executable:
        shapes = _shapes_to_fix(inputs[function], sizes, has_windows)
        fixed = None if frontend is None else frontend.with_shapes(given, shapes)
        chosen = options if frontend is None or fixed is None else {**options, frontend.name: fixed}
        return compile_again(chosen, lambda imported: _bind_empty_sizes(imported, function, sizes))

    return compile_for


def _shapes_to_fix(
    specs: Sequence[TensorSpec], sizes: FixedSizes, has_windows: bool
) -> Mapping[str, Sequence[int | None]]:
    """Return the sizes to fix, by input: those of 0, or where there are none, all.

    Raises: ShapeError, where a model is not compiled for such sizes.
    """
    if [len(shape) for shape in sizes] != [len(spec.shape) for spec in specs]:
        raise ShapeError("a tensor has the wrong rank")
    named = {spec.name: shape for spec, shape in zip(specs, sizes, strict=True)}
    if any(0 in shape for shape in sizes):
        return {name: shape for name, shape in named.items() if 0 in shape}
    if not has_windows:
        raise ShapeError("no window of the model may be larger than what it moves over")
    return named


def _has_windows(entry: Program | VMFunction) -> bool:
    """Return whether some sizes are refused for a window that is larger than what it moves over."""
    programs = entry.blocks if isinstance(entry, VMFunction) else (entry,)
    return any(check.right == maximum(check.left, 0) for program in programs for check in program.checks)


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


def _bind_empty_sizes(module: IRModule, function: str, sizes: FixedSizes) -> IRModule:
    """Return the module with the sizes of 0 in it that the import did not know."""
    entries = module.entry_functions()
    values: dict[str, Dim] = {}
    for param, shape in zip(entries[function].params, sizes, strict=True):
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
