"""What the emulator shows, on a GPU: convolutions, attention and norms, plans by heuristics, by measuring, and saved."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import BackendUnavailableError, DeviceError
from kernelyard.testing import evaluate
from kernelyard_cudnn import _native

from .conftest import compiled, feeds_of, module_of
from .test_agreement import attention, convolution, norm

pytestmark = pytest.mark.gpu
F16, F32 = "float16", "float32"
TOLERANCE = {F16: 2e-2, F32: 1e-3}


@pytest.fixture(scope="module")
def target() -> ky.Target:
    try:
        device = ky.cuda(0).open()
        _native.load()
    except (DeviceError, BackendUnavailableError) as error:
        pytest.skip(f"{error.found}; {error.hint}")
    return ky.Target("cuda", arch="sm_{}{}".format(*device.capability))


def check(exe: ky.Executable, module: Any, dtype: str, **sizes: int) -> None:
    feeds = feeds_of(module, **sizes)
    feeds = [np.array([3, 32], np.int32).reshape(2, 1, 1, 1) if feed.dtype == np.int32 else feed for feed in feeds]
    found = np.asarray(ky.VirtualMachine(exe, ky.cuda(0))["main"](*feeds).numpy()).astype(np.float64)
    wanted = evaluate(module, feeds)[0].astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * np.abs(wanted).max())


PROGRAMS = {
    "bias and relu, first": (F32, partial(convolution, dtype=F32, layout="first", stages=("bias", "nn.relu"))),
    "bias and relu, last": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias", "nn.relu"))),
    "residual, last": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias", "residual", "nn.relu"))),
    "gelu, last": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias", "nn.gelu"))),
    "grouped": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias",), groups=2)),
    "depthwise": (F32, partial(convolution, dtype=F32, layout="first", stages=(), groups=64)),
    "sequences": (F16, partial(convolution, dtype=F16, layout="first", stages=("bias", "nn.relu"), rank=1)),
    "volumes": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias",), rank=3, size=6)),
    "transposed": (F16, partial(convolution, dtype=F16, layout="last", stages=("bias",), transposed=True, stride=2)),
    "attention": (F16, attention),
    "causal": (F16, partial(attention, causal="top_left", shared=2)),
    "causal from the end": (F16, partial(attention, causal="bottom_right", rows=16)),
    "bias": (F16, partial(attention, bias=(2, 1, 1, 32))),
    "lengths": (F16, partial(attention, lengths=True)),
    "layer norm": (F16, partial(norm, op="nn.layer_norm", dtype=F16, shape=(4, 32, 768), axes=(2,))),
    "rms norm": (F32, partial(norm, op="nn.rms_norm", dtype=F32, shape=(3, 5, 17), axes=(1, 2))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(target: ky.Target, name: str) -> None:
    dtype, build = PROGRAMS[name]
    module = module_of(build)
    exe = compiled(module, target)
    assert {node.backend for node in exe.report.nodes} <= {"cudnn", "view"}, str(exe.report)
    check(exe, module, dtype)


def test_measured_plans(target: ky.Target) -> None:
    dtype, build = PROGRAMS["residual, last"]
    module = module_of(build)
    check(compiled(module, target, tune=True), module, dtype)


def test_plans_that_were_made_ahead(target: ky.Target, tmp_path: Any) -> None:
    """By the library that runs them; for other GPUs than those shipped they are made anew."""
    dtype, build = PROGRAMS["bias and relu, last"]
    module = module_of(build)
    compiled(module, target, plan_for=["a100", "h100", "h200"]).save(tmp_path / "planned.kyar")
    check(ky.load(tmp_path / "planned.kyar"), module, dtype)
