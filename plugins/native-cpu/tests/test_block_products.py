"""Products of quantized blocks: dot-product instructions on every CPU, right up to the roundings of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import Expr, FunctionBuilder, IRModule
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.target import Target
from kernelyard.testing import evaluate
from kernelyard_native_cpu import _native
from kernelyard_native_cpu.generator import write_module
from kernelyard_native_cpu.machine import Machine, features_of_level

from .conftest import kernels, plan_of_product, skip_beyond_host

RNG = np.random.default_rng(13)
V4, V3 = features_of_level("x86-64-v4"), features_of_level("x86-64-v3")
AVX512_VNNI = Machine("x86_64", tuple(sorted((*V4, "avx512vnni"))))
AVX2 = Machine("x86_64", V3)
MACHINES = {
    "vpdpbusd.512": AVX512_VNNI,
    "vpdpbusd.256": Machine("x86_64", tuple(sorted((*V3, "avxvnni")))),
    "avx512.pmaddw.d": Machine("x86_64", V4),
    "avx2.pmadd.wd": AVX2,
    "sse2.pmadd.wd": Machine("x86_64", features_of_level("x86-64")),
    "neon.usdot": Machine("aarch64", ("i8mm",)),
    "aarch64.sve.usdot": Machine("aarch64", ("i8mm", "sve256")),
}


class Weight:
    """A quantized matrix (k, n): (codes - zeros) * scales + minima, in blocks of rows."""

    def __init__(self, k: int, n: int, bits: int = 4, block: int = 32, form: str = "symmetric") -> None:
        self.k, self.n, self.block, self.half = k, n, block, 2 ** (bits - 1)
        blocks = -(-k // block)
        low = 0 if form == "minima" and bits == 4 else -self.half
        self.codes = RNG.integers(low, low + 2 * self.half, (blocks, block, n)).astype(np.int8)
        self.scales = RNG.uniform(0.5, 1.5, (blocks, 1, n)).astype(np.float16)
        self.zeros = RNG.integers(-4, 5, (blocks, 1, n)).astype(np.int8) if form == "zeros" else None
        self.minima = RNG.uniform(-8, 8, (blocks, 1, n)).astype(np.float16) if form == "minima" else None

    def expression(self, b: FunctionBuilder) -> Expr:
        real = b.op("astype", self.codes, dtype="float32")
        if self.zeros is not None:
            real = b.op("subtract", real, self.zeros.astype(np.float32))
        real = b.op("multiply", real, b.op("astype", self.scales, dtype="float32"))
        if self.minima is not None:
            real = b.op("add", real, b.op("astype", self.minima, dtype="float32"))
        flat = b.op("reshape", real, shape=(len(self.codes) * self.block, self.n))
        return b.op("strided_slice", flat, axes=(0,), begin=(0,), end=(self.k,), strides=(1,))

    def reals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers in float64, and the largest that any step of a product has in their place."""
        whole = self.codes.astype(np.float64) - (0 if self.zeros is None else self.zeros)
        real = whole * self.scales + (0 if self.minima is None else self.minima)
        largest = 2 * self.half * self.scales + np.abs(real) + (0 if self.minima is None else np.abs(self.minima))
        return tuple(np.broadcast_to(each, self.codes.shape).reshape(-1, self.n)[: self.k] for each in (real, largest))


def layer(left: tuple[Any, ...], weight: Weight, bits: int = 8) -> IRModule:
    """A product with an activation behind it; bits: of the rows."""
    b = FunctionBuilder()
    x = b.op("fake_quantize", b.input("x", (*left, weight.k)), block=weight.block, bits=bits)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", x, weight.expression(b))))})


def rounded(x: np.ndarray, block: int, bits: int) -> np.ndarray:
    b = FunctionBuilder()
    result = b.op("fake_quantize", b.input("x", x.shape), block=block, bits=bits)
    return evaluate(IRModule({"main": b.function(result)}), [x])[0]


def check(weight: Weight, x: np.ndarray, found: np.ndarray, bits: int = 8) -> None:
    """Against float64: sums of a block are exact, then a handful of roundings for each block, and one for each sum."""
    left, (real, largest) = rounded(x, weight.block, bits).astype(np.float64), weight.reals()
    bound = 2.0**-23 * (len(weight.codes) + 8) * (np.abs(left) @ largest)
    error = np.abs(found - np.maximum(left @ real, 0))
    assert (error <= bound).all(), (error / bound).max()


@given(
    form=strategies.sampled_from(["symmetric", "zeros", "minima"]),
    bits=strategies.sampled_from([4, 8]),
    block=strategies.sampled_from([16, 32, 128, 256]),
    left=strategies.sampled_from([(), (1,), (2,), (5,), (13,), (2, 3), (1, 30)]),
    k=strategies.integers(260, 600),
    n=strategies.integers(110, 200),
    of_rows=strategies.sampled_from([8, 16]),
)
@settings(max_examples=20, deadline=None)
def test_any_shape_and_block(
    form: str, bits: int, block: int, left: tuple[int, ...], k: int, n: int, of_rows: int
) -> None:
    weight = Weight(k, n, bits, block, form)
    module = layer(left, weight, of_rows)
    plan = plan_of_product(module, AVX512_VNNI)
    assert plan.dot_product is not None
    assert plan.dot_product.block is not None
    exe = ky.compile(module, backends=[], strict=True)
    assert [kernel.ops[:1] for kernel in exe.report.kernels] == [("fake_quantize",), ("dequantize",)]
    x = RNG.standard_normal((*left, k), dtype=np.float32)
    check(weight, x, exe(x).numpy(), of_rows)


@pytest.mark.parametrize(("bits", "of_rows"), [(4, 8), (8, 8), (4, 16)])
def test_rows_of_a_number_that_is_known_only_then(bits: int, of_rows: int) -> None:
    weight = Weight(320, 384, bits, form="minima")
    module = layer((dims.symbol("m"),), weight, of_rows)
    plan = plan_of_product(module, AVX512_VNNI)
    assert plan.for_fewer_rows
    assert all(each.dot_product and each.dot_product.block for each in (plan, *plan.for_fewer_rows))
    exe = ky.compile(module, backends=[], strict=True)
    machine = VirtualMachine(exe, threads=2)["main"]
    for rows in (1, 2, 3, 4, 7, 8, 17, 47, 48, 61, 130):
        x = RNG.standard_normal((rows, 320), dtype=np.float32)
        check(weight, x, exe(x).numpy(), of_rows)
        np.testing.assert_array_equal(machine(x).numpy(), exe(x).numpy())


def test_weights_are_prefetched_by_tiles_that_read_them_in_order() -> None:
    plan = plan_of_product(layer((dims.symbol("m"),), Weight(1024, 64)), AVX512_VNNI)
    by_height = {each.tiles[0][1]: each for each in (plan, *plan.for_fewer_rows)}
    assert {height: each.unroll for height, each in by_height.items()} == {12: 1, 8: 1, 4: 2, 2: 4, 1: 4}
    assert {height for height, each in by_height.items() if each.stream is not None} == {2, 1}


@pytest.mark.parametrize(("of_rows", "highest"), [(8, 12), (16, 8)])
def test_tiles_of_two_digits_are_lower(of_rows: int, highest: int) -> None:
    plan = plan_of_product(layer((dims.symbol("m"),), Weight(1024, 64), of_rows), AVX512_VNNI)
    assert plan.tiles[0][1] == highest


def test_narrow_tiles_prefetch_the_next_columns() -> None:
    plan = plan_of_product(layer((dims.symbol("m"),), Weight(1024, 128)), AVX512_VNNI, is_packed=True)
    streams = {each.tiles[0][1]: each.stream for each in (plan, *plan.for_fewer_rows)}
    are_later_blocks = {height: stream and stream.axis in plan.reduce for height, stream in streams.items()}
    assert are_later_blocks == {12: False, 8: False, 4: False, 2: True, 1: True}
    assert all(stream and stream.of_each_step for stream in streams.values())


@pytest.mark.parametrize(("bits", "lines"), [(4, 16), (8, 4)])
def test_each_line_is_prefetched_once_for_both_digits(bits: int, lines: int) -> None:
    """Of a block of 64 columns; the processor foresees those of 8-bit weights from the first ones."""
    _, text = write_module(kernels(layer((1,), Weight(1024, 64, bits), bits=16)), AVX512_VNNI)
    assert text.count("call void @llvm.prefetch.p0(") == lines


def test_weights_are_stored_once_for_one_row_and_for_many() -> None:
    weight = Weight(512, 640)
    b = FunctionBuilder()
    functions = {}
    for name, rows in (("one", 1), ("many", dims.symbol("m"))):
        b = FunctionBuilder()
        x = b.op("fake_quantize", b.input("x", (rows, 512)))
        functions[name] = b.function(b.op("matmul", x, weight.expression(b)))
    exe = ky.compile(IRModule(functions), backends=[], strict=True)
    assert sum(constant.nbytes for constant in exe.constants.values()) == 512 * 640 // 2 + 16 * 640 * 2


@pytest.mark.parametrize("instruction", MACHINES)
@pytest.mark.parametrize(("bits", "of_rows"), [(4, 8), (8, 16)])
def test_every_cpu_has_its_instruction(bits: int, of_rows: int, instruction: str) -> None:
    machine = MACHINES[instruction]
    module = layer((7,), Weight(256, 192, bits, form="minima"), of_rows)
    assert plan_of_product(module, machine).dot_product is not None
    _, text = write_module(kernels(module), machine)
    assert instruction in text
    assert _native.compile_object(text, machine)


@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("bits", "of_rows"), [(4, 8), (8, 8), (8, 16)])
def test_cpus_without_dot_products_do_not_saturate(bits: int, of_rows: int, mcpu: str) -> None:
    skip_beyond_host(mcpu)
    weight = Weight(256, 160, bits)
    weight.codes[:, :, ::2], weight.codes[:, :, 1::2] = weight.half - 1, -weight.half
    exe = ky.compile(layer((6,), weight, of_rows), Target("cpu", mcpu=mcpu), backends=[], strict=True)
    for x in (np.ones((6, 256), np.float32), -np.ones((6, 256), np.float32)):
        check(weight, x, exe(x).numpy(), of_rows)


@pytest.mark.parametrize(
    ("bits", "block", "of_rows", "is_narrow"),
    [(4, 32, 16, True), (4, 32, 8, True), (4, 16, 16, True), (4, 64, 16, False), (8, 32, 16, False)],
)
def test_sums_stay_in_16_bits_where_these_hold_them(bits: int, block: int, of_rows: int, is_narrow: bool) -> None:
    module = layer((7,), Weight(256, 192, bits, block), of_rows)
    plan = plan_of_product(module, AVX2)
    assert plan.dot_product is not None
    assert plan.dot_product.in_16_bits is is_narrow
    _, text = write_module(kernels(module), AVX2)
    assert ("avx2.pmadd.ub.sw" in text) is (bits == 4)
    for machine in (AVX512_VNNI, MACHINES["avx512.pmaddw.d"]):
        assert "pmadd.ub.sw" not in write_module(kernels(module), machine)[1]


@pytest.mark.parametrize("of_rows", [8, 16])
def test_the_largest_sums_of_16_bits_are_exact(of_rows: int) -> None:
    """Digits of -128 and 127, by the largest numbers of 4 bits and by their opposites."""
    weight = Weight(256, 128, form="zeros")
    weight.codes[...] = RNG.choice(np.array([-8, 7], np.int8), weight.codes.shape)
    weight.codes[:, :, 0], weight.codes[:, :, 1] = 7, -8
    exe = ky.compile(layer((4,), weight, of_rows), Target("cpu", mcpu="x86-64-v3"), backends=[], strict=True)
    skip_beyond_host("x86-64-v3")
    share = (127 * 256 - 128) / (127 * 256 + 127)  # of the largest code: the digits 127 and -128, or -126 and -128
    x = np.repeat(np.array([[1], [-1], [share], [-share]], np.float32), 256, 1)
    x[:, ::32] = 1  # of each block
    check(weight, x, exe(x).numpy(), of_rows)


def test_memory_beyond_the_operands_is_not_read(run) -> None:
    found = kernels(layer((5,), Weight(300, 190)))
    for function in found.values():
        inputs = [
            RNG.standard_normal(buffer.shape).astype(buffer.dtype)
            if "float" in buffer.dtype
            else RNG.integers(-99, 99, buffer.shape).astype(buffer.dtype)
            for buffer in function.inputs
        ]
        run(function, *inputs)
