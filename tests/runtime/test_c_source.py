"""C source modules: written by a small backend, compiled by the user's compiler, saved, loaded, refused when broken."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading

import numpy as np
import pytest

from kernelyard.codegen.c_source_codegen import CSourceCodegen
from kernelyard.errors import (
    ArtifactCorruptedError,
    BackendUnavailableError,
    CodegenError,
    ExecutionError,
    ToolchainError,
)
from kernelyard.runtime.abi.native_unit import NativeFunction, NativeUnit, SharedLibrary, c_name
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.jit import c_compiler
from kernelyard.runtime.modules import c_source
from kernelyard.runtime.modules.c_source import CSourceModule
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, c_compiler.COMPILERS)), reason="no C compiler is installed here"
)


class AcmeC(CSourceCodegen):
    """Two kernels: one is a loop, one calls the C library's erff."""

    preamble = """
float erff(float);
static void acme_scale(const float* x, const float* w, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = x[i] * w[i]; }
static void acme_erf(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = erff(x[i]); }
"""
    libraries = (SharedLibrary("libm.so.6"),)

    def statement(self, node, operands, outputs):
        (y,) = outputs
        if node.op == "scale":
            return f"acme_scale({operands['x'].name}, {operands['w'].name}, {y.name}, {y.shape[0]});"
        if node.op == "erf":
            return f"acme_erf({operands['x'].name}, {y.name}, {y.shape[0]});"
        if node.op == "fail":
            return "return 7;"
        return super().statement(node, operands, outputs)


def digest_of(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def graph_of(weight, *ops, symbol="acme_0", size=None):
    spec = TensorSpec((len(weight) if size is None else size,), "float32", "x")
    nodes = [
        JSONNode("input", (spec,), index=0),
        JSONNode("constant", (TensorSpec(weight.shape, "float32"),), digest=digest_of(weight)),
    ]
    last = (0, 0)
    for op in ops:
        nodes.append(JSONNode("kernel", (spec,), op, (("x", last), ("w", (1, 0)))))
        last = (len(nodes) - 1, 0)
    return JSONGraph(symbol, (spec,), tuple(nodes), (last,))


@pytest.fixture
def weight():
    return np.arange(1, 6, dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "c"


def make(weight, *ops, **more):
    return AcmeC().generate_graphs([graph_of(weight, *ops, **more)], {digest_of(weight): weight})


def run(module, x, symbol="acme_0"):
    y = np.full_like(x, np.nan)
    module.get_function(symbol)(x, y)
    return y


X = np.linspace(-1, 1, 5, dtype=np.float32)


@needs_compiler
def test_kernels_constants_intermediates_and_libraries(weight):
    module = make(weight, "scale", "erf", "scale")
    assert module.kind == "c_source"
    from math import erf

    expected = np.array([erf(v) for v in (X * weight).astype(float)]) * weight
    np.testing.assert_allclose(run(module, X), expected, rtol=1e-6)


@needs_compiler
def test_saved_text_gives_the_same_module(weight):
    module = make(weight, "scale")
    data = module.save_to_bytes()
    assert b".so" not in data.replace(b"libm.so.6", b"")
    loaded = c_source.load(data, module.constants())
    assert loaded.source == module.source == loaded.inspect()
    assert loaded.save_to_bytes() == data
    np.testing.assert_array_equal(run(loaded, X), X * weight)


@needs_compiler
def test_a_result_that_is_an_input_or_a_constant_is_copied(weight):
    graph = graph_of(weight)
    both = JSONGraph(graph.symbol, graph.inputs, graph.nodes, ((0, 0), (1, 0), (0, 0)))
    module = AcmeC().generate_graphs([both], {digest_of(weight): weight})
    outs = [np.empty_like(X) for _ in range(3)]
    module.get_function("acme_0")(X, *outs)
    for out, expected in zip(outs, (X, weight, X), strict=True):
        np.testing.assert_array_equal(out, expected)


@needs_compiler
def test_equal_regions_with_different_constants_stay_two(weight):
    """Guards against apache/tvm#19801: functions that differ in constants only were taken for one."""
    other = weight * 10
    graphs = [graph_of(weight, "scale", symbol="acme_0"), graph_of(other, "scale", symbol="acme_1")]
    module = AcmeC().generate_graphs(graphs, {digest_of(weight): weight, digest_of(other): other})
    assert set(module.constants()) == {digest_of(weight), digest_of(other)}
    np.testing.assert_array_equal(run(module, X, "acme_0"), X * weight)
    np.testing.assert_array_equal(run(module, X, "acme_1"), X * other)


@needs_compiler
def test_a_compiled_library_is_kept_and_used_again(weight, cache):
    run(make(weight, "scale"), X)
    (library,) = cache.iterdir()
    before = library.stat()
    run(make(weight, "scale"), X)
    assert [path.name for path in cache.iterdir()] == [library.name]
    assert library.stat().st_mtime_ns == before.st_mtime_ns
    assert cache.stat().st_mode & 0o077 == 0
    run(make(weight, "erf"), X)
    assert len(list(cache.iterdir())) == 2


@needs_compiler
def test_a_cache_that_others_can_write_is_not_used(weight, cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    np.testing.assert_array_equal(run(make(weight, "scale"), X), X * weight)
    assert list(cache.iterdir()) == []


@needs_compiler
def test_many_threads_share_the_prepared_constants(weight):
    module = make(weight, "scale", "scale")
    results = {}

    def work(number):
        results[number] = run(module, X + number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        np.testing.assert_allclose(result, (X + number) * weight * weight, rtol=1e-6)


def test_no_compiler_is_an_error_with_the_install_line(weight, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainError, match="no C compiler was found") as info:
        run(make(weight, "scale"), X)
    assert "apt install gcc" in info.value.hint


def test_the_compiler_that_cc_names_is_used_or_missed(weight, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        run(make(weight, "scale"), X)


@needs_compiler
def test_what_the_compiler_says_is_passed_on(weight):
    class Broken(AcmeC):
        preamble = "this is not C;"

    module = Broken().generate_graphs([graph_of(weight, "scale")], {digest_of(weight): weight})
    with pytest.raises(ToolchainError, match="failed") as info:
        run(module, X)
    assert "error" in info.value.found


@needs_compiler
def test_a_failing_call_names_its_status(weight):
    with pytest.raises(ExecutionError) as info:
        run(make(weight, "fail"), X)
    assert "status 7" in str(info.value)


def test_kernels_without_c_and_symbolic_sizes_are_refused(weight):
    from kernelyard import dims

    with pytest.raises(CodegenError, match="no C for this kernel"):
        make(weight, "conv")
    with pytest.raises(CodegenError, match="known sizes"):
        make(weight, "scale", size=dims.symbol("n"))


def test_a_library_that_is_not_here_names_what_to_install():
    library = SharedLibrary("libacme.so.9", ("acme-libs",), "ACME_LIBRARY", "pip install acme-libs")
    with pytest.raises(BackendUnavailableError) as info:
        library.locate()
    assert info.value.hint == "pip install acme-libs"


def test_the_variable_decides_where_a_library_is(monkeypatch, tmp_path):
    monkeypatch.setenv("ACME_LIBRARY", str(tmp_path / "libacme.so.9"))
    assert SharedLibrary("libacme.so.9", (), "ACME_LIBRARY").locate() == str(tmp_path / "libacme.so.9")


@pytest.mark.parametrize(
    "change",
    [
        {"functions": [{"symbol": "a", "name": "system", "inputs": [], "outputs": [], "constants": []}]},
        {"functions": [{"symbol": "a", "name": "kyc_a;", "inputs": [], "outputs": [], "constants": []}]},
        {"functions": [{"symbol": "a", "name": "kyc_a", "inputs": [], "outputs": [], "constants": ["x"]}]},
        {"libraries": [{"name": "../evil.so", "distributions": [], "variable": "", "hint": ""}]},
        {"libraries": [{"name": "-Wl,x", "distributions": ["a/b"], "variable": "", "hint": ""}]},
        {"source": 3},
    ],
)
def test_malformed_data_is_refused(weight, change):
    data = json.loads(make(weight, "scale").save_to_bytes()) | change
    with pytest.raises(ArtifactCorruptedError):
        c_source.load(json.dumps(data).encode(), {})


def test_a_missing_constant_is_refused(weight):
    data = make(weight, "scale").save_to_bytes()
    with pytest.raises(ArtifactCorruptedError):
        c_source.load(data, {})


@needs_compiler
def test_a_function_that_the_text_does_not_define_is_refused(weight):
    module = make(weight, "scale")
    spec = TensorSpec((5,), "float32")
    from kernelyard.runtime.abi.spec import Signature

    missing = NativeFunction("other", c_name("other"), Signature((spec,), (spec,)))
    broken = CSourceModule(NativeUnit(module.source, (missing,)), {})
    with pytest.raises(ArtifactCorruptedError):
        run(broken, X, "other")


def test_names_in_c_differ_where_symbols_do():
    symbols = ["a.b", "a_b", "a b", "floor", "ä", "x" * 300, "x" * 301]
    names = [c_name(symbol) for symbol in symbols]
    assert len(set(names)) == len(symbols)
    assert all(name.isascii() and name.isidentifier() and name.startswith("kyc_") for name in names)
    assert c_name("dnnl_0") == "kyc_dnnl_0"
