"""Collect the size checks of a program: equalities of input sizes that its types assume without proof.

Type rules take dims to be equal that they cannot prove equal, and shapes to be possible that depend on sizes. Kernels
rely on both, so the runtime checks them once the sizes are known, before it runs anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard import dims
from kernelyard.dims import Bounds, Dim, SymbolicDim
from kernelyard.ir import Call, Function, GlobalVar, IRModule, Op, Var
from kernelyard.ir.size_bounds import size_bounds
from kernelyard.ir.types import tensors_of
from kernelyard.ops.type_rules import assumptions, clamp_size
from kernelyard.runtime.program.program import SizeCheck


def size_checks(module: IRModule, name: str) -> tuple[SizeCheck, ...]:
    """Return the checks that a graph-level function and those it calls need, each once.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> y = b.op("matmul", b.input("x", (4, dims.symbol("n"))), b.input("w", (dims.symbol("m"), 2)))
        >>> size_checks(IRModule({"main": b.function(y)}), "main")
        (SizeCheck(left=n, right=m, where='matmul'),)
    """
    function = module[name]
    bounds = size_bounds(function) if isinstance(function, Function) else {}
    found: dict[tuple[Dim, Dim], SizeCheck] = {
        (each.left, each.right): each for symbol, pair in bounds.items() for each in _bound_checks(symbol, pair)
    }
    for var, call in _calls(module, name):
        for left, right in _requirements(call):
            found.setdefault((left, right), SizeCheck(left, right, var.origin or call.op_name))
    return tuple(found.values())


def _bound_checks(symbol: str, bounds: Bounds) -> Iterator[SizeCheck]:
    """Return bounds as equalities: `min(n, low) = low`, `max(n, high) = high`."""
    size, (low, high) = dims.symbol(symbol), bounds
    if low > 0:
        yield SizeCheck(dims.minimum(size, low), low, symbol)
    if high is not None:
        yield SizeCheck(dims.maximum(size, high), high, symbol)


def _calls(module: IRModule, name: str) -> Iterator[tuple[Var, Call]]:
    """Yield the calls of operators in a function and in the functions it calls."""
    waiting, seen = [name], {name}
    while waiting:
        function = module[waiting.pop()]
        for binding in function.bindings if isinstance(function, Function) else ():
            if not isinstance(binding.value, Call):
                continue
            callee = binding.value.op
            if isinstance(callee, Op):
                yield binding.var, binding.value
            elif isinstance(callee, GlobalVar) and callee.name not in seen:
                seen.add(callee.name)
                waiting.append(callee.name)


def _requirements(call: Call) -> Iterator[tuple[Dim, Dim]]:
    """Yield pairs of dims that must be equal at run time."""
    assert isinstance(call.op, Op)
    if call.op.opaque_type:
        return
    with assumptions() as pairs:
        call.op.infer_type([arg.tensor_type for arg in call.args], call.attrs)
    yield from pairs
    for tensor in tensors_of(call.type):
        for dim in tensor.shape:
            clamped = clamp_size(dim)
            # A size must not be negative, and a broadcast in it must be possible: its evaluation fails otherwise.
            if clamped != dim or _has_broadcast(dim):
                yield dim, clamped


def _has_broadcast(dim: Dim) -> bool:
    if not isinstance(dim, SymbolicDim):
        return False
    atoms = [atom for monomial, _ in dim.terms for atom in monomial if isinstance(atom, dims.Function)]
    return any(atom.name == "broadcast" or _has_broadcast(atom.left) or _has_broadcast(atom.right) for atom in atoms)
