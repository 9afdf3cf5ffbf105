"""Every legalized op on its own samples against its NumPy reference: as a kernel, static and symbolic."""

from __future__ import annotations

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

# Other machines differ in lanes and masks, not in meaning: fewer samples tell.
FEW = [name for name in CASES if name.rsplit("_", 1)[1] in ("0", "1")]


def lower(op: Op, sample: Sample, symbolic: bool) -> PrimFunc | None:
    """The op's loop-level function; None where the type rule cannot do without known sizes."""
    operands = [
        TensorType(
            tuple(dims.symbol(f"n{size}") if symbolic and size > 1 else size for size in np.shape(array)),
            dtypes.from_numpy(np.asarray(array).dtype),
        )
        for array in sample.inputs
    ]
    attrs = op.check_attributes(sample.attributes)
    try:
        result = op.infer_type(operands, attrs)
    except TypeInferenceError:
        if symbolic:
            return None
        raise
    return legalize.legalize_call(op.name, operands, attrs, result)


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
    assert op.reference is not None
    attrs = op.check_attributes(sample.attributes)
    reference = op.reference(*sample.inputs, **attrs)
    expected = reference if isinstance(reference, tuple) else (reference,)
    sizes = {size for array in sample.inputs for size in np.shape(array) if size > 1}
    symbols = {f"n{size}": size for size in sizes} if symbolic else {}
    found = call_kernel(module, name, sample.inputs, symbols)
    operands = [TensorType(np.shape(a), dtypes.from_numpy(np.asarray(a).dtype)) for a in sample.inputs]
    types = tensors_of(op.infer_type(operands, attrs))
    for actual, wanted, type_ in zip(found, expected, types, strict=True):
        assert actual.shape == np.shape(wanted)
        rtol, atol = TOLERANCES.get(type_.dtype, (0, 0))
        if rtol:
            actual, wanted = actual.astype(np.float64), np.asarray(wanted).astype(np.float64)
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_static(call_kernel, static_module, name):
    check(call_kernel, static_module, name)


@pytest.mark.parametrize("name", CASES)
def test_symbolic(call_kernel, symbolic_module, name):
    check(call_kernel, symbolic_module, name, symbolic=True)


@pytest.mark.parametrize("name", FEW)
def test_without_masks_and_wide_vectors(call_kernel, narrow_module, name):
    check(call_kernel, narrow_module, name)
