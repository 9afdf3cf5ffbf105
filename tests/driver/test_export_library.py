"""export_library: one shared library that `kernelyard.load` loads and that C programs run without Python."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from c_library import Model

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import ArtifactCorruptedError, ArtifactError, LibraryWarning, ToolchainError
from kernelyard.ir import Constant, FunctionBuilder, IRModule, Tuple
from kernelyard.runtime.export import get_include
from kernelyard.runtime.jit.c_compiler import COMPILERS, find_compiler

pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C compiler is installed here")
EXAMPLE = Path(__file__).parents[2] / "examples" / "c_program"
N, M = dims.symbol("n"), dims.symbol("m")
rng = np.random.default_rng(3)


def constant(*shape):
    return Constant((rng.standard_normal(shape) / 4).astype(np.float32))


def module_of(build, *shapes, dtype="float32"):
    b = FunctionBuilder()
    result = build(b, *(b.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)))
    return IRModule({"main": b.function(Tuple(result) if isinstance(result, tuple) else result)})


def exported(tmp_path, module, standalone: bool | None = True, **options):
    exe = ky.compile(module, **{"backends": [], **options})
    exe.export_library(tmp_path / "m.so", standalone)
    return exe, tmp_path / "m.so"


def feed(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def attention(b, x):
    scores = b.op("matmul", x, b.op("permute_dims", x, axes=(1, 0)))
    return b.op("matmul", b.op("nn.softmax", scores, axis=1), x)


CASES = {
    "static": (lambda b, x: b.op("tanh", b.op("matmul", x, constant(6, 5))), [(4, 6)], [(4, 6)]),
    "symbolic": (attention, [(N, 8)], [(5, 8)]),
    "two symbols": (lambda b, x, y: b.op("matmul", x, y), [(N, 7), (7, M)], [(3, 7), (7, 11)]),
    "expressions": (
        lambda b, x: b.op("nn.max_pool2d", x, pool_size=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), dilation=(1, 1), ceil_mode=False),
        [(1, 2, N, M)],
        [(1, 2, 9, 12)],
    ),
    "views and duplicates": (
        lambda b, x: (b.op("reshape", x, shape=(N * 6,)), b.op("exp", x), x, b.op("reshape", b.op("exp", x), shape=(6, N))),
        [(N, 6)],
        [(4, 6)],
    ),
    "constants as results": (lambda b, x: (constant(3), b.op("add", x, constant(3))), [(2, 3)], [(2, 3)]),
    "many stages": (
        lambda b, x: b.op("nn.layer_norm", b.op("add", attention(b, x), x), constant(16), constant(16), axes=(1,), epsilon=1e-5),
        [(N, 16)],
        [(33, 16)],
    ),
    "the first of long rows": (
        lambda b, x: b.get(b.op("topk", b.op("cumsum", x, axis=1), k=5, axis=1), 0), [(N, M)], [(3, 900)],
    ),
    "whole columns": (lambda b, x: b.get(b.op("topk", x, k=N, axis=0, largest=False), 0), [(N, 3)], [(300, 3)]),
    "steps": (
        lambda b, x, h: b.get(b.op("nn.gru", x, constant(9, 18), constant(9, 9), constant(9), h), 0),
        [(N, 2, 27), (2, 9)],
        [(7, 2, 27), (2, 9)],
    ),
    "steps of both directions": (
        lambda b, x, h: tuple(
            b.get(b.op("nn.rnn", x, constant(9, 9), h, reverse=reverse), 0) for reverse in (False, True)
        ),
        [(N, 2, 9), (2, 9)],
        [(7, 2, 9), (2, 9)],
    ),
    "rank 0": (lambda b, x: b.op("sum", x, axes=(), keepdims=False), [(3, 4)], [(3, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_c_and_python_give_equal_results(tmp_path, case):
    build, types, shapes = CASES[case]
    exe, path = exported(tmp_path, module_of(build, *types))
    model = Model(path, threads=2)
    exe.threads = 2
    assert model.model, model.error
    for _ in range(2):
        inputs = [feed(*shape) for shape in shapes]
        expected = exe(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for found, right in zip(model.run(inputs, ["float32"] * len(expected)), expected, strict=True):
            np.testing.assert_array_equal(found, right.numpy())
    model.c.ky_destroy(model.model)


def test_sizes_may_change_from_run_to_run(tmp_path):
    exe, path = exported(tmp_path, module_of(attention, (N, 8)))
    model = Model(path)
    for rows in (1, 40, 3, 3, 200, 2):
        x = feed(rows, 8)
        np.testing.assert_array_equal(model.run([x])[0], exe(x).numpy())


def test_models_run_at_the_same_time_and_one_model_takes_turns(tmp_path):
    exe, path = exported(tmp_path, module_of(attention, (N, 8)))
    models = [Model(path), Model(path)]
    inputs = [feed(rows, 8) for rows in (3, 17, 40, 64)]
    expected = [exe(x).numpy() for x in inputs]
    wrong = []

    def work(number):
        for _ in range(20):
            (found,) = models[number % 2].run([inputs[number]])
            if not np.array_equal(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_library_describes_the_model(tmp_path):
    _, path = exported(tmp_path, module_of(lambda b, x: b.op("argmax", x, axis=1, keepdims=False), (N, 8)))
    c = Model(path).c
    assert (c.ky_num_functions(), c.ky_function_name(0), c.ky_function_name(1)) == (1, b"main", None)
    assert c.ky_function_signature(0) == b"main(x0: (n, 8) float32) -> (output_0: (n,) int64)"
    assert (c.ky_num_inputs(0), c.ky_num_outputs(0), c.ky_num_inputs(1)) == (1, 1, -1)
    assert (c.ky_input_name(0, 0), c.ky_output_name(0, 0), c.ky_input_name(0, 1)) == (b"x0", b"output_0", None)
    assert [c.ky_input_dim(0, 0, axis) for axis in (0, 1, 2)] == [-1, 8, -1]
    assert (c.ky_input_rank(0, 0), c.ky_output_rank(0, 0), c.ky_output_rank(0, -1)) == (2, 1, -1)
    kind = c.ky_output_dtype(0, 0)
    assert (kind.code, kind.bits, kind.lanes) == (0, 64, 1)


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [("bfloat16", 4, 16), ("float16", 2, 16), ("uint8", 1, 8), ("bool", 6, 8), ("int64", 0, 64), ("float64", 2, 64)],
)
def test_dtypes_are_those_of_dlpack(tmp_path, dtype, code, bits):
    _, path = exported(tmp_path, module_of(lambda b, x: b.op("reshape", x, shape=(2, N)), (N, 2), dtype=dtype))
    kind = Model(path).c.ky_output_dtype(0, 0)
    assert (kind.code, kind.bits, kind.lanes) == (code, bits, 1)


def test_wrong_inputs_are_refused_with_a_message(tmp_path):
    _, path = exported(tmp_path, module_of(lambda b, x, y: b.op("add", x, y), (N, 8), (N, 8)))
    model = Model(path)
    good, out = [feed(3, 8), feed(3, 8)], [feed(3, 8)]
    assert "x1: axis 0 has 4 elements, expected n = 3" in model.refuses([feed(3, 8), feed(4, 8)], out)
    assert "x1: axis 1 has 7 elements, expected 8" in model.refuses([feed(3, 8), feed(3, 7)], out)
    assert "x0: rank 1, expected 2" in model.refuses([feed(3), feed(3, 8)], out)
    assert "x0: dtype float64 with 1 lanes, expected float32" in model.refuses([np.zeros((3, 8)), feed(3, 8)], out)
    assert "x0: axis 0 is empty" in model.refuses([feed(0, 8), feed(0, 8)], out)
    assert "not contiguous" in model.refuses([np.asfortranarray(feed(3, 8)), feed(3, 8)], out)
    assert "output_0: axis 0 has 2 elements, expected 3" in model.refuses(good, [feed(2, 8)])
    np.testing.assert_array_equal(model.run(good)[0], good[0] + good[1])


def test_unaligned_memory_of_the_caller_is_copied(tmp_path):
    exe, path = exported(tmp_path, module_of(lambda b, x: b.op("exp", x), (N,)))
    model = Model(path)
    buffer = np.zeros(32, np.float32)
    x, y = buffer[1:8], np.zeros(16, np.float32)[1:8]
    x[:] = feed(7)
    assert model.status([x], [y]) == 0, model.error
    np.testing.assert_array_equal(y, exe(x).numpy())


def test_python_loads_the_library_like_an_artifact(tmp_path):
    exe, path = exported(tmp_path, module_of(attention, (N, 8)))
    loaded = ky.load(path)
    x = feed(6, 8)
    np.testing.assert_array_equal(loaded(x).numpy(), exe(x).numpy())
    assert (loaded.inputs, loaded.outputs) == (exe.inputs, exe.outputs)
    assert str(loaded.report) == str(exe.report)


def test_the_same_executable_gives_the_same_library(tmp_path):
    exe, path = exported(tmp_path, module_of(attention, (N, 8)))
    exe.export_library(tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == path.read_bytes()


def test_a_damaged_library_is_refused(tmp_path):
    _, path = exported(tmp_path, module_of(lambda b, x: b.op("add", x, constant(300)), (N, 300)))
    data = bytearray(path.read_bytes())
    start = data.index(b"KYAR\r\n")
    data[start + 500] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactCorruptedError):
        ky.load(path)


# --- libraries of backends --------------------------------------------------------------------------------------------
def test_what_needs_python_says_so_in_c(tmp_path):
    pytest.importorskip("kernelyard_dnnl")
    module = module_of(lambda b, x: b.op("nn.relu", b.op("matmul", x, constant(6, 5))), (4, 6))
    exe, path = exported(tmp_path, module, standalone=False, backends=["dnnl"])
    model = Model(path)
    assert not model.model
    assert "is run by 'dnnl', which needs Python" in model.error
    assert '{"dnnl": {"codegen": "c"}}' in model.error
    x = feed(4, 6)
    np.testing.assert_array_equal(ky.load(path)(x).numpy(), exe(x).numpy())
    with pytest.raises(ArtifactError, match="without Python") as info:
        exe.export_library(tmp_path / "other.so", standalone=True)
    assert "'dnnl'" in info.value.found
    assert info.value.where == "entry function 'main'"
    assert not (tmp_path / "other.so").exists()
    with pytest.warns(LibraryWarning, match="main: the step .* is run by 'dnnl', which needs Python"):
        exe.export_library(tmp_path / "other.so")


def test_c_source_of_a_backend_is_in_the_library(tmp_path, monkeypatch):
    """Weights are delivered, packed once, and nothing is compiled any more when Python loads the library."""
    pytest.importorskip("kernelyard_dnnl")
    window = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}

    def build(b, x):
        y = b.op("nn.relu", b.op("nn.conv2d", x, constant(16, 8, 3, 3), **window))
        y = b.op("cumsum", y, axis=1, exclusive=False, reverse=False)  # which oneDNN does not have
        return b.op("nn.conv2d", y, constant(4, 16, 3, 3), **window)

    exe, path = exported(
        tmp_path, module_of(build, (1, 8, 10, 10)), backends=["dnnl"], options={"dnnl": {"codegen": "c"}}
    )
    x = feed(1, 8, 10, 10)
    expected = exe(x).numpy()
    np.testing.assert_array_equal(Model(path).run([x])[0], expected)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    np.testing.assert_array_equal(ky.load(path)(x).numpy(), expected)


def test_no_compiler_is_an_error_with_the_install_line(tmp_path, monkeypatch):
    exe = ky.compile(module_of(lambda b, x: b.op("exp", x), (N,)), backends=[])
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError) as info:
        exe.export_library(tmp_path / "m.so")
    assert "apt install gcc" in info.value.hint
    assert list(tmp_path.iterdir()) == []


# --- constants --------------------------------------------------------------------------------------------------------
def test_regions_that_differ_in_constants_only_stay_two(tmp_path):
    """Guards against apache/tvm#19801; equal constants are stored once, in memory, in artifacts and in libraries."""
    pytest.importorskip("kernelyard_dnnl")
    first, second = constant(8, 8), constant(8, 8)

    def build(b, x):
        for weight in (first, second, first):
            x = b.op("cumsum", b.op("nn.relu", b.op("matmul", x, weight)), axis=1, exclusive=False, reverse=False)
        return x

    x = feed(4, 8)
    expected = x.astype(np.float64)
    for weight in (first, second, first):
        expected = np.cumsum(np.maximum(expected @ weight.data.astype(np.float64), 0), 1)
    module = module_of(build, (4, 8))
    for number, options in enumerate(({}, {"dnnl": {"codegen": "c"}})):
        exe = ky.compile(module, backends=["dnnl"], options=options)
        assert len(exe.report.regions) == 3
        assert {digest for digest, array in exe.constants.items() if array.shape == (8, 8)} == {
            first.digest,
            second.digest,
        }
        exe.save(tmp_path / f"{number}.kyar")
        exe.export_library(tmp_path / f"{number}.so", standalone=bool(options))
        for each in (exe, ky.load(tmp_path / f"{number}.kyar"), ky.load(tmp_path / f"{number}.so")):
            np.testing.assert_allclose(each(x).numpy(), expected, rtol=1e-4, atol=1e-4)
        data = (tmp_path / f"{number}.so").read_bytes()
        assert data.count(first.data.tobytes()) == data.count(second.data.tobytes()) == 1


# --- the example ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("c_program_demo", EXAMPLE / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_builds_and_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py"), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for function in ("main", "features"):
        assert f"{function}, 5 rows: the C program and Python agree" in done.stdout


def test_the_c_program_runs_where_python_is_not(tmp_path, demo):
    exe = ky.compile(demo.classifier(), backends=[])
    program = demo.build(exe, tmp_path)
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    assert "libmodel.so" in listed
    assert "python" not in listed
    image = feed(2, 784)
    image.tofile(tmp_path / "x.bin")
    files = [str(tmp_path / name) for name in ("x.bin", "y.bin")]
    subprocess.run([str(program), "main", "2", *files], check=True, env={"PATH": ""}, timeout=60)
    np.testing.assert_allclose(np.fromfile(files[1], np.float32).reshape(2, 10), exe(image).numpy(), rtol=1e-6)


def test_the_c_program_says_what_there_is(tmp_path, demo):
    program = demo.build(ky.compile(demo.classifier(), backends=[]), tmp_path)
    done = subprocess.run([str(program), "mian"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "main(image: (n, 784) float32) -> (output_0: (n, 10) float32)" in done.stderr
    assert "features(image: (n, 784) float32) -> (output_0: (n, 128) float32)" in done.stderr
    done = subprocess.run([str(program), "main", "-3", "/dev/zero", "/dev/null"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "ky_output_shape: image: axis 0 has -3 elements\n")


def test_the_header_is_c_and_can_be_read_by_cpp(tmp_path):
    source = tmp_path / "use.c"
    source.write_text(
        "#include <kernelyard.h>\nky_status ok = KY_OK;\nint32_t (*find)(const char*) = ky_find_function;\n"
    )
    command = [*find_compiler().command, "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{get_include()}"]
    subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "use.o")], check=True)
