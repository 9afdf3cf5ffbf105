"""The library itself, as far as it goes without a GPU: its descriptors hold what ours are told, number for number."""

from __future__ import annotations

import ctypes

import pytest

from kernelyard.errors import BackendUnavailableError, KernelyardError
from kernelyard.testing.offload_bench import module_of
from kernelyard_cublas._enums import (
    ComputeType,
    DataType,
    Epilogue,
    LayoutAttribute,
    MatmulAttribute,
    PreferenceAttribute,
    Status,
)
from kernelyard_cublas._native import SIGNATURES, LtLibrary
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.descriptors import ALIGNMENT, WORKSPACE_LIMIT, Descriptors
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.libraries import load_library
from kernelyard_cublas.lt_api import Addresses, Heuristic, Layouts, LtError, MatmulCall
from kernelyard_cublas.problem import Attributes, problem_of
from kernelyard_cublas.type_table import PRODUCTS

from .conftest import compiled, region_of
from .test_tvm_scenarios import INTEGERS, OFFLOADED, SIZES, case, scaled_by_two

pytestmark = pytest.mark.cuda_libs


@pytest.fixture(scope="module")
def library():
    try:
        return load_library()
    except BackendUnavailableError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def described(api, descriptors):
    """Everything that the descriptors say."""
    return {
        "matmul": {each.name: api.get(descriptors.matmul, each) for each in MatmulAttribute},
        "layouts": [{each.name: api.get(layout, each) for each in LayoutAttribute} for layout in descriptors.layouts],
        "preference": {each.name: api.get(descriptors.preference, each) for each in PreferenceAttribute},
    }


PROBLEMS = {
    "one product": (Attributes(), {"lhs": (4, 8), "rhs": (8, 16), "out": (4, 16)}),
    "rows of many": (Attributes(), {"lhs": (2, 3, 4, 8), "rhs": (8, 16), "out": (2, 3, 4, 16)}),
    "a batch": (Attributes(transpose_rhs=True), {"lhs": (3, 4, 16), "rhs": (3, 16, 16), "out": (3, 4, 16)}),
    "one left operand": (Attributes(), {"lhs": (4, 16), "rhs": (3, 16, 8), "out": (3, 4, 8)}),
    "transposed": (Attributes(transpose_lhs=True), {"lhs": (3, 8, 4), "rhs": (8, 16), "out": (3, 4, 16)}),
}


@pytest.mark.parametrize("types", PRODUCTS, ids=" to ".join)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_library_reads_back_what_the_emulation_does(problem, types, library):
    attributes, shapes = PROBLEMS[problem]
    operands, result = types
    product = PRODUCTS[types]
    dtypes, shapes = {"lhs": operands, "rhs": operands, "out": result}, dict(shapes)
    addresses = {}
    if product.bias:
        shapes["bias"], dtypes["bias"], addresses["bias"] = (shapes["out"][-1],), product.bias, 0x1000
        attributes = Attributes(attributes.transpose_lhs, attributes.transpose_rhs, "relu")
    if product.residual:
        shapes["residual"], dtypes["residual"] = shapes["out"], result
    if product.scales:
        addresses |= {"scale_a": 0x2000, "scale_b": 0x3000}
        shapes |= {"scale_a": (1,), "scale_b": (1,)}
    made = problem_of(attributes, shapes, dtypes)
    emulated = EmulatedLt()
    both = [described(api, Descriptors(api, made, addresses)) for api in (library, emulated)]
    assert both[0] == both[1]
    assert both[0]["matmul"]["BIAS_POINTER"] == addresses.get("bias", 0)
    assert both[0]["matmul"]["A_SCALE_POINTER"] == addresses.get("scale_b", 0)
    assert both[0]["matmul"]["EPILOGUE"] == (Epilogue.RELU_BIAS if product.bias else Epilogue.DEFAULT)
    assert both[0]["preference"]["MAX_WORKSPACE_BYTES"] == WORKSPACE_LIMIT
    assert both[0]["preference"]["MIN_ALIGNMENT_D_BYTES"] == ALIGNMENT


def test_defaults_are_the_librarys(library):
    """What is not set: a fresh descriptor of each kind."""
    emulated = EmulatedLt()
    for make, attributes in (
        (lambda api: api.create_matmul(ComputeType.C_32F, DataType.R_32F), MatmulAttribute),
        (lambda api: api.create_layout(DataType.R_16F, 6, 4, 8), LayoutAttribute),
        (lambda api: api.create_preference(), PreferenceAttribute),
    ):
        said = []
        for api in (library, emulated):
            made = make(api)
            said.append({each.name: api.get(made, each) for each in attributes})
            api.destroy(made)
        assert said[0] == said[1]


def test_pointers_may_be_moved(library):
    matmul = library.create_matmul(ComputeType.C_32F, DataType.R_32F)
    for address in (0x1000, 0x7FFF_FFFF_F000, 0xFFFF_FFFF_FFFF_FFF0):
        library.set(matmul, MatmulAttribute.BIAS_POINTER, address)
        assert library.get(matmul, MatmulAttribute.BIAS_POINTER) == address
    library.destroy(matmul)


def test_proposals_are_read_as_the_library_writes_them(library):
    """`cublasLtMatmulHeuristicResult_t`: 64 bytes of algorithm, workspace, state, waves."""
    given = []

    def propose(handle, matmul, a, b, c, d, preference, count, results, found):
        given.append((handle, matmul, a, b, c, d, preference, count))
        for number, state in enumerate((0, 15, 0)):
            at = results + 96 * number
            ctypes.memset(at, number + 1, 64)
            ctypes.c_size_t.from_address(at + 64).value = 1000 * number
            ctypes.c_int.from_address(at + 72).value = state
            ctypes.c_float.from_address(at + 76).value = 0.5
        found[0] = 3
        return 0

    def check(handle, matmul, a, b, c, d, algorithm, result):
        ctypes.memmove(result, algorithm, 64)
        ctypes.c_size_t.from_address(result + 64).value = 4096
        return 0 if ctypes.string_at(algorithm, 1) == b"\x01" else 7

    made = LtLibrary(library.path)
    made.__dict__["_handle"] = ctypes.c_void_p(0x700)
    for name, function in {"cublasLtMatmulAlgoGetHeuristic": propose, "cublasLtMatmulAlgoCheck": check}.items():
        made._functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])(function)
    layouts = Layouts(0x20, 0x30, 0x40, 0x50)
    assert made.heuristics(0x10, layouts, 0x60, 4) == [
        Heuristic(b"\x01" * 64, 0, 0.5),
        Heuristic(b"\x03" * 64, 2000, 0.5),
    ]
    assert given == [(0x700, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 4)]
    assert made.check(0x10, layouts, b"\x01" * 64) == Heuristic(b"\x01" * 64, 4096)
    assert made.check(0x10, layouts, b"\x02" * 64) is None


def test_without_a_gpu_the_library_says_so(library):
    problem = problem_of(
        Attributes(), {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6)}, dict.fromkeys(("lhs", "rhs", "out"), "float32")
    )
    descriptors = Descriptors(library, problem, {})
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver here")
    except OSError:
        pass
    with pytest.raises(LtError, match="NOT_INITIALIZED") as caught:
        library.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 1)
    assert caught.value.status == Status.NOT_INITIALIZED.name
    assert isinstance(caught.value, KernelyardError)


def test_doctor_shows_path_version_and_major(library):
    facts = CublasBackend().facts()
    assert facts["cuBLASLt"] == library.path
    assert "CUDA 1" in facts["version"]


class LibraryWithoutGpu(LtLibrary):
    """The library's descriptors and our calls of its C functions; what computes reads these descriptors back.

    `cublasLtMatmul` is a C function that gets what the library would get.
    """

    def __init__(self, path):
        super().__init__(path)
        self.emulated = EmulatedLt()
        self.__dict__["_handle"] = ctypes.c_void_p(0x700)
        types = SIGNATURES["cublasLtMatmul"]
        self._functions["cublasLtMatmul"] = self.function = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._matmul)
        self.streams = []

    def _mirror(self, descriptor, made, attributes):
        for each in attributes:
            value = self.get(descriptor, each)
            self.emulated.set(made, each, -1 if value == (1 << 8 * each.nbytes) - 1 else value)
        return made

    def _mirrored(self, matmul, layouts):
        api = self.emulated
        made = self._mirror(matmul, api.create_matmul(ComputeType.C_32F, DataType.R_32F), MatmulAttribute)
        empty = [api.create_layout(DataType.R_32F, 1, 1, 1) for _ in layouts]
        return made, Layouts(
            *(self._mirror(layout, each, LayoutAttribute) for layout, each in zip(layouts, empty, strict=True))
        )

    def heuristics(self, matmul, layouts, preference, count):
        made = self._mirror(preference, self.emulated.create_preference(), PreferenceAttribute)
        return self.emulated.heuristics(*self._mirrored(matmul, layouts), made, count)

    def check(self, matmul, layouts, algorithm):
        return self.emulated.check(*self._mirrored(matmul, layouts), algorithm)

    def _matmul(self, handle, matmul, alpha, a, a_, b, b_, beta, c, c_, d, d_, algorithm, workspace, nbytes, stream):
        self.streams.append(stream)
        scale_type = DataType(self.get(matmul, MatmulAttribute.SCALE_TYPE))
        scalar = {DataType.R_64F: ctypes.c_double, DataType.R_32I: ctypes.c_int32}.get(scale_type, ctypes.c_float)
        made, layouts = self._mirrored(matmul, Layouts(a_, b_, c_, d_))
        call = MatmulCall(
            made,
            layouts,
            Addresses(a, b, c, d),
            scalar.from_address(alpha).value,
            scalar.from_address(beta).value,
            scale_type,
            Heuristic(ctypes.string_at(algorithm, 64), nbytes),
            workspace or 0,
        )
        try:
            self.emulated.run(call)
        except LtError as error:
            return int(Status[error.status])
        return 0


@pytest.fixture
def library_without_gpu(library, monkeypatch):
    from kernelyard_cublas import runtime

    made = LibraryWithoutGpu(library.path)
    monkeypatch.setattr(runtime, "api_of", lambda device: made)
    yield made
    assert made.streams


def residual(b, x, w, y):
    return b.op("add", b.op("matmul", x, w), y)


RUNS = [
    *(case(*each, "float16", gelu="nn.gelu_tanh") for each in OFFLOADED),
    *(case(*each, "", "int8", cast="int32") for each in INTEGERS),
    *(case(*each, "float32", gelu="nn.gelu_tanh") for each in OFFLOADED),
    scaled_by_two("float16"),
    scaled_by_two("float32"),
    (residual, ((3, 4, 8), "float64"), ((3, 8, 6), "float64"), ((4, 6), "float64")),
]


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_programs_run_by_what_the_librarys_descriptors_say(number, library_without_gpu, products):
    build, *inputs = RUNS[number]
    module = module_of(build, *inputs)
    exe = compiled(module)
    assert len(exe.programs["main"].steps) == 1
    assert region_of(exe).backend == "cublas"
    products.right(exe, module, **SIZES)
