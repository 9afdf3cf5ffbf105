"""External modules: compiled by the user's compiler, called by programs, carried by artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, dtypes, nn
from kernelyard.errors import ArtifactCorruptedError, CodegenError, ExecutionError, FrontendError, ToolchainError
from kernelyard.nn import cpp_compiler
from kernelyard.runtime.modules import extern_library
from kernelyard.testing import evaluate
from kernelyard.transform import AttachExternModules, get_pipeline

SOURCE = """
#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include "factor.h"

namespace {

int64_t count(DLTensor* x) {
  int64_t n = 1;
  for (int i = 0; i < x->ndim; ++i) n *= x->shape[i];
  return n;
}

void scaled_sum(DLTensor* a, DLTensor* b, DLTensor* c) {
  for (int64_t i = 0, n = count(c); i < n; ++i)
    static_cast<float*>(c->data)[i] = FACTOR * (static_cast<float*>(a->data)[i] + static_cast<float*>(b->data)[i]);
}

// The rows whose first number is positive; sums and numbers of elements of each row.
int sums(DLTensor* x, DLTensor* sum, DLTensor* number) {
  const int64_t rows = x->shape[0], columns = x->shape[1];
  if (columns > 5) TVM_FFI_THROW(ValueError) << "too many columns: " << columns;
  for (int64_t r = 0; r < rows; ++r) {
    float total = 0;
    for (int64_t c = 0; c < columns; ++c)
      total += static_cast<float*>(x->data)[r * x->strides[0] + c * x->strides[1]];
    static_cast<float*>(sum->data)[r] = total;
    static_cast<int64_t*>(number->data)[r] = columns;
  }
  return 7;
}

// What a tensor says of itself.
void describe(DLTensor* x, DLTensor* y) {
  int64_t* facts = static_cast<int64_t*>(y->data);
  facts[0] = x->dtype.code; facts[1] = x->dtype.bits; facts[2] = x->dtype.lanes;
  facts[3] = x->device.device_type; facts[4] = x->ndim; facts[5] = x->strides[0]; facts[6] = x->byte_offset;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(describe, describe);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scaled_sum, scaled_sum);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, scaled_sum);  // a kernel of that name is generated, too
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sums, sums);
"""
HEADER = "#define FACTOR 2.0f\n"


def same(a, b):
    return nn.Tensor.placeholder(a.shape, a.dtype)


def per_row(x):
    rows, _ = x.shape
    return nn.Tensor.placeholder((rows,), "float32"), nn.Tensor.placeholder((rows,), "int64")


def facts(x):
    return nn.Tensor.placeholder((7,), "int64")


SYMBOLS = {"scaled_sum": same, "add": same, "sums": per_row, "describe": facts}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> nn.SourceModule:
    folder = tmp_path_factory.mktemp("extern")
    (folder / "factor.h").write_text(HEADER, encoding="utf-8")
    (folder / "code.cpp").write_text(SOURCE, encoding="utf-8")
    return nn.SourceModule(SYMBOLS, folder / "code.cpp", compile_options=["-O1"])


class Net(nn.Module):
    def __init__(self, extern: nn.ExternModule) -> None:
        self.extern = extern

    def forward(self, x, y):
        combined = self.extern["scaled_sum"](nn.op.exp(x), y)
        return self.extern["add"](combined + x, np.ones((2, 3), np.float32)), self.extern["sums"](combined)

    def two(self, x):
        return self.extern["sums"](x)

    def describe(self, x):
        return self.extern["describe"](x)


X = nn.spec.Tensor([2, 3])
SPEC = {"forward": {"x": X, "y": X}}


@pytest.fixture(scope="module")
def model(source: nn.SourceModule) -> nn.ModuleSpec:
    return nn.ModuleSpec(Net(source), SPEC, allow_extern=True)


def feeds() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((2, 3), np.float32), random.random((2, 3), np.float32)


def check(results) -> None:
    x, y = feeds()
    combined = 2 * (np.exp(x) + y)
    added, total, number = map(np.asarray, results)
    np.testing.assert_allclose(added, 2 * (combined + x + 1), rtol=1e-5)
    np.testing.assert_allclose(total, combined.sum(1), rtol=1e-5)
    assert number.tolist() == [3, 3]
    assert number.dtype == np.int64


def test_a_call_becomes_call_dps_packed(source: nn.SourceModule) -> None:
    module, params = Net(source).export(SPEC, allow_extern=True)
    assert params == {}
    assert 'call_dps_packed(extern "scaled_sum"' in str(module)
    (attached,) = module.attrs["external_modules"]
    assert attached is source.load()
    assert set(attached.symbols()) == set(SYMBOLS)


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_a_model_with_external_code_runs(model: nn.ModuleSpec, backends: list[str], tmp_path: Path) -> None:
    exe = ky.compile(model, backends=backends)
    check(exe(*feeds()))
    check(evaluate(model.to_ir(), feeds(), "forward"))
    assert {row.backend for row in exe.report.placed if row.op == "call_dps_packed"} == {"extern"}


def test_an_artifact_carries_its_code(model: nn.ModuleSpec, tmp_path: Path) -> None:
    ky.compile(model, backends=[]).save(tmp_path / "m.kyar")
    check(ky.load(tmp_path / "m.kyar")(*feeds()))
    code = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
added, total, number = exe(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
assert total.numpy().tolist() == [6, 6], total
assert not [name for name in sys.modules if name.startswith(("kernelyard.nn", "kernelyard.ir"))]
"""
    environment = {"PATH": "/nowhere"}  # no compiler
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.kyar")], env=environment, check=True)


def test_equal_sources_give_equal_artifacts(source: nn.SourceModule, model: nn.ModuleSpec, tmp_path: Path) -> None:
    assert source.compile() == source.compile()
    for name in ("a", "b"):
        ky.compile(model, backends=[]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    library = source.load().save_to_bytes()
    assert str(Path(cpp_compiler.include_folders()[0])).encode() not in library


def test_symbolic_sizes(source: nn.SourceModule) -> None:
    spec = {"two": {"x": nn.spec.Tensor(["n", "m"])}}
    exe = ky.compile(nn.ModuleSpec(Net(source), spec, allow_extern=True), backends=[])
    for rows, columns in ((1, 2), (4, 5), (2, 3)):
        total, number = exe(np.ones((rows, columns), np.float32))
        assert total.numpy().tolist() == [columns] * rows
        assert number.numpy().tolist() == [columns] * rows
    with pytest.raises(ExecutionError) as error:
        exe(np.ones((1, 6), np.float32))
    assert "ValueError: too many columns: 6" in str(error.value)
    assert str(error.value.where).startswith("sums, run by extern_library of kernelyard ")
    assert exe(np.ones((1, 2), np.float32))[0].numpy().tolist() == [2]


# dlpack.h 1.1: DLDataTypeCode
CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_tensors_say_what_they_are(source: nn.SourceModule, dtype: str) -> None:
    spec = {"describe": {"x": nn.spec.Tensor(["n", 3], dtype)}}
    exe = ky.compile(nn.ModuleSpec(Net(source), spec, allow_extern=True), backends=[])
    array = np.ones((2, 3), dtypes.to_numpy(dtype))
    code = CODES.get(dtype, CODES.get(array.dtype.kind))
    assert exe(array).numpy().tolist() == [code, 8 * array.itemsize, 1, 1, 2, 3, 0]


def test_the_functions_can_be_called_from_python(source: nn.SourceModule) -> None:
    a, b, c = np.ones(4, np.float32), np.ones(4, np.float32), np.empty(4, np.float32)
    source.load().get_function("scaled_sum")(a, b, c)
    assert c.tolist() == [4, 4, 4, 4]
    with pytest.raises(ExecutionError, match="no function 'nothing'"):
        source.load().get_function("nothing")


def test_an_object_file(source: nn.SourceModule, tmp_path: Path) -> None:
    (tmp_path / "code.o").write_bytes(source.compile())
    compiled = nn.ObjectModule(SYMBOLS, tmp_path / "code.o")
    check(ky.compile(nn.ModuleSpec(Net(compiled), SPEC, allow_extern=True), backends=[])(*feeds()))
    with pytest.raises(FrontendError, match="no such object file"):
        nn.ObjectModule(SYMBOLS, tmp_path / "other.o")


MATRICES = """
#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
namespace {
int _my_func_impl(DLTensor* a, DLTensor* b, DLTensor* c) {
  const int64_t X = c->shape[0], Y = c->shape[1], Z = c->shape[2];
  for (int64_t i = 0, n = X * Y * Z * 9; i < n; ++i) {
    const int64_t z = i / 9 % Z, y = i / 9 / Z % Y, x = i / 9 / Z / Y;
    static_cast<float*>(c->data)[i] =
        static_cast<float*>(a->data)[x * Y + y] * static_cast<float*>(b->data)[(y * Z + z) * 5] + i % 9;
  }
  return 0;
}
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(my_func, _my_func_impl);
"""


def matrices(a, b):
    x, y, _ = a.shape
    _, z, _ = b.shape
    return nn.Tensor.placeholder((x, y, z, 9), dtype="float32")


class Twice(nn.Module):
    """One external module, called in two methods."""

    def __init__(self) -> None:
        self.extern = nn.SourceModule({"my_func": matrices}, MATRICES)

    def forward(self, a, b):
        return self.extern["my_func"](a, b)

    def negative(self, a, b):
        return -self.extern["my_func"](a, b)


def test_sizes_of_outputs_are_inferred_from_symbols() -> None:
    inputs = {"a": nn.spec.Tensor(["x", "y", 1]), "b": nn.spec.Tensor(["y", "z", 5])}
    model = nn.ModuleSpec(Twice(), {"forward": inputs, "negative": inputs}, allow_extern=True)
    module = model.to_ir()
    assert module["forward"].result_type.shape == tuple(dims.symbol(name) for name in "xyz") + (9,)
    assert len(module.attrs["external_modules"]) == 1
    machine = ky.VirtualMachine(ky.compile(model, backends=[]))
    for x, y, z in ((2, 3, 4), (1, 2, 1)):
        a, b = np.random.default_rng(0).random((x, y, 1), np.float32), np.ones((y, z, 5), np.float32)
        expected = a[..., None] * b[None, :, :, :1] + np.arange(9, dtype=np.float32)
        np.testing.assert_allclose(machine["forward"](a, b).numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(machine["negative"](a, b).numpy(), -expected, rtol=1e-5)


def test_an_inference_function_that_fails_is_named() -> None:
    spec = {"forward": {"a": nn.spec.Tensor(["x", 1]), "b": nn.spec.Tensor([1, 2, 5])}}
    with pytest.raises(FrontendError, match="inference function of my_func failed") as error:
        Twice().export(spec, allow_extern=True)
    assert "ValueError: not enough values to unpack" in str(error.value.found)


class ByHand(nn.Module):
    def forward(self, a, b):
        return nn.op.extern("my_func", [a, b], matrices(a, b))


def test_a_module_may_be_attached_at_any_stage() -> None:
    spec = {"forward": {"a": nn.spec.Tensor([2, 3, 1]), "b": nn.spec.Tensor([3, 4, 5])}}
    with pytest.raises(FrontendError, match="its own compiled code"):
        ByHand().export(spec)
    module, _ = ByHand().export(spec, allow_extern=True)
    assert "external_modules" not in module.attrs
    with pytest.raises(CodegenError, match="no module has the function 'my_func'"):
        ky.compile(module, backends=[])
    attached = AttachExternModules([Twice().extern])(get_pipeline("simplify")(module))
    result = ky.compile(attached, backends=[])(np.ones((2, 3, 1), np.float32), np.ones((3, 4, 5), np.float32))
    assert result.numpy()[0, 0, 0].tolist() == list(range(1, 10))


def test_an_object_file_that_lacks_a_symbol(source: nn.SourceModule, tmp_path: Path) -> None:
    (tmp_path / "code.o").write_bytes(source.compile())
    with pytest.raises(ToolchainError, match="does not export"):
        nn.ObjectModule({**SYMBOLS, "lacking": same}, tmp_path / "code.o").load()


def test_external_code_must_be_allowed(source: nn.SourceModule) -> None:
    with pytest.raises(FrontendError, match="its own compiled code") as error:
        Net(source).export(SPEC)
    assert "allow_extern=True" in str(error.value.hint)
    with pytest.raises(FrontendError, match="its own compiled code"):
        ky.compile(nn.ModuleSpec(Net(source), SPEC))


def test_each_symbol_is_in_one_module() -> None:
    class Both(nn.Module):
        def forward(self, x):
            first, second = (nn.SourceModule({"twice": lambda x: x}, "") for _ in range(2))
            return second["twice"](first["twice"](x))

    with pytest.raises(FrontendError, match="two external modules have the symbol 'twice'"):
        Both().export({"forward": {"x": X}}, allow_extern=True)


def test_no_compiler_has_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.SourceModule({"f": lambda x: x}, "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler was found") as error:
        module.load()
    assert "apt install g++" in str(error.value.hint)
    monkeypatch.setenv("CXX", "my-c++")
    with pytest.raises(ToolchainError, match="called my-c\\+\\+"):
        module.load()


def test_code_that_cannot_be_compiled_or_linked() -> None:
    with pytest.raises(ToolchainError, match="compiler failed") as error:
        nn.SourceModule({"f": lambda x: x}, "int f( {").load()
    assert "extern.cpp:1" in str(error.value.found)
    with pytest.raises(ToolchainError, match="compiler failed") as error:
        nn.SourceModule({"f": lambda x: x}, "void g(); void f() { g(); }").load()
    assert "undefined reference" in str(error.value.found)


def test_a_symbol_that_is_not_exported() -> None:
    with pytest.raises(ToolchainError, match="does not export") as error:
        nn.SourceModule({"f": lambda x: x}, "void f() {}").load()
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, function)" in str(error.value.hint)


@pytest.mark.parametrize("symbol", ["", "a-b", "1a", "a b"])
def test_symbols_are_names_of_c_functions(symbol: str) -> None:
    with pytest.raises(FrontendError, match="invalid name of a C function"):
        nn.SourceModule({symbol: same}, "")
    with pytest.raises(FrontendError, match="invalid name of a C function"):
        Calling(lambda x: nn.op.extern(symbol, [x], x)).export({"forward": {"x": X}}, allow_extern=True)


class Calling(nn.Module):
    def __init__(self, call) -> None:
        self.call = call

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, x: e["g"](x), "no symbol 'g'"),
        (lambda e, x: e["f"](1.0), "take tensors"),
        (lambda e, x: e["nothing"](x), "returns no placeholders"),
    ],
)
def test_calls_that_are_refused(call, message: str) -> None:
    extern = nn.SourceModule({"f": lambda x: x, "nothing": lambda x: None}, "")
    with pytest.raises(FrontendError, match=message):
        Calling(lambda x: call(extern, x)).export({"forward": {"x": X}}, allow_extern=True)


def test_damaged_libraries_are_errors(source: nn.SourceModule) -> None:
    data = source.load().save_to_bytes()
    assert extern_library.load(data, {}).save_to_bytes() == data
    for damaged in (b"", data[:4], b"\xff" * 8 + data[8:], data.replace(b'"schema":1', b'"schema":x')):
        with pytest.raises(ArtifactCorruptedError):
            extern_library.load(damaged, {})
    no_library = extern_library.ExternLibrary(b"no library", ("f",))
    with pytest.raises(ky.errors.BackendUnavailableError):
        no_library.get_function("f")
    lacking = extern_library.ExternLibrary(data[data.index(b"\x7fELF") :], ("other",))
    with pytest.raises(ArtifactCorruptedError):
        lacking.get_function("other")
    with pytest.raises(ArtifactCorruptedError):
        extern_library.ExternLibrary(b"", ("no name",))
