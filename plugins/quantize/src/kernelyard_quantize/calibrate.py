"""Calibrate: run a model on data and find the range of each value that is to be stored as integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import as_symbol, symbols_of
from kernelyard.errors import OptionError
from kernelyard.ir import Expr, Function, IRModule, Var
from kernelyard.ir.types import TensorType
from kernelyard_quantize.batches import batches
from kernelyard_quantize.errors import CalibrationError
from kernelyard_quantize.feeds import Feed, Feeds
from kernelyard_quantize.instrumented import MAIN, Compilation, Emitter, returning, runs
from kernelyard_quantize.observers import OBSERVERS, MinMax, Observer
from kernelyard_quantize.parameters import Range
from kernelyard_quantize.progress import track_progress

BUDGET = 1 << 28  # bytes of values that one run returns to observers of all their numbers
_UNKNOWN_BYTES = 1 << 20  # of a value whose size another value decides


def calibrate(
    module: IRModule, values: Mapping[Var, frozenset[Var]], feeds: Feeds, observer: str, compilation: Compilation
) -> dict[Var, Range]:
    """Return the range of each value over all feeds; those that share a scale get the range of all of them.

    "minmax" takes ranges inside the compiled program, which then returns two numbers for each value. Other observers
    are given whole values: as many in one run as fit into 256 MiB, the rest in further runs.
    Raises: OptionError for an unknown observer, CalibrationError.
    """
    if observer not in OBSERVERS:
        raise OptionError(f"there is no observer {observer!r}", expected=", ".join(OBSERVERS))
    observers = {var: OBSERVERS[observer]() for var in values}
    if OBSERVERS[observer] is MinMax:
        _see_extremes(module, observers, feeds, compilation)
    else:
        for group in _groups(module, list(values), feeds):
            _see_all(module, {var: observers[var] for var in group}, feeds, compilation)
    ranges = {var: each.range for var, each in observers.items()}
    return {var: _joint(var, [ranges[other] for other in group]) for var, group in values.items()}


def _see_extremes(module: IRModule, observers: Mapping[Var, Observer], feeds: Feeds, compilation: Compilation) -> None:
    def extremes(emit: Emitter, function: Function) -> Sequence[Expr]:
        return [emit.reduce(name, var) for var in observers for name in ("min", "max")]

    exe = compilation(returning(module, extremes)) if observers else None
    for results in runs(exe, track_progress(feeds, "calibrating")) if exe is not None else ():
        pairs = zip(results[::2], results[1::2], strict=True)
        for observer, pair in zip(observers.values(), pairs, strict=True):
            observer.see(np.stack(pair))


def _see_all(module: IRModule, observers: Mapping[Var, Observer], feeds: Feeds, compilation: Compilation) -> None:
    exe = compilation(returning(module, lambda emit, function: list(observers)))
    for results in runs(exe, track_progress(feeds, "calibrating")):
        for (var, observer), array in zip(observers.items(), results, strict=True):
            if not bool(np.isfinite(array).all()):
                raise _not_finite(var)
            observer.see(array)


def _groups(module: IRModule, values: Sequence[Var], feeds: Feeds) -> Iterator[list[Var]]:
    """Split values so that those of a group fit into the budget, at the sizes of the first feed."""
    function = module[MAIN]
    assert isinstance(function, Function)
    sizes = _sizes(function, next(iter(feeds)))

    def nbytes(var: Var) -> int:
        total = var.tensor_type.nbytes
        return dims.evaluate(total, sizes) if symbols_of(total) <= sizes.keys() else _UNKNOWN_BYTES

    return batches(values, nbytes, BUDGET)


def _sizes(function: Function, feed: Feed) -> dict[str, int]:
    """Return what a feed says of the sizes that are symbols by themselves."""
    found: dict[str, int] = {}
    for param, array in zip(function.params, feed.values(), strict=True):
        if isinstance(param.type, TensorType) and len(array.shape) == param.type.rank:
            pairs = zip(param.type.shape, array.shape, strict=True)
            found |= {name: size for dim, size in pairs if (name := as_symbol(dim)) is not None}
    return found


def _joint(var: Var, ranges: Sequence[Range]) -> Range:
    joint = Range(min(each.low for each in ranges), max(each.high for each in ranges))
    if not np.isfinite(joint).all():
        raise _not_finite(var)
    return joint


def _not_finite(var: Var) -> CalibrationError:
    return CalibrationError(
        "a value is NaN or infinite on the calibration data",
        where=f"{var!r} {var.origin}".strip(),
        hint="the data does not fit the model; are the inputs scaled as the model expects?",
    )
