"""Declare operators: `declare` ties a type rule, a NumPy reference and samples into one `Op`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError, TypeInferenceError
from kernelyard.ir.op import REQUIRED, Attribute, Attributes, Op, Sample, TypeRule, register_op
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.ops.numeric import compute_widened

Reference = Callable[..., Any]
FlopsRule = Callable[[Sequence[TensorType], Type, Attributes], Dim]


def declare(
    name: str,
    inputs: tuple[str, ...],
    rule: TypeRule,
    reference: Reference,
    *,
    attributes: Mapping[str, Attribute] | None = None,
    samples: Callable[[], Iterable[Sample]] = tuple,
    flops: FlopsRule | None = None,
    optional_inputs: int = 0,
    commutative: bool = False,
    widen: bool = False,
    pure: bool = True,
    summary: str = "",
) -> Op:
    """Register an op.

    The type rule's errors are completed with the op and its operand types. The reference gets the defaults of
    attributes left out, always gives arrays, never NumPy scalars, and is silent about NaN and infinity; `widen`
    computes floats narrower than float32 in float32 and rounds once at the end.
    """
    return register_op(
        Op(
            name=name,
            inputs=inputs,
            infer_type=_name_errors(name, rule),
            reference=_fill_defaults(compute_widened(reference) if widen else reference, attributes or {}),
            attributes=dict(attributes or {}),
            samples=samples,
            flops=flops,
            optional_inputs=optional_inputs,
            commutative=commutative,
            pure=pure,
            summary=summary,
        )
    )


def _name_errors(name: str, rule: TypeRule) -> TypeRule:
    @functools.wraps(rule)
    def infer(types: Sequence[TensorType], attrs: Attributes) -> Type:
        try:
            return rule(types, attrs)
        except (TypeInferenceError, ShapeError) as error:
            raise TypeInferenceError(
                f"{name}: {error.message}",
                where=error.where or f"{name}({', '.join(map(repr, types))})",
                found=error.found,
                expected=error.expected,
                hint=error.hint,
            ) from error

    return infer


def _fill_defaults(reference: Reference, attributes: Mapping[str, Attribute]) -> Reference:
    defaults = {name: attribute.default for name, attribute in attributes.items() if attribute.default is not REQUIRED}

    @functools.wraps(reference)
    def run(*arrays: np.ndarray, **attrs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        with np.errstate(all="ignore"):
            result = reference(*arrays, **{**defaults, **attrs})
        return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)

    return run


# --- floating-point operations ----------------------------------------------------------------------------------------
def no_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    """Return 0 FLOPs: moving data is no arithmetic."""
    return 0


def flops_per_output(count: int) -> FlopsRule:
    """Count `count` operations for every element of the result."""

    def rule(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
        return count * sum_of_elements(result)

    return rule


def flops_per_input(count: int) -> FlopsRule:
    """Count `count` operations for every element of the first operand."""

    def rule(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
        return count * types[0].numel

    return rule


def sum_of_elements(type_: Type) -> Dim:
    """Return the number of elements of all tensors in a type."""
    return functools.reduce(lambda total, tensor: total + dims.product(tensor.shape), tensors_of(type_), 0)
