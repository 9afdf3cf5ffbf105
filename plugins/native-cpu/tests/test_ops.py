"""Every legalized op on its own samples against its NumPy reference: as a kernel, static and symbolic, at other sizes than
the samples', and empty."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, Sample, TensorType, all_ops
from kernelyard.ir.types import tensors_of
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard_native_cpu.generator import NativeCpuGenerator

TOLERANCES = {
    "float64": (1e-11, 1e-12),
    "float32": (2e-5, 2e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (2e-2, 2e-2),
    "float8_e4m3fn": (0.13, 0.13),
    "float8_e5m2": (0.26, 0.26),
}
CASES = {
    f"{op.name}.{number}".replace(".", "_"): (op, sample)
    for op in all_ops()
    if legalize.has_rule(op.name)
    for number, sample in enumerate(op.samples())
}

MOST_ELEMENTS = 10_000
# Other machines differ in lanes and masks, not in meaning: fewer samples tell.
FEW = [name for name in CASES if name.rsplit("_", 1)[1] in ("0", "1")]


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(np.shape(array), dtypes.from_numpy(np.asarray(array).dtype))


def symbol_of(size: int) -> dims.Dim:
    return dims.symbol(f"n{size}") if size > 1 else size


def lower(op: Op, sample: Sample, symbolic: bool) -> PrimFunc | None:
    """The op's loop-level function; symbolic: every size above 1 is a symbol, in attributes too. None where the type rule
    cannot do without known sizes."""
    if not symbolic:
        return _lower(op, [type_of(array) for array in sample.inputs], sample.attributes)
    types = [TensorType(tuple(map(symbol_of, np.shape(a))), type_of(a).dtype) for a in sample.inputs]
    for attributes in (with_sizes(op, sample, symbol_of), sample.attributes):
        with suppress(TypeInferenceError):
            return _lower(op, types, attributes)
    return None


def _lower(op: Op, types: list[TensorType], attributes: Mapping[str, Any]) -> PrimFunc:
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs))


def with_sizes(op: Op, sample: Sample, new: Callable[[int], dims.Dim]) -> dict[str, Any]:
    """The sample's attributes, with other sizes where they have sizes of its inputs."""
    own = {size for array in sample.inputs for size in np.shape(array)}
    attributes = dict(sample.attributes)
    for name, attribute in op.attributes.items():
        value = attributes.get(name)
        if value is None or attribute.kind not in ("dim", "dims"):
            continue
        changed = tuple(
            new(size) if size in own else size for size in (value if attribute.kind == "dims" else (value,))
        )
        attributes[name] = changed if attribute.kind == "dims" else changed[0]
    return attributes


def resized(op: Op, sample: Sample, new: Callable[[int], int]) -> Sample | None:
    """The sample with other sizes, and elements repeated to fill them; None where the op refuses these, or where they
    are so many that its reference takes long."""

    def grown(array: np.ndarray) -> np.ndarray:
        for axis, size in enumerate(np.shape(array)):
            array = np.take(array, np.arange(new(size)) % size, axis) if new(size) != size else array
        return array

    other = Sample(tuple(map(grown, sample.inputs)), with_sizes(op, sample, new), sample.label)
    if sum(np.size(array) for array in other.inputs) > MOST_ELEMENTS:
        return None
    try:
        outputs(op, other)
    except (TypeInferenceError, ValueError, IndexError, ZeroDivisionError):
        return None
    return other


def outputs(op: Op, sample: Sample) -> list[tuple[np.ndarray, TensorType]]:
    """What the reference gives, with its type."""
    assert op.reference is not None
    attrs = op.check_attributes(sample.attributes)
    types = tensors_of(op.infer_type([type_of(array) for array in sample.inputs], attrs))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mean of nothing
        results = op.reference(*sample.inputs, **attrs)
    return list(zip(results if isinstance(results, tuple) else (results,), types, strict=True))


def compile_all(symbolic: bool, mcpu: str | None = None, names=CASES):
    functions = {name: lower(*CASES[name], symbolic) for name in names}
    known = {name: function for name, function in functions.items() if function is not None}
    return NativeCpuGenerator().generate(known, Target("cpu", mcpu=mcpu), {})


@pytest.fixture(scope="module")
def static_module():
    return compile_all(symbolic=False)


@pytest.fixture(scope="module")
def symbolic_module():
    return compile_all(symbolic=True)


@pytest.fixture(scope="module")
def narrow_module():
    return compile_all(symbolic=False, mcpu="x86-64-v3", names=FEW)


def check(call_kernel, module, name: str, symbolic: bool = False) -> None:
    op, sample = CASES[name]
    if name not in module.symbols():
        pytest.skip("the type rule needs known sizes here")
    sizes = {size for array in sample.inputs for size in np.shape(array) if size > 1}
    check_sample(call_kernel, module, name, op, sample, {f"n{size}": size for size in sizes} if symbolic else {})


def check_sample(
    call_kernel, module, name: str, op: Op, sample: Sample, symbols: dict[str, int], around: float = 1.0
) -> None:
    """around: what numbers are added up, for sums of many of them."""
    found = call_kernel(module, name, sample.inputs, symbols)
    for actual, (wanted, type_) in zip(found, outputs(op, sample), strict=True):
        assert actual.shape == np.shape(wanted)
        rtol, atol = TOLERANCES.get(type_.dtype, (0, 0))
        if rtol:
            actual, wanted = actual.astype(np.float64), np.asarray(wanted).astype(np.float64)
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol * around)


@pytest.mark.parametrize("name", CASES)
def test_static(call_kernel, static_module, name):
    check(call_kernel, static_module, name)


@pytest.mark.parametrize("name", CASES)
def test_symbolic(call_kernel, symbolic_module, name):
    check(call_kernel, symbolic_module, name, symbolic=True)


@pytest.mark.parametrize("name", FEW)
def test_without_masks_and_wide_vectors(call_kernel, narrow_module, name):
    check(call_kernel, narrow_module, name)


# --- other sizes ------------------------------------------------------------------------------------------------------
# Starts of sequences mean nothing when they are repeated, and neither does a permutation.
ASCENDING = ("nn.attention_var_len", "invert_permutation")


def largest(op: Op, sample: Sample) -> float:
    """The largest finite number that the reference gives, at least 1."""
    results = [np.asarray(array).astype(np.float64) for array, _ in outputs(op, sample)]
    return max([1.0, *(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in results)])


def growths(sample: Sample) -> dict[str, Callable[[int], int]]:
    """Other sizes to try: all of them odd, and those of rows longer than a vector."""
    rows = {np.shape(array)[-1] for array in sample.inputs if np.ndim(array)}
    return {
        "odd": lambda size: 2 * size + 1 if size > 1 else size,
        "past a vector": lambda size: size + 16 if size > 1 and size in rows else size,
    }


def test_symbolic_kernels_at_other_sizes(call_kernel, symbolic_module):
    """One kernel serves every size: compiled once, run at sizes that no sample has."""
    checked: Counter[str] = Counter()
    failures: list[str] = []
    for name in symbolic_module.symbols():
        op, sample = CASES[name]
        if op.name in ASCENDING:
            continue
        for growth, new in growths(sample).items():
            other = resized(op, sample, new)
            if other is None:
                continue
            symbols = {f"n{size}": new(size) for array in sample.inputs for size in np.shape(array)}
            try:
                check_sample(call_kernel, symbolic_module, name, op, other, symbols, largest(op, other))
            except AssertionError as error:
                failures.append(f"{name}, {growth}: {[np.shape(x) for x in other.inputs]}: {error}")
            checked[op.name] += 1
    assert not failures, "\n".join(failures)
    assert checked.total() > len(symbolic_module.symbols())
    assert set(checked) > {"matmul", "nn.conv2d", "nn.softmax", "nn.layer_norm", "concat", "take", "cumsum", "pad"}


def test_empty_operands(call_kernel):
    """Each size of a sample in turn becomes 0, where the operator has a meaning then."""
    empty: dict[str, tuple[Op, Sample]] = {}
    for name in FEW:
        op, sample = CASES[name]
        for size in sorted({size for array in sample.inputs for size in np.shape(array)} - {0}):
            other = resized(op, sample, lambda s, size=size: 0 if s == size else s)
            if other is not None:
                empty[f"{name}_without_{size}"] = (op, other)
    functions = {name: lower(*case, symbolic=False) for name, case in empty.items()}
    module = NativeCpuGenerator().generate(functions, Target("cpu"), {})
    failures: list[str] = []
    for name, (op, sample) in empty.items():
        try:
            check_sample(call_kernel, module, name, op, sample, {})
        except AssertionError as error:
            failures.append(f"{name}: {[np.shape(x) for x in sample.inputs]}, {sample.attributes}: {error}")
    assert not failures, "\n".join(failures)
    assert len(empty) > len(FEW)
