"""Products that the library may have no algorithm for: generated kernels run them where it has none."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import NoImplementationError, PerformanceWarning
from kernelyard.runtime.api import DeviceArray
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of, module_of, values

from .conftest import compiled, region_of

N = symbol("n")
LEAST_ROWS = 17  # with so many the library has an algorithm here
FP8 = "float8_e4m3fn"


def integers(b, x, w):
    return b.op("matmul", b.op("astype", x, dtype="int32"), b.op("astype", w, dtype="int32"))


def layers(b, x):
    """Two products with constant weights, one of them too large to be folded, and what is between and after them."""
    for width in (640, 32):
        weight = values((x.tensor_type.shape[-1], width), "int8", width)
        total = integers(b, x, weight)
        bounded = b.op("minimum", b.op("maximum", total, np.int32(-8)), np.int32(7))
        x = b.op("astype", bounded, dtype="int8")
    return b.op("astype", x, dtype="float32")


def floats(b, x):
    """A product of float8, and what follows it."""
    weight = np.ascontiguousarray(values((16, 32), FP8).T)
    wide = b.op("astype", x, dtype="float32")
    transposed = b.op("permute_dims", b.op("astype", weight, dtype="float32"), axes=(1, 0))
    return b.op("nn.relu", b.op("matmul", wide, transposed))


@pytest.fixture
def picky(products, monkeypatch):
    """A library that has algorithms for many rows alone; gives the calls of the product that it carried out."""
    kind = type(products.api)
    heuristics = kind.heuristics

    def few(api, matmul, layouts, preference, count):
        product = api._product(matmul, layouts)
        return heuristics(api, matmul, layouts, preference, count) if product.d.columns >= LEAST_ROWS else []

    monkeypatch.setattr(kind, "heuristics", few)
    return lambda: products.api.calls["matmul"]


def run_quietly(function, *feeds):
    """The results, and the warnings' texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*feeds)
    assert all(each.category is PerformanceWarning for each in caught), caught
    return result, [str(each.message) for each in caught]


PROGRAMS = {"int8": (layers, (N, 48)), FP8: (floats, (N, 16))}


@pytest.mark.parametrize("dtype", PROGRAMS)
def test_it_is_right_whether_the_library_refuses_or_not(dtype, products, picky):
    build, shape = PROGRAMS[dtype]
    module = module_of(build, (shape, dtype))
    exe = compiled(module)
    regions = [region for region in exe.report.regions if region.backend == "cublas"]
    assert all(region.fallback for region in regions), str(exe.report)
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    for rows, is_taken in ((LEAST_ROWS, True), (3, False), (LEAST_ROWS + 1, True), (3, False), (1, False)):
        feeds, before = feeds_of(module, n=rows), picky()
        for _ in range(3):  # the second time is captured, and replayed from then on
            result, texts = run_quietly(machine["main"], *feeds)
            assert_allclose(result, evaluate(module, feeds)[0], "float32")
            assert len(texts) in (0, len(regions))
        assert (picky() > before) == is_taken


def test_each_region_warns_once(products, picky):
    module = module_of(layers, ((N, 48), "int8"))
    exe = compiled(module)
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    _, texts = run_quietly(machine["main"], *feeds_of(module, n=2))
    for text, name in zip(sorted(texts), ("cublas_0", "cublas_1"), strict=True):
        kernels = ", ".join(step.symbol for step in exe.fallbacks[name].steps)
        assert text.startswith(f"cublas does not run {name}")
        assert text.endswith(f"cuBLASLt has no algorithm for a matmul, n = 2; these kernels run instead: {kernels}")
    other = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    for again in (machine, other):
        assert run_quietly(again["main"], *feeds_of(module, n=3))[1] == []


def test_feeds_may_move(products, picky):
    """They are read where they lie, by the kernels of the fallback, too: nothing is captured that reads elsewhere."""
    module = module_of(integers, ((N, 512), "int8"), ((512, 8), "int8"))
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index))
    for seed in (0, 1, 0, 1, 0, 1):
        feeds = [values(shape, "int8", seed + n) for n, shape in enumerate([(16, 512), (512, 8)])]
        placed = [DeviceArray.of(products.emulator, feed) for feed in feeds]
        result, _ = run_quietly(machine["main"], *placed)
        np.testing.assert_array_equal(result, evaluate(module, feeds)[0])


def test_profiles_show_the_kernels(products, picky):
    module = module_of(layers, ((N, 48), "int8"))
    exe = compiled(module)
    measure = lambda: exe.profile(feeds_of(module, n=2), calls=1, device=ky.cuda(products.emulator.index))  # noqa: E731
    found, _ = run_quietly(measure)
    ran = [step.symbol for step in found.steps]
    for fallback in exe.fallbacks.values():
        assert {step.symbol for step in fallback.steps} <= set(ran)
    assert not {"cublas_0", "cublas_1"} & set(ran)


FRESH = """
import sys
import numpy as np
import kernelyard as ky
from kernelyard.runtime.api import DeviceArray
from kernelyard_cublas.emulation import EmulatedLt
EmulatedLt.heuristics = lambda *args: []
exe = ky.load(sys.argv[1])
feed = np.load(sys.argv[2])
np.save(sys.argv[3], ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](feed).numpy())
assert not any(name.startswith("kernelyard.driver") for name in sys.modules)
"""


def test_a_saved_program_falls_back_in_another_process(products, tmp_path):
    assert products.emulator
    module = module_of(layers, ((N, 48), "int8"))
    exe = compiled(module)
    exe.save(tmp_path / "m.kyar")
    assert [region.fallback for region in ky.load(tmp_path / "m.kyar").report.regions] == [
        region.fallback for region in exe.report.regions
    ]
    feeds = feeds_of(module, n=5)
    np.save(tmp_path / "x.npy", feeds[0])
    paths = [str(tmp_path / name) for name in ("m.kyar", "x.npy", "y.npy")]
    done = subprocess.run([sys.executable, "-c", FRESH, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "PerformanceWarning: cublas does not run cublas_0" in done.stderr
    assert_allclose(np.load(tmp_path / "y.npy"), evaluate(module, feeds)[0])


def test_products_that_the_library_always_has_get_no_fallback(tmp_path, products, monkeypatch):
    module = module_of(lambda b, x: b.op("matmul", x, values((16, 16), "float32")), ((N, 16), "float32"))
    exe = compiled(module)
    assert region_of(exe).fallback == ()
    assert not exe.fallbacks
    exe.save(tmp_path / "m.kyar")
    assert b"fallback" not in (tmp_path / "m.kyar").read_bytes()
    monkeypatch.setattr(type(products.api), "heuristics", lambda *args: [])
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    with pytest.raises(NoImplementationError, match="no algorithm"):
        machine["main"](values((4, 16), "float32"))
