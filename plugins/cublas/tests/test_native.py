"""The library itself, as far as it goes without a GPU: its descriptors hold what ours are told, number for number."""

from __future__ import annotations

import pytest

from kernelyard.errors import BackendUnavailableError, KernelyardError
from kernelyard_cublas._enums import (
    ComputeType,
    DataType,
    Epilogue,
    LayoutAttribute,
    MatmulAttribute,
    PreferenceAttribute,
    Status,
)
from kernelyard_cublas.backend import CublasBackend
from kernelyard_cublas.descriptors import ALIGNMENT, WORKSPACE_LIMIT, Descriptors
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.libraries import load_library
from kernelyard_cublas.lt_api import LtError
from kernelyard_cublas.problem import Attributes, problem_of
from kernelyard_cublas.type_table import PRODUCTS

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


def test_without_a_gpu_the_library_says_so(library):
    problem = problem_of(
        Attributes(), {"lhs": (4, 8), "rhs": (8, 6), "out": (4, 6)}, dict.fromkeys(("lhs", "rhs", "out"), "float32")
    )
    descriptors = Descriptors(library, problem, {})
    try:
        import ctypes

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
