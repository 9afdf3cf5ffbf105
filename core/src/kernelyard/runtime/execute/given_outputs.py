"""Arrays that a caller gives for a program's results: checked before anything is written to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import OutputError
from kernelyard.runtime.abi.spec import TensorSpec

if TYPE_CHECKING:
    from kernelyard.runtime.device.array import AnyArray


def match_given_outputs(
    specs: Sequence[TensorSpec], given: Mapping[str, Any] | Any, inputs: Mapping[str, Any]
) -> list[np.ndarray | None]:
    """Return for each output the array that was given for it, or None.

    specs: of the outputs. given: arrays by the outputs' names, some or all of them; or an array, of the only output.
    inputs: feeds by name, whose memory no output may share.
    Raises: OutputError for what is no dense writable NumPy array of the output's dtype, with memory of its own.
    """
    by_name = given if isinstance(given, Mapping) else _name_only_output(specs, given)
    names = [spec.name for spec in specs]
    unknown = [name for name in by_name if name not in names]
    if unknown:
        raise OutputError(
            "an array is given for no output", found=repr(unknown[0]), expected=", ".join(map(repr, names))
        )
    taken: dict[str, np.ndarray] = {}
    for spec in specs:
        array = by_name.get(spec.name)
        if array is not None:
            _check(spec, array)
            _check_memory(spec, array, {f"output {name!r}": each for name, each in taken.items()})
            _check_memory(spec, array, {f"input {name!r}": each for name, each in inputs.items()})
            taken[spec.name] = array
    return [taken.get(name) for name in names]


def check_shapes(
    specs: Sequence[TensorSpec], given: Sequence[np.ndarray | None], shapes: Sequence[tuple[int, ...]]
) -> None:
    """Check arrays against the shapes that results will have, or have. Raises: OutputError."""
    for spec, array, shape in zip(specs, given, shapes, strict=True):
        if array is not None and array.shape != shape:
            _fail(spec, "has the wrong shape", array.shape, shape)


def store_results(
    specs: Sequence[TensorSpec], given: Sequence[np.ndarray | None], results: Sequence[AnyArray]
) -> list[AnyArray]:
    """Return the results, copied to where the caller wants them if they are not there. Raises: OutputError."""
    check_shapes(specs, given, [result.shape for result in results])
    places: list[AnyArray] = []
    for array, result in zip(given, results, strict=True):
        if array is not None and result is not array:
            array[...] = result if isinstance(result, np.ndarray) else result.numpy()
        places.append(result if array is None else array)
    return places


def _name_only_output(specs: Sequence[TensorSpec], given: Any) -> dict[str, Any]:
    if len(specs) == 1:
        return {specs[0].name: given}
    names = ", ".join(repr(spec.name) for spec in specs)
    raise OutputError("arrays for several outputs must be given by name", found=type(given).__name__, expected=names)


def _check(spec: TensorSpec, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        _fail(
            spec, "is no NumPy array", type(array).__name__, repr(spec), "numpy.from_dlpack makes one of a CPU tensor"
        )
    dtype = dtypes.to_numpy(spec.dtype)
    if array.dtype != dtype:
        _fail(spec, "has the wrong dtype", array.dtype.str, dtype.str)
    if not array.flags.writeable:
        _fail(spec, "is read-only", "a read-only array", "one that can be written")
    if not array.flags.c_contiguous:
        _fail(spec, "is not dense in row-major order", f"strides {array.strides}", "a C-contiguous array")
    if array.ndim != len(spec.shape):
        _fail(spec, "has the wrong rank", array.shape, repr(spec))


def _check_memory(spec: TensorSpec, array: np.ndarray, others: Mapping[str, Any]) -> None:
    for name, other in others.items():
        if isinstance(other, np.ndarray) and np.may_share_memory(array, other) and np.shares_memory(array, other):
            _fail(spec, f"shares memory with {name}", "the same bytes", "memory that nothing else of the call uses")


def _fail(spec: TensorSpec, message: str, found: object, expected: object, hint: str | None = None) -> NoReturn:
    where = f"output {spec.name!r}"
    raise OutputError(
        f"the array given for an output {message}", where=where, found=found, expected=expected, hint=hint
    )
