"""Matrix fragments of the PTX interpreter: products by tensor cores and loads of their operands, against NumPy.

Elements are put into registers one by one, by the tables of the PTX ISA's section "Matrix Fragments for mma", in the
terms of its pseudo-code: groupID and threadID_in_group.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx.snippets import kernel, launch

RANDOM = np.random.default_rng(0)
# Of each type of factors: the elements of a register, and NumPy's type.
FACTORS = {
    "f16": (2, np.float16),
    "bf16": (2, ml_dtypes.bfloat16),
    "tf32": (1, np.float32),
    "s8": (4, np.int8),
}
PRODUCTS = [("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8), ("s8", 16), ("s8", 32)]


def row_of_a(lane, register):
    return lane // 4 + (8 if register % 2 else 0)


def fragments(a, b, each):
    """Return the fragments of A (16, k) and B (k, 8) that each lane holds, as bytes of its registers."""
    k = a.shape[1]
    count_a, count_b = 16 * k // 32 // each, 8 * k // 32 // each
    of_a = [
        [
            a[row_of_a(lane, i), k // (count_a // 2) * (i // 2) + lane % 4 * each + e]
            for i in range(count_a)
            for e in range(each)
        ]
        for lane in range(32)
    ]
    of_b = [
        [b[k // count_b * i + lane % 4 * each + e, lane // 4] for i in range(count_b) for e in range(each)]
        for lane in range(32)
    ]
    return np.array(of_a, a.dtype), np.array(of_b, b.dtype), count_a, count_b


def vector(first, count, kind="r"):
    return "{" + ", ".join(f"%{kind}{first + number}" for number in range(count)) + "}"


@pytest.mark.parametrize(("name", "k"), PRODUCTS)
def test_products(name, k):
    each, dtype = FACTORS[name]
    if name == "s8":
        a, b = (RANDOM.integers(-128, 128, shape).astype(np.int8) for shape in ((16, k), (k, 8)))
    else:
        a, b = (RANDOM.integers(-9, 9, shape).astype(dtype) for shape in ((16, k), (k, 8)))
    total = "s32" if name == "s8" else "f32"
    c = RANDOM.integers(-99, 99, (16, 8)).astype(np.int32 if name == "s8" else np.float32)
    of_a, of_b, count_a, count_b = fragments(a, b, each)
    of_c = np.array([[c[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] for i in range(4)] for lane in range(32)])
    loads = []
    for number, (first, count) in enumerate([(0, count_a), (8, count_b), (16, 4)]):
        loads.append(f"mul.wide.u32 %rd20, %t, {4 * count}; add.u64 %rd21, %rd{number}, %rd20;")
        loads += [f"ld.global.b32 %r{first + i}, [%rd21+{4 * i}];" for i in range(count)]
    product = f"mma.sync.aligned.m16n8k{k}.row.col.{total}.{name}.{name}.{total}"
    body = f"""{"".join(loads)}
    {product} {vector(20, 4)}, {vector(0, count_a)}, {vector(8, count_b)}, {vector(16, 4)};
    st.global.v4.b32 [%rd21], {vector(20, 4)};"""
    found = launch(kernel(body, 3), [of_a, of_b, of_c])[2]
    z = c + a.astype(np.float64) @ b.astype(np.float64)
    wanted = [[z[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] for i in range(4)] for lane in range(32)]
    np.testing.assert_array_equal(found, wanted)


def test_tf32_has_ten_bits():
    """Check that bits of a register below them are not read."""
    body = f"""mov.b32 %r0, 0f3F800FFF; mov.b32 %r8, 0f3F800000; mov.f32 %f0, 0f00000000;
    mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {vector(1, 4, "f")}, {{%r0, %r0}}, {{%r8}}, {{%f0, %f0, %f0, %f0}};
    mad.wide.u32 %rd10, %t, 4, %rd0; st.global.f32 [%rd10], %f1;"""
    np.testing.assert_array_equal(launch(kernel(body, 1), [np.zeros(32, np.float32)])[0], np.full(32, 4))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded(count, transposed):
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    trans = ".trans" if transposed else ""
    body = f""".shared .align 16 .b8 room[512]; mov.u32 %r0, room; shl.b32 %r1, %t, 4; add.u32 %r0, %r0, %r1;
    mul.wide.u32 %rd20, %t, 16; add.u64 %rd21, %rd0, %rd20; add.u64 %rd22, %rd1, %rd20;
    ld.global.v4.b32 {vector(4, 4)}, [%rd21]; st.shared.v4.b32 [%r0], {vector(4, 4)}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {vector(8, count)}, [%r0];
    st.global.v4.b32 [%rd22], {vector(8, 4)};"""
    found = launch(kernel(body, 2), [matrices, np.zeros((32, 4), np.uint32)])[1]
    for lane in range(32):
        for number in range(count):
            matrix = matrices[number].T if transposed else matrices[number]
            two = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert found[lane, number] == int(two[0]) | int(two[1]) << 16
