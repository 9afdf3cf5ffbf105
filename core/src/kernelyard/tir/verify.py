"""The verifier of loop-level code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kernelyard.dims import is_identifier
from kernelyard.errors import IRError, VerifyError
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Binary, Expr, Load, Select, Unary, binary, select, unary
from kernelyard.tir.iterate import Iterate, State, check_iterate
from kernelyard.tir.primfunc import KINDS_OF_AXES, REDUCERS, SORTS, STEP, ComputeBlock, PrimFunc, walk

_ARG_REDUCERS = ("argmax", "argmin", *SORTS)
_LOGICAL_REDUCERS = ("any", "all")


def verify(function: PrimFunc, name: str = "primfunc") -> None:
    """Check that a PrimFunc is well formed.

    Buffers are declared once and written before they are read, every output is written, inputs are not; axes are
    declared, accesses have the right rank, operands the right dtypes.
    Raises: VerifyError naming the function, the block and the fault.
    """
    where = f"@{name}"
    _check(0 < function.num_outputs <= len(function.params), "a PrimFunc needs an output", where, function.num_outputs)
    _check_unique((buffer.name for buffer in (*function.params, *function.locals)), "a buffer", where)
    _check_unique((block.name for block in function.blocks), "a block", where)
    for buffer in (*function.params, *function.locals):
        scope = "local" if buffer in function.locals else "global"
        _check(buffer.scope == scope, f"buffer {buffer.name!r} has the wrong scope", where, buffer.scope, scope)
    declared, written = {*function.params, *function.locals}, set(function.inputs)
    for block in function.blocks:
        _check_block(block, declared, written, set(function.inputs), f"@{name}, block {block.name!r}")
        written.add(block.output)
    for buffer in function.outputs:
        _check(buffer in written, f"output {buffer.name!r} is never written", where)


def _check_block(
    block: ComputeBlock, declared: set[Buffer], written: set[Buffer], inputs: set[Buffer], where: str
) -> None:
    _check_unique((axis.name for axis in block.axes), "an axis", where)
    for axis in block.axes:
        _check(axis.kind in KINDS_OF_AXES, f"axis {axis.name!r} has an unknown kind", where, axis.kind)
    steps = [axis.name for axis in block.axes if axis.kind == STEP]
    _check(len(steps) <= 1, "a block has several step axes", where, ", ".join(steps), "at most one")
    _check(block.output in declared, f"buffer {block.output.name!r} is not declared", where)
    _check(block.output not in inputs, f"input {block.output.name!r} is written", where)
    scan = block.reducer is None and bool(block.reduce_axes)
    for buffer in sorted(block.reads, key=lambda b: b.name):
        readable = buffer in written or (scan and buffer == block.output)
        _check(buffer in declared, f"buffer {buffer.name!r} is not declared", where)
        _check(readable, f"buffer {buffer.name!r} is read before it is written", where)
    _check_expressions(block, where)
    _check_write(block, where)


def _check_expressions(block: ComputeBlock, where: str) -> None:
    axes = {axis.name for axis in block.axes}
    _check_states(block.expressions, where)
    for expr in walk(*block.expressions):
        match expr:
            case Axis():
                _check(expr.name in axes, "an axis is not declared", where, expr.name)
            case Load():
                _check_indices(expr.buffer, expr.indices, where)
            case Unary() | Binary() | Select() | Iterate():
                _check_operation(expr, where)


def _check_states(roots: Sequence[Expr], where: str) -> None:
    """Check that every state stands in the body of its own loop."""
    seen: set[tuple[int, frozenset[State]]] = set()
    stack: list[tuple[Expr, frozenset[State]]] = [(root, frozenset()) for root in roots]
    while stack:
        expr, inside = stack.pop()
        if (id(expr), inside) in seen:
            continue
        seen.add((id(expr), inside))
        match expr:
            case State():
                _check(expr in inside, "a state is used outside of its loop", where, expr.name)
            case Iterate():
                stack += [(expr.init, inside), (expr.body, inside | {expr.state})]
            case _:
                stack += [(child, inside) for child in expr.children]


def _check_operation(expr: Unary | Binary | Select | Iterate, where: str) -> None:
    try:
        match expr:
            case Unary():
                unary(expr.op, expr.x)
            case Binary():
                binary(expr.op, expr.a, expr.b)
            case Select():
                select(expr.condition, expr.a, expr.b)
            case Iterate():
                check_iterate(expr)
    except IRError as error:
        raise VerifyError(error.message, where=where, found=error.found, expected=error.expected) from error


def _check_indices(buffer: Buffer, indices: tuple[Expr, ...], where: str) -> None:
    _check(
        len(indices) == buffer.rank,
        f"buffer {buffer.name!r} has the wrong number of indices",
        where,
        len(indices),
        buffer.rank,
    )
    for position, index in enumerate(indices):
        _check(index.dtype == INDEX, f"index {position} of {buffer.name!r} is no int64", where, index.dtype)


def _check_write(block: ComputeBlock, where: str) -> None:
    _check_indices(block.output, block.indices, where)
    reducer = block.reducer
    if reducer is None:
        _check(block.init is None and block.arg is None, "init and arg need a reducer", where)
        _check_dtype(block.body, block.output.dtype, where)
        return
    _check(reducer in REDUCERS, "unknown reducer", where, reducer, ", ".join(REDUCERS))
    reduced = {axis.name for axis in block.reduce_axes}
    outside = [*block.indices, block.init, block.arg if reducer in SORTS else None]
    for expr in walk(*(expr for expr in outside if expr is not None)):
        _check(not (isinstance(expr, Axis) and expr.name in reduced), "a reduce axis is used outside the body", where)
    if reducer in _ARG_REDUCERS:
        _check(block.arg is not None and block.init is None, f"{reducer} takes arg and no init", where)
        _check(block.arg is None or block.arg.dtype == INDEX, "arg is an int64", where)
        _check(block.output.dtype == INDEX, f"{reducer} writes int64", where, block.output.dtype)
        _check(reducer not in SORTS or len(reduced) == 1, f"{reducer} needs one reduce axis", where, len(reduced), 1)
        return
    _check(block.arg is None, f"{reducer} takes no arg", where)
    _check(reducer not in _LOGICAL_REDUCERS or block.output.dtype == "bool", f"{reducer} works on bools", where)
    _check_dtype(block.body, block.output.dtype, where)
    if block.init is not None:
        _check_dtype(block.init, block.output.dtype, where)


def _check_dtype(expr: Expr, dtype: str, where: str) -> None:
    _check(expr.dtype == dtype, "the value written has another dtype than its buffer", where, expr.dtype, dtype)


def _check_unique(names: Iterable[str], what: str, where: str) -> None:
    names = tuple(names)
    for name in names:
        _check(is_identifier(name), f"{what} name is no identifier", where, repr(name))
    twice = [name for name, count in Counter(names).items() if count > 1]
    _check(not twice, f"{what} name is declared twice", where, ", ".join(twice) or None)


def _check(holds: bool, message: str, where: str, found: object = None, expected: object = None) -> None:
    if not holds:
        raise VerifyError(message, where=where, found=found, expected=expected)
