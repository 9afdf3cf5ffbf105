"""Every legalized op on its own samples, run on the emulator against its NumPy reference: static and symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, Sample, TensorType, all_ops
from kernelyard.ir.types import tensors_of
from kernelyard.runtime.artifact import elf
from kernelyard.tir import PrimFunc
from kernelyard_native_cuda.drivers import emulator as emulator_driver
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import compiler_is_here
from kernelyard_native_cuda.schedule.machine import machine_of
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import assert_close, generate, run_on

# What every sample runs with: accesses of tensors recorded; then blocks the last first, and shuffled.
CHECKS = (Checks(tensors=True), Checks(order=1), Checks(order=7))

CASES = {
    f"{op.name}.{number}".replace(".", "_"): (op, sample)
    for op in all_ops()
    if legalize.has_rule(op.name)
    for number, sample in enumerate(op.samples())
}


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(np.shape(array), dtypes.from_numpy(np.asarray(array).dtype))


def symbol_of(size: int) -> dims.Dim:
    return dims.symbol(f"n{size}") if size > 1 else size


def lower(op: Op, types: list[TensorType], attributes: Mapping[str, Any]) -> PrimFunc:
    attrs = op.check_attributes(attributes)
    return legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs))


def lower_static(op: Op, sample: Sample) -> PrimFunc:
    return lower(op, [type_of(array) for array in sample.inputs], sample.attributes)


def lower_symbolic(op: Op, sample: Sample) -> PrimFunc | None:
    """With a symbol for every size above 1, in attributes too; None where the type rule cannot do without known sizes."""
    own = {size for array in sample.inputs for size in np.shape(array)}
    attributes = dict(sample.attributes)
    for name, attribute in op.attributes.items():
        value = attributes.get(name)
        if value is not None and attribute.kind == "dim":
            attributes[name] = symbol_of(value) if value in own else value
        if value is not None and attribute.kind == "dims":
            attributes[name] = tuple(symbol_of(size) if size in own else size for size in value)
    types = [TensorType(tuple(map(symbol_of, np.shape(a))), type_of(a).dtype) for a in sample.inputs]
    for each in (attributes, sample.attributes):
        with suppress(TypeInferenceError):
            return lower(op, types, each)
    return None


@pytest.fixture(scope="module", autouse=True)
def _compiled_quickly():
    """Kernels of samples run for microseconds; to optimize all of them takes a minute."""
    flags = tuple("-O0" if flag == "-O1" else flag for flag in emulator_driver.FLAGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator_driver, "FLAGS", flags)
        yield


@pytest.fixture(scope="module")
def static_module(emulator):
    return generate({name: lower_static(*case) for name, case in CASES.items()})


@pytest.fixture(scope="module")
def symbolic_module(emulator):
    lowered = {name: lower_symbolic(*case) for name, case in CASES.items()}
    return generate({name: function for name, function in lowered.items() if function is not None})


def check_sample(driver, module, name: str, symbols: Mapping[str, int]) -> list[np.ndarray]:
    """The results of a sample, which are the reference's."""
    op, sample = CASES[name]
    assert op.reference is not None
    attrs = op.check_attributes(sample.attributes)
    types = tensors_of(op.infer_type([type_of(array) for array in sample.inputs], attrs))
    with np.errstate(all="ignore"):
        results = op.reference(*sample.inputs, **attrs)
    found = run_on(driver, module, name, sample.inputs, symbols)
    for actual, wanted, type_ in zip(found, results if isinstance(results, tuple) else (results,), types, strict=True):
        assert_close(actual, wanted, type_.dtype)
    return found


def check_sample_in_all_orders(emulator, module, name: str, symbols: Mapping[str, int]) -> None:
    """See `check_sample`: without a race on tensors, and to the bit the same in whichever order blocks run."""
    found: list[list[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        for checks in CHECKS:
            patch.setattr(emulator, "checks", checks)
            found.append([array.tobytes() for array in check_sample(emulator, module, name, symbols)])
    assert found == [found[0]] * len(CHECKS)


def test_there_are_enough_cases():
    assert len(CASES) >= 300


@pytest.mark.parametrize("name", CASES)
def test_static(emulator, static_module, name):
    check_sample_in_all_orders(emulator, static_module, name, {})


@pytest.mark.parametrize("name", CASES)
def test_symbolic(emulator, symbolic_module, name):
    if name not in symbolic_module.symbols():
        pytest.skip("the type rule needs known sizes here")
    sizes = {size for array in CASES[name][1].inputs for size in np.shape(array) if size > 1}
    check_sample_in_all_orders(emulator, symbolic_module, name, {f"n{size}": size for size in sizes})


def texts(function: PrimFunc, arch: str) -> list[str]:
    """The kernels of a function, as they are for an architecture."""
    return [kernel.text for kernel in schedule(function, "kernel", machine_of([arch], allows_wgmma=True)).kernels]


@pytest.mark.slow
@pytest.mark.usefixtures("cubins_compiled_quickly")
@pytest.mark.parametrize(("arch", "before"), [("sm_80", None), ("sm_90", "sm_80")])
def test_cubins(arch, before):
    """The text that the emulator runs compiles for GPUs: of the first two samples of every op, what is new in a GPU's."""
    if not compiler_is_here():
        pytest.skip("neither nvcc nor NVRTC is installed")
    few = {name: case for name, case in CASES.items() if name.rsplit("_", 1)[1] in ("0", "1")}
    lowered = {name: lower_symbolic(*case) or lower_static(*case) for name, case in few.items()}
    new = {name: f for name, f in lowered.items() if before is None or texts(f, arch) != texts(f, before)}
    assert new
    module = generate(new, arch)
    image = np.frombuffer(module.image.cubins[arch], np.uint8)
    assert [kernel for kernel in module.image.kernels if elf.find_section(image, f".text.{kernel}") is None] == []
