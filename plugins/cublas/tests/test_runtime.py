"""The runtime half: what is made when, what is saved, what moves, and what is said where it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ArtifactCorruptedError, ArtifactVersionError, DeviceError, ExecutionError, OptionError
from kernelyard.runtime.abi.module import BindContext, BoundTensor
from kernelyard.runtime.device.driver import DeviceMemory, DeviceWorkspace
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of, module_of, values
from kernelyard_cublas.emulation import SECONDS, WORKSPACE_STEP
from kernelyard_cublas.lt_api import LtError
from kernelyard_cublas.runtime import CublasRuntime, load

from .conftest import compiled, runtime_of

N = symbol("n")
LAYERS = [values((16, 16), "float32", seed) for seed in range(2)]


def layers(b, x):
    for weight in LAYERS:
        x = b.op("nn.relu", b.op("add", b.op("matmul", x, weight), weight[0]))
    return x


@pytest.fixture
def module():
    return module_of(layers, ((N, 16), "float32"))


def counted(api, names=("create", "set", "heuristics")):
    return {name: api.calls[name] for name in names}


def chosen(exe):
    """What a module keeps of its algorithms."""
    return json.loads(runtime_of(exe).save_to_bytes())["algorithms"]


# --- what is made when ------------------------------------------------------------------------------------------------
def test_a_call_makes_nothing(module, products):
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index))
    x = values((4, 16), "float32")
    machine["main"](x)
    before = counted(products.api)
    for scale in (1, 2, 3):
        assert_allclose(machine["main"](scale * x), evaluate(module, [scale * x])[0])
    assert counted(products.api) == before


def test_algorithms_are_chosen_once_for_each_shape(module, products):
    exe = compiled(module)
    start = products.api.calls["heuristics"]
    for rows, wanted in ((4, 1), (4, 1), (5, 2), (4, 2)):
        machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))  # binds anew
        machine["main"](values((rows, 16), "float32"))
        # Both layers have the same shape: one of them asks.
        assert products.api.calls["heuristics"] - start == wanted
    assert len(chosen(exe)) == 2


def test_algorithms_are_saved_with_the_library_and_the_device(module, products, tmp_path):
    exe = compiled(module)
    assert chosen(exe) == []
    ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](values((4, 16), "float32"))
    (entry,) = chosen(exe)
    assert (entry["device"], entry["library"], entry["tuned"]) == ("emulator", products.api.version, False)
    exe.save(tmp_path / "layers.kyar")
    again = ky.load(tmp_path / "layers.kyar")
    assert runtime_of(again).save_to_bytes() == runtime_of(exe).save_to_bytes()
    start = products.api.calls["heuristics"]
    x = values((4, 16), "float32")
    assert_allclose(ky.VirtualMachine(again, ky.cuda(products.emulator.index))["main"](x), evaluate(module, [x])[0])
    assert products.api.calls["heuristics"] == start


@pytest.mark.parametrize("field", ["library", "device", "problem", "algorithm"])
def test_algorithms_for_something_else_are_not_used(field, module, products):
    exe = compiled(module)
    ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](values((4, 16), "float32"))
    runtime = runtime_of(exe)
    blob = json.loads(runtime.save_to_bytes())
    (entry,) = blob["algorithms"]
    entry[field] = {"library": 1, "device": "sm_90", "problem": "{}", "algorithm": "00" * 64}[field]
    other = load(json.dumps(blob).encode(), runtime.constants())
    start = products.api.calls["heuristics"]
    bind(other, products.emulator, rows=4)
    assert products.api.calls["heuristics"] == start + 1


def test_algorithms_are_measured_where_that_is_asked_for(module, products):
    exe = compiled(module, tune=True)
    start = products.api.calls["seconds"]
    x = values((4, 16), "float32")
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    for _ in range(2):
        assert_allclose(machine["main"](x), evaluate(module, [x])[0])
    assert products.api.calls["seconds"] - start == len(SECONDS)
    (entry,) = chosen(exe)
    best = SECONDS.index(min(SECONDS))
    assert (entry["tuned"], entry["workspace"]) == (True, best * WORKSPACE_STEP)
    assert bytes.fromhex(entry["algorithm"])[0] == best


def test_what_was_trusted_is_measured_later(module, products):
    exe = compiled(module)
    ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](values((4, 16), "float32"))
    tuned = compiled(module, tune=True)
    blob = json.loads(runtime_of(tuned).save_to_bytes())
    blob["algorithms"] = chosen(exe)
    other = load(json.dumps(blob).encode(), runtime_of(tuned).constants())
    start = products.api.calls["seconds"]
    bind(other, products.emulator, rows=4)
    assert products.api.calls["seconds"] - start == len(SECONDS)
    assert [entry["tuned"] for entry in json.loads(other.save_to_bytes())["algorithms"]] == [True]


def test_an_algorithm_that_fails_is_not_chosen(module, products, monkeypatch):
    best = SECONDS.index(min(SECONDS))
    run = type(products.api).run

    def failing(api, call):
        if call.heuristic.algorithm[0] == best:
            raise LtError("cublasLtMatmul", 15)
        run(api, call)

    monkeypatch.setattr(type(products.api), "run", failing)
    exe = compiled(module, tune=True)
    x = values((4, 16), "float32")
    assert_allclose(ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](x), evaluate(module, [x])[0])
    (entry,) = chosen(exe)
    second = sorted(SECONDS)[1]
    assert bytes.fromhex(entry["algorithm"])[0] == SECONDS.index(second)


def test_without_an_algorithm_the_error_says_how_to_go_on(module, products, monkeypatch):
    monkeypatch.setattr(type(products.api), "heuristics", lambda *args: [])
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index))
    with pytest.raises(ExecutionError, match="no algorithm") as caught:
        machine["main"](values((4, 16), "float32"))
    assert "exclude_patterns" in str(caught.value.hint)


def test_options_are_checked(module):
    for name in ("tune", "tf32", "approximate_gelu"):
        with pytest.raises(OptionError):
            compiled(module, **{name: "yes"})
    assert "compute=tf32" in runtime_of(compiled(module, tf32=True)).inspect()
    assert "compute=default" in runtime_of(compiled(module)).inspect()


def test_tf32_reaches_the_library(products):
    weight = np.ones((1, 1), np.float32)
    module = module_of(lambda b, x: b.op("matmul", x, weight), ((4, 1), "float32"))
    x = np.full((4, 1), 1 + 2**-12, np.float32)
    found = [
        ky.VirtualMachine(compiled(module, tf32=tf32), ky.cuda(products.emulator.index))["main"](x).numpy()[0, 0]
        for tf32 in (False, True)
    ]
    assert found == [x[0, 0], 1]


# --- memory -----------------------------------------------------------------------------------------------------------
class Placed:
    """A bound call, and the memory that it works on."""

    def __init__(self, module: CublasRuntime, driver, symbol_, feeds, sizes):
        signature = module.signature(symbol_)
        shapes = [spec.evaluate(sizes) for spec in signature.tensors]
        self.driver = driver
        self.arrays = [np.full(shape, 0, spec.dtype) for shape, spec in zip(shapes, signature.tensors, strict=True)]
        for array, feed in zip(self.arrays, feeds, strict=False):
            array[...] = feed
        self.held = [self.place(array) for array in self.arrays]
        args = [
            BoundTensor(held.address, array.shape, spec.dtype)
            for held, array, spec in zip(self.held, self.arrays, signature.tensors, strict=True)
        ]
        self.call = module.bind(symbol_, args, sizes, BindContext(1, DeviceWorkspace(driver), driver))

    def place(self, array):
        held = DeviceMemory(self.driver, array.nbytes)
        self.driver.upload(held.address, array)
        return held

    def run(self, held=None):
        for step in self.call.steps:
            step()
        result = np.empty_like(self.arrays[-1])
        self.driver.download((held or self.held[-1]).address, result)
        return result


def bind(module, driver, rows, feeds=()):
    return Placed(module, driver, module.symbols()[0], feeds, {"n": rows})


def test_arguments_may_move(products):
    """Also one that stands in two places, and a bias, which the descriptor names."""

    def build(b, x, bias):
        return b.op("add", b.op("add", b.op("matmul", x, x), bias), x)

    module = module_of(build, ((16, 16), "float32"), ((16,), "float32"))
    exe = compiled(module)
    feeds = feeds_of(module)
    runtime = runtime_of(exe)
    placed = Placed(runtime, products.emulator, runtime.symbols()[0], feeds, {})
    (wanted,) = evaluate(module, feeds)
    assert_allclose(placed.run(), wanted)
    others = [array * 2 for array in feeds]
    moved = [placed.place(array) for array in [*others, np.zeros((16, 16), np.float32)]]
    before = counted(products.api, ("create", "heuristics"))
    assert sorted(placed.call.rebind) == [0, 1, 2]
    for number, held in enumerate(moved):
        placed.call.rebind[number](held.address)
    assert_allclose(placed.run(moved[-1]), evaluate(module, others)[0])
    assert counted(products.api, ("create", "heuristics")) == before


def test_many_threads_share_a_machine(module, products):
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index), contexts=3)
    feeds = [values((rows, 16), "float32", rows) for rows in (1, 4, 2, 4, 3, 1) * 2]
    with ThreadPoolExecutor(4) as pool:
        for x, found in zip(feeds, pool.map(lambda x: machine["main"](x).numpy(), feeds), strict=True):
            assert_allclose(found, evaluate(module, [x])[0])


def test_descriptors_go_with_the_machine(module, products):
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index))
    start = products.api.live
    machine["main"](values((4, 16), "float32"))
    assert products.api.live > start
    del machine
    import gc

    gc.collect()
    assert products.api.live <= start


def test_products_do_not_run_in_host_memory(module):
    exe = compiled(module)
    runtime = runtime_of(exe)
    function = runtime.get_function(runtime.symbols()[0])
    tensors = [
        np.zeros(spec.evaluate({"n": 2}), np.float32) for spec in runtime.signature(runtime.symbols()[0]).tensors
    ]
    with pytest.raises(DeviceError, match="host memory"):
        function(*tensors)


def test_float8_on_an_older_gpu(products):
    weight = values((16, 32), "float8_e4m3fn")

    def build(b, x):
        x, w = (b.op("astype", each, dtype="float16") for each in (x, b.op("permute_dims", weight, axes=(1, 0))))
        return b.op("matmul", x, w)

    exe = compiled(module_of(build, ((4, 32), "float8_e4m3fn")))
    old = type(products.emulator).__new__(type(products.emulator))
    old.__dict__.update(vars(products.emulator))
    old.capability = (8, 0)
    runtime = runtime_of(exe)
    with pytest.raises(DeviceError, match="no float8 matmul"):
        Placed(runtime, old, runtime.symbols()[0], (), {})


# --- artifacts --------------------------------------------------------------------------------------------------------
RERUN = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
np.save(sys.argv[3], ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](np.load(sys.argv[2])).numpy())
parts = {name.split(".")[1] for name in sys.modules if name.startswith("kernelyard.")}
assert not parts & {"ir", "ops", "tir", "patterns", "transform", "plugins", "placement", "driver", "cli"}, parts
assert not {"kernelyard_cublas.backend", "kernelyard_cublas.checks", "kernelyard_cublas.patterns"} & set(sys.modules)
"""


def test_saved_programs_run_in_another_process_without_the_compiler(module, products, tmp_path):
    exe = compiled(module)
    exe.save(tmp_path / "layers.kyar")
    x = values((3, 16), "float32")
    np.save(tmp_path / "x.npy", x)
    paths = [str(tmp_path / name) for name in ("layers.kyar", "x.npy", "y.npy")]
    assert products.emulator.is_emulator
    subprocess.run([sys.executable, "-c", RERUN, *paths], check=True)
    assert_allclose(np.load(paths[2]), evaluate(module, [x])[0])


def test_equal_programs_give_equal_bytes(module):
    first, second = (runtime_of(compiled(module)).save_to_bytes() for _ in "ab")
    assert first == second


def test_damaged_modules_are_refused(module, products):
    exe = compiled(module)
    ky.VirtualMachine(exe, ky.cuda(products.emulator.index))["main"](values((4, 16), "float32"))
    runtime = runtime_of(exe)
    good = runtime.save_to_bytes().decode()
    changes = {
        '"op":"matmul"': '"op":"gemm"',
        '"role":"lhs"': '"role":"rhs"',
        '"role":"bias"': '"role":"biases"',
        '"activation":"relu"': '"activation":"prelu"',
        '"alpha":1.0': '"alpha":"1"',
        '"transpose_rhs":false': '"transpose_rhs":0',
        '"compute":"default"': '"compute":"fast"',
        '"tune":false': '"tuned":false',
        '"outputs":[[3,0]]': '"outputs":[[2,0]]',
        '"tuned":false,"workspace":0': '"tuned":false,"workspace":99999999999',
        '"algorithm":"00': '"algorithm":"zz',
        '"algorithms":[': '"algorithm":[',
    }
    for before, after in changes.items():
        assert before in good, before
        with pytest.raises(ArtifactCorruptedError):
            load(good.replace(before, after).encode(), runtime.constants())
    for data in (b"", b"{}", b"[]", good[:-3].encode()):
        with pytest.raises(ArtifactCorruptedError):
            load(data, runtime.constants())
    with pytest.raises(ArtifactVersionError):
        load(good.replace('"schema":1', '"schema":2').encode(), runtime.constants())
    with pytest.raises(ArtifactCorruptedError):
        load(good.encode(), {})


def test_operands_that_do_not_go_together_are_refused_before_they_are_read(products):
    """A file that says that an operand is stored transposed, which it is not."""
    exe = compiled(module_of(lambda b, x, w: b.op("matmul", x, w), ((4, 8), "float32"), ((8, 6), "float32")))
    text = runtime_of(exe).save_to_bytes().decode()
    changed = load(text.replace('"transpose_rhs":false', '"transpose_rhs":true').encode(), {})
    with pytest.raises(ArtifactCorruptedError, match="sizes of a matmul"):
        Placed(changed, products.emulator, changed.symbols()[0], (), {})


def test_what_the_module_needs_and_shows():
    exe = compiled(module_of(layers, ((N, 16), "float32")))
    runtime = runtime_of(exe)
    assert "cublas" in runtime.needs.lower()
    assert "activation=relu" in runtime.inspect()
    assert runtime.is_capturable
