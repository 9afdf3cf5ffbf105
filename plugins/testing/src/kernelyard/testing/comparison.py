"""Two executables of one model on the same feeds, compared step by step: where do their numbers part?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.testing.assertions import relative_error


class StepError(NamedTuple):
    """Record how far a step's results are from the reference's.

    error: the largest difference, as a fraction of the largest expected magnitude. label: the model's node, or
    `output 'name'` for a result of the program. function and reference_function: what computed it in each executable.
    """

    label: str
    function: str
    reference_function: str
    error: float


def compare_executables(
    executable: Executable, reference: Executable, feeds: Mapping[str, Any], function: str | None = None
) -> list[StepError]:
    """Compare two executables of one model step by step, in the order in which these run, and then by their outputs.

    Steps are the same when they give the result of one node of the model, in one shape and dtype; a node that one of
    the two computes inside a larger region or kernel has no step there. function: an entry function other than main.
    Raises: as running them; AssertionError where the programs' outputs are not of the same shapes.

    Example:
        >>> import kernelyard as ky
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("exp", b.input("x", (2,))))})
        >>> exe = ky.compile(module, backends=[])
        >>> [(step.label, step.error) for step in compare_executables(exe, exe, {"x": np.float32([0, 1])})]
        [('exp', 0.0), ("output 'output_0'", 0.0)]
    """
    found, outputs = _results(executable, feeds, function)
    expected, reference_outputs = _results(reference, feeds, function)
    errors = list(_step_errors(found, expected))
    for name, output in outputs.items():
        errors.append(StepError(f"output {name!r}", "", "", relative_error(output, reference_outputs[name])))
    return errors


class _Result(NamedTuple):
    symbol: str
    arrays: tuple[np.ndarray, ...]


def _results(
    executable: Executable, feeds: Mapping[str, Any], function: str | None
) -> tuple[dict[str, _Result], dict[str, np.ndarray]]:
    """Run a program; return the result of each node's last step, in order, and the outputs."""
    machine = VirtualMachine(executable, contexts=1)
    results: dict[str, _Result] = {}

    def instrument(step: Any, name: str, before_run: bool, ret_value: Any, *args: Any) -> None:
        if not before_run:
            label = step.label or name
            results.pop(label, None)  # a later step of the same node comes later
            results[label] = _Result(name, tuple(tensor.numpy().copy() for tensor in ret_value))

    machine.set_instrument(instrument)
    outputs = machine.run(function or executable.main.name, feeds)
    return results, {name: tensor.numpy() for name, tensor in outputs.items()}


def _step_errors(found: Mapping[str, _Result], expected: Mapping[str, _Result]) -> Iterator[StepError]:
    for label, result in found.items():
        other = expected.get(label)
        if other is None or list(map(_kind, result.arrays)) != list(map(_kind, other.arrays)):
            continue
        pairs = zip(result.arrays, other.arrays, strict=True)
        error = max((relative_error(actual, wanted) for actual, wanted in pairs), default=0.0)
        yield StepError(label, result.symbol, other.symbol, error)


def _kind(array: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
    return array.shape, array.dtype
