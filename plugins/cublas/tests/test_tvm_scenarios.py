"""The scenarios of test_codegen_cublas.py and test_codegen_hipblas.py, by name, run where no GPU is needed.

Products are run by NumPy in cuBLASLt's place, from the descriptors that the library would get. Operators give what they
are given here: a product of int8 that is int32 is one of operands cast to int32, and so on.
"""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.testing.offload_bench import feeds_of, module_of
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.runtime import api_of

from .conftest import APPROXIMATE, compiled, region_of

A, B = symbol("a"), symbol("b")
SIZES = {"a": 3, "b": 2}
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"

# (left, right as it is multiplied, whether it is stored transposed, what follows)
OFFLOADED = [
    ((8, 8), (8, 8), False, ""),
    ((A, 6), (6, 16), False, "bias"),
    ((4, 16), (16, 128), True, "relu"),
    ((35, 8), (8, 8), True, "gelu"),
    ((6, 32, 8), (6, 8, 10), False, "bias"),
    ((6, 32, 8), (6, 8, 10), True, ""),
    ((A, 32, 8), (A, 8, 10), True, "gelu"),
    ((5, 3, 32, 8), (5, 3, 8, 10), True, "relu"),
    ((A, 3, 32, 8), (A, 3, 8, 10), True, "relu"),
    ((A, B, 32, 8), (A, B, 8, 10), True, "relu"),
    ((5, 3, 32, 8), (8, 10), False, ""),
]


def swapped(shape):
    return (*shape[:-2], shape[-1], shape[-2])


def transposed(b, x):
    rank = x.tensor_type.rank
    return b.op("permute_dims", x, axes=(*range(rank - 2), rank - 1, rank - 2))


def program(right, is_transposed, epilogue, cast=None, gelu="nn.gelu"):
    """A product of two parameters, a bias where the epilogue needs one (relu and gelu do), and the activation."""

    def build(b, x, w, bias=None):
        x, w = (b.op("astype", each, dtype=cast) if cast else each for each in (x, w))
        y = b.op("matmul", x, transposed(b, w) if is_transposed else w)
        y = y if bias is None else b.op("add", y, bias)
        ops = {"relu": "nn.relu", "gelu": gelu}
        return b.op(ops[epilogue], y) if epilogue in ops else y

    return build


def case(left, right, is_transposed, epilogue, dtype, cast=None, gelu="nn.gelu"):
    inputs = [(left, dtype), (swapped(right) if is_transposed else right, dtype)]
    if epilogue:
        inputs.append(((right[-1],), cast or dtype))
    return program(right, is_transposed, epilogue, cast, gelu), *inputs


def pattern(is_transposed, epilogue):
    suffix = {"": "", "bias": "_bias"}.get(epilogue, f"_bias_{epilogue}")
    return ("matmul_transposed" if is_transposed else "matmul") + suffix


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("left", "right", "is_transposed", "epilogue"), OFFLOADED, ids=str)
def test_matmul_offload(left, right, is_transposed, epilogue, dtype, products):
    """gelu is asked for by the operator that the library has: its approximation by tanh."""
    name = pattern(is_transposed, epilogue)
    products.taken(name, *case(left, right, is_transposed, epilogue, dtype, gelu="nn.gelu_tanh"), **SIZES)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("left", "right", "is_transposed", "epilogue"), [c for c in OFFLOADED if c[3] == "gelu"])
def test_gelu_is_approximated_where_the_user_allows_it(left, right, is_transposed, epilogue, dtype, products):
    build, *inputs = case(left, right, is_transposed, epilogue, dtype)
    products.partly(
        ["matmul_transposed_bias"], "approximation", build, *inputs, at="matmul_transposed_bias_gelu", **SIZES
    )
    module = module_of(build, *inputs)
    exe = compiled(module, **APPROXIMATE)
    assert region_of(exe).pattern == "cublas.matmul_transposed_bias_gelu"
    feeds = feeds_of(module, **SIZES)
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    np.testing.assert_allclose(machine["main"](*feeds).numpy(), evaluate(module, feeds)[0], atol=1e-2, rtol=1e-2)


INTEGERS = [
    ((35, 8), (8, 8), True),
    ((24, 8), (8, 16), False),
    ((A, 8), (8, 16), False),
    ((17, 16), (16, 128), True),
    ((6, 32, 8), (6, 8, 16), False),
    ((6, 32, 8), (6, 8, 24), True),
    ((A, 32, 8), (A, 8, 16), True),
    ((A, B, 32, 8), (A, B, 8, 16), True),
    ((5, 3, 32, 8), (8, 16), False),
]
# TVM's sizes that the library is known to refuse on some GPUs.
REFUSED_INTEGERS = [
    ((8, 8), (8, 8), False, "rows"),
    ((4, 16), (16, 128), True, "rows"),
    ((6, 32, 8), (6, 8, 12), False, "alignment"),
    ((6, 32, 8), (6, 8, 10), True, "alignment"),
    ((A, B, 32, 8), (A, B, 8, 10), True, "alignment"),
]


@pytest.mark.parametrize(("left", "right", "is_transposed"), INTEGERS, ids=str)
def test_matmul_igemm_offload(left, right, is_transposed, products):
    products.taken(pattern(is_transposed, ""), *case(left, right, is_transposed, "", "int8", cast="int32"), **SIZES)


@pytest.mark.parametrize(("left", "right", "is_transposed", "code"), REFUSED_INTEGERS, ids=str)
def test_matmul_igemm_that_is_refused(left, right, is_transposed, code, products):
    products.declined(code, *case(left, right, is_transposed, "", "int8", cast="int32"), **SIZES)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [((16, 32), (32, 16), "float32"), ((A, 5, 32), (32, 24), "float16"), ((6, 7, 64), (6, 64, 16), "bfloat16")],
    ids=str,
)
def test_matmul_fp8_offload(left, right, result, products):
    products.taken("matmul_transposed", *case(left, right, True, "", E4M3, cast=result), **SIZES)


@pytest.mark.parametrize(
    ("left", "right", "is_transposed"),
    [((16, 32), (32, 16), True), ((A, 5, 9), (9, 24), False), ((A, 7, 6), (A, 6, 5), True)],
)
def test_matmul_bfloat16_offload(left, right, is_transposed, products):
    """To float32, as operands that are cast; and in bfloat16."""
    name = pattern(is_transposed, "")
    products.taken(name, *case(left, right, is_transposed, "", "bfloat16", cast="float32"), **SIZES)
    products.taken(name, *case(left, right, is_transposed, "", "bfloat16"), **SIZES)


def fp8(rows, columns, inner, result, is_transposed=True):
    return case((rows, inner), (inner, columns), is_transposed, "", E4M3, cast=result)


@pytest.mark.parametrize(
    ("sizes", "result", "is_transposed", "code"),
    [
        ((15, 64, 32), "float32", True, None),
        ((15, 64, 32), E4M3, True, None),
        ((15, 64, 32), E5M2, True, "dtype"),
        ((16, 32, 60), "float32", True, "alignment"),
        ((16, 30, 128), "float32", True, "alignment"),
        ((16, 8, 16), "float16", True, None),
        ((16, 8, 16), "float16", False, "layout"),
    ],
)
def test_cublas_partition_fp8_matmul(sizes, result, is_transposed, code, products):
    build, *inputs = fp8(*sizes, result, is_transposed)
    if code is None:
        products.taken("matmul_transposed", build, *inputs)
        return
    exe = compiled(module_of(build, *inputs))
    refusals = {(each.pattern, each.code) for each in exe.report.declined}
    assert ("cublas.matmul_transposed" if is_transposed else "cublas.matmul", code) in refusals
    regions = [region.ops for region in exe.report.regions if region.backend == "cublas"]
    assert not any("astype" in ops for ops in regions)  # at most the product of what is cast elsewhere


def quantized(scale, zero_point):
    """A product of int8 restored to floats. Float8 has no integers between: there it is a number times the product."""

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="int32") for each in (x, w))
        product = b.op("matmul", x, transposed(b, w))
        return b.op("dequantize", product, scale, zero_point, axis=1 if np.ndim(scale) else None)

    return build, ((32, 32), "int8"), ((16, 32), "int8")


def test_matmul_fp8_dequantize_offload(products):
    scale = np.float32(0.25)

    def build(b, x, w):
        x, w = (b.op("astype", each, dtype="float32") for each in (x, w))
        return b.op("multiply", b.op("matmul", x, transposed(b, w)), scale)

    exe = products.taken("matmul_transposed", build, ((A, 32), E4M3), ((16, 32), E4M3), **SIZES)
    assert "alpha=0.25" in exe.inspect()
    assert region_of(exe).ops.count("astype") == 2


@pytest.mark.parametrize(
    ("scale", "zero_point", "code"),
    [
        (np.float32(2.0), np.int32(0), None),
        (np.float32(2.0), np.int32(1), "zero-point"),
        (np.full(16, 2.0, np.float32), np.int32(0), "scale"),
    ],
    ids=["scale and zero", "zero point of one", "vector of scales"],
)
def test_cublas_partition_fp8_matmul_dequantize(scale, zero_point, code, products):
    build, *inputs = quantized(scale, zero_point)
    if code is None:
        exe = products.taken("matmul_transposed_dequantize", build, *inputs)
        assert len(exe.programs["main"].steps) == 1
    else:
        exe = products.partly(["matmul_transposed"], code, build, *inputs, at="matmul_transposed_dequantize")
        assert len(exe.programs["main"].steps) == 2


def scaled_by_two(result):
    def build(b, x, w, scale_a, scale_b):
        x, w = (b.op("astype", each, dtype="float32") for each in (x, w))
        product = b.op("matmul", x, transposed(b, w))
        y = b.op("multiply", product, b.op("multiply", scale_a, scale_b))
        return y if result == "float32" else b.op("astype", y, dtype=result)

    return build, ((A, 32), E4M3), ((16, 32), E4M3), ((1,), "float32"), ((1,), "float32")


@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32"])
def test_matmul_fp8_multiply_offload(result, products):
    exe = products.taken("matmul_transposed_multiply", *scaled_by_two(result), **SIZES)
    assert "scale_a=" in exe.inspect()


def test_cublas_partition_fp8_matmul_multiply(products):
    """One function of all, whose operands keep their names."""
    exe = products.taken("matmul_transposed_multiply", *scaled_by_two("float16"), **SIZES)
    casts = ["astype"] * 2
    assert sorted(region_of(exe).ops) == sorted([*casts, "permute_dims", "matmul", "multiply", "multiply", "astype"])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cublas_partition_matmul_without_bias(dtype, products):
    """What is added is neither a bias nor a whole product: it stays outside."""

    def build(b, x, w, y):
        return b.op("add", b.op("matmul", x, w), y)

    products.partly(["matmul"], "bias", build, ((16, 32), dtype), ((32, 32), dtype), ((16, 1), dtype))
    products.partly(["matmul"], "residual", build, ((2, 16, 32), dtype), ((32, 32), dtype), ((2, 1, 32), dtype))


def test_a_matrix_of_the_size_of_the_product_is_a_residual(products):
    """In TVM it stays outside."""

    def build(b, x, w, y):
        return b.op("add", b.op("matmul", x, w), y)

    products.taken("matmul_residual", build, ((16, 32), "float16"), ((32, 32), "float16"), ((16, 32), "float16"))


@pytest.mark.parametrize(("sizes", "is_taken"), [((32, 8, 32), True), ((32, 8, 33), False), ((32, 9, 32), False)])
def test_cublas_partition_igemm(sizes, is_taken, products):
    rows, columns, inner = sizes
    build, *inputs = case((rows, inner), (inner, columns), False, "", "int8", cast="int32")
    if is_taken:
        products.taken("matmul", build, *inputs)
    else:
        products.declined("alignment", build, *inputs)


def test_cublas_partition_igemm_with_bias(products):
    build, *inputs = case((32, 32), (32, 8), False, "bias", "int8", cast="int32")
    products.partly(["matmul"], "bias", build, *inputs, at="matmul_bias")


class CapturingApi:
    """Keeps what is put on the stream that captures, instead of doing it, as a GPU does."""

    STREAM = 77

    def __init__(self, driver, monkeypatch):
        self.captured, self.replays = [], 0
        self._driver, self._monkeypatch = driver, monkeypatch
        run = EmulatedLt.run

        def run_or_keep(api, call):
            if driver.stream == self.STREAM:
                self.captured.append(call)
            else:
                run(api, call)

        self._run = run
        monkeypatch.setattr(EmulatedLt, "run", run_or_keep)
        monkeypatch.setattr(type(driver), "capture", lambda driver, run: self.capture(run))

    def capture(self, run):
        with self._monkeypatch.context() as patch:
            patch.setattr(type(self._driver), "stream", self.STREAM)
            run()
        calls = list(self.captured)

        def replay():
            self.replays += 1
            for call in calls:
                self._run(api_of(self._driver), call)

        return replay


def test_cublas_matmul_cuda_graph(products, monkeypatch):
    """Products are captured once they ran, on the stream that captures, and replayed: nothing is made meanwhile."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(3)]

    def build(b, x):
        for weight in weights:
            x = b.op("nn.relu", b.op("add", b.op("matmul", x, weight), weight[0]))
        return x

    module = module_of(build, ((A, 16), "float32"))
    machine = ky.VirtualMachine(compiled(module), ky.cuda(products.emulator.index))
    capturing = CapturingApi(products.emulator, monkeypatch)
    x = rng.standard_normal((4, 16)).astype(np.float32)
    assert_allclose(machine["main"](x), evaluate(module, [x])[0])
    made = {name: products.api.calls[name] for name in ("create", "set", "heuristics")}
    for scale in (1, -1, 2):
        assert_allclose(machine["main"](scale * x), evaluate(module, [scale * x])[0])
    assert len(capturing.captured) == 3
    assert capturing.replays == 3
    assert made == {name: products.api.calls[name] for name in made}


# --- test_codegen_hipblas.py ------------------------------------------------------------------------------------------
HIPBLAS = [c for c in OFFLOADED if c[3] != "gelu"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("left", "right", "is_transposed", "epilogue"), HIPBLAS, ids=str)
def test_hipblas_matmul_offload(left, right, is_transposed, epilogue, dtype, products):
    """The same eight patterns; in TVM none of the float32 cases is offloaded, and its test passes all the same."""
    products.taken(pattern(is_transposed, epilogue), *case(left, right, is_transposed, epilogue, dtype), **SIZES)


SCENARIOS = {
    "cublas: matmul_offload": test_matmul_offload,
    "cublas: matmul_offload, gelu by erf": test_gelu_is_approximated_where_the_user_allows_it,
    "cublas: matmul_igemm_offload": test_matmul_igemm_offload,
    "cublas: matmul_fp8_offload": test_matmul_fp8_offload,
    "cublas: matmul_fp8_dequantize_offload": test_matmul_fp8_dequantize_offload,
    "cublas: matmul_fp8_multiply_offload": test_matmul_fp8_multiply_offload,
    "cublas: matmul_bfloat16_offload": test_matmul_bfloat16_offload,
    "cublas: cublas_partition_fp8_matmul": test_cublas_partition_fp8_matmul,
    "cublas: cublas_partition_fp8_matmul_dequantize": test_cublas_partition_fp8_matmul_dequantize,
    "cublas: cublas_partition_fp8_matmul_multiply": test_cublas_partition_fp8_matmul_multiply,
    "cublas: cublas_partition_matmul_without_bias": test_cublas_partition_matmul_without_bias,
    "cublas: cublas_partition_igemm": test_cublas_partition_igemm,
    "cublas: cublas_partition_igemm_with_bias": test_cublas_partition_igemm_with_bias,
    "cublas: cublas_matmul_cuda_graph": test_cublas_matmul_cuda_graph,
    "hipblas: matmul_offload": test_hipblas_matmul_offload,
    "hipblas: hipblas_partition_matmul_without_bias": test_cublas_partition_matmul_without_bias,
}
