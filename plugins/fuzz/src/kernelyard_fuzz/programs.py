"""Oracles of programs: however a program is called, saved or compiled again, it gives the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

import kernelyard as ky
from kernelyard.errors import PerformanceWarning
from kernelyard.ir import Function, IRModule
from kernelyard.ir.types import TupleType
from kernelyard.runtime.execute.executable import Executable
from kernelyard_fuzz.configuration import Configuration
from kernelyard_fuzz.errors import FoundError


def run_program(oracle: str, exe: Executable, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a program gives. Raises: FoundError for whatever it raises."""
    try:
        result = exe(*feeds)
    except Exception as error:  # whatever it is, a compiled program raised it on feeds that fit
        raise FoundError(oracle, "error", f"{type(error).__name__}: {error}") from error
    return [tensor.numpy() for tensor in (result if isinstance(result, tuple) else (result,))]


def no_violation(exe: Executable) -> None:
    """Refuse a program whose plugins broke their word. Raises: FoundError."""
    for violation in exe.report.violations:
        raise FoundError("contract", "error", f"{violation.backend}: {violation.message}")


def same_bits(oracle: str, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
    """Compare results bit by bit. Raises: FoundError."""
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.tobytes() != b.tobytes():
            raise FoundError(oracle, "values", f"output {at} has other bits")


def check_called(exe: Executable, module: IRModule, feeds: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Call a program by names, with operands that are strided views, and with arrays for its results.

    Raises: FoundError.
    """
    main = module["main"]
    assert isinstance(main, Function)
    count = len(main.result_type.fields) if isinstance(main.result_type, TupleType) else 1
    names = tuple(main.attrs.get("input_names") or (param.name for param in main.params))
    results = tuple(main.attrs.get("output_names") or (f"output_{number}" for number in range(count)))
    stated = tuple(info.name for info in exe.inputs), tuple(info.name for info in exe.outputs)
    if stated != (names, results):
        raise FoundError("called", "shape", f"the program names {stated} in place of {names, results}")
    views = {name: _make_strided(feed) for name, feed in zip(reversed(names), reversed(feeds), strict=True)}
    room = {name: np.zeros_like(output) for name, output in zip(results, outputs, strict=True)}
    try:
        found = exe.run(views, out=room)
    except Exception as error:  # whatever it is, a compiled program raised it on feeds that fit
        raise FoundError("called", "error", f"{type(error).__name__}: {error}") from error
    same_bits("called", outputs, [found[name].numpy() for name in results])
    same_bits("called", outputs, list(room.values()))


def _make_strided(array: np.ndarray) -> np.ndarray:
    """Return the same numbers as a view: every other element of the last axis of a larger array."""
    if not array.ndim:
        return array
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def check_saved(
    exe: Executable, module: IRModule, how: Configuration, feeds: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> None:
    """Save a program and load it again, or compile it a second time, as the configuration says. Raises: FoundError."""
    data = exe.to_bytes()
    if how.again:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            if ky.compile(module, **how.arguments()).to_bytes() != data:
                raise FoundError("bytes", "values", "compiled again, it is saved as other bytes")
    if how.saved:
        loaded = ky.load(data)
        loaded.threads = how.threads
        same_bits("saved", outputs, run_program("saved", loaded, feeds))


def check_explained(exe: Executable, module: IRModule, how: Configuration) -> None:
    """Hold what `explain` says against what `compile` did. Raises: FoundError."""
    said = ky.explain(module, **how.arguments())
    if said.placed != exe.report.placed or said.regions != exe.report.regions or said.declined != exe.report.declined:
        raise FoundError("explain", "values", "explain says something else than compile does")
