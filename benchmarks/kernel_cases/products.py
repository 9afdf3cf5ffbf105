"""Matrix products: large ones, batches, products with a few rows (decoding), other element types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernel_cases.case import Case, Spec, op, sizes
from kernelyard.ir import Expr, FunctionBuilder

Shape = Sequence[int]


def cases() -> Iterator[Case]:
    """All of this family."""
    yield from _large()
    yield from _batches()
    yield from _few_rows()
    yield from _narrow()


def _product(
    kind: str, a: Shape, b: Shape, *, moving: bool = False, transposed: bool = False, dtype: str = "float32"
) -> Case:
    """moving: both operands are given per call. transposed: the second one lies transposed."""
    left, right = Spec(tuple(a), dtype), Spec((*b[:-2], b[-1], b[-2]) if transposed else tuple(b), dtype)
    result = Spec((*np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])), a[-2], b[-1]), dtype)
    axes = (*range(len(b) - 2), len(b) - 1, len(b) - 2)

    def build(builder: FunctionBuilder, x: Any, w: Any) -> Expr:
        return builder.op("matmul", x, builder.op("permute_dims", w, axes=axes) if transposed else w)

    def run(torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        out = torch.empty(result.shape, dtype=x.dtype)
        right = w.transpose(-1, -2) if transposed else w
        return lambda: torch.matmul(x, right, out=out)

    words = [f"{sizes(a)} @ {sizes(b)}", *(["moving"] * moving), *(["transposed"] * transposed)]
    name = " ".join([*words, *([dtype] if dtype != "float32" else [])])
    feeds, weights = ((left, right), ()) if moving else ((left,), (right,))
    nbytes = left.nbytes + right.nbytes + result.nbytes
    return Case(kind, name, build, feeds, weights, 2.0 * result.size * a[-1], nbytes, run)


def _large() -> Iterator[Case]:
    yield _product("matmul", (1024, 1024), (1024, 1024))
    yield _product("matmul", (1024, 1024), (1024, 1024), moving=True)
    yield _product("matmul", (1024, 1024), (1024, 1024), moving=True, transposed=True)
    for k, n in ((768, 768), (768, 3072), (3072, 768), (384, 1536)):
        yield _product("matmul", (128, k), (k, n))
    yield _product("matmul", (1000, 333), (333, 777))
    yield _product("matmul", (511, 513), (513, 509), moving=True)
    yield _product("matmul", (2048, 16), (16, 2048))
    yield _product("matmul", (8192, 64), (64, 32))
    yield _product("matmul", (32, 8192), (8192, 32), moving=True)
    yield _product("matmul", (197, 768), (768, 1000), moving=True, transposed=True)


def _batches() -> Iterator[Case]:
    yield _product("matmul", (12, 128, 64), (12, 64, 128), moving=True)
    yield _product("matmul", (12, 128, 64), (12, 64, 128), moving=True, transposed=True)
    yield _product("matmul", (12, 128, 128), (12, 128, 64), moving=True)
    yield _product("matmul", (64, 49, 32), (64, 32, 49), moving=True)


def _few_rows() -> Iterator[Case]:
    for rows in (1, 2, 4, 8, 16):
        yield _product("decode", (rows, 4096), (4096, 11008))
    for rows in (1, 4, 8, 16):
        yield _product("decode", (rows, 4096), (4096, 11008), moving=True)
        yield _product("decode", (rows, 4096), (4096, 11008), moving=True, transposed=True)
    for rows in (1, 6, 12):
        yield _product("decode", (rows, 4099), (4099, 10999))
        yield _product("decode", (rows, 4099), (4099, 10999), moving=True)
        yield _product("decode", (rows, 4099), (4099, 10999), moving=True, transposed=True)
    yield _product("decode", (1, 11008), (11008, 4096))
    yield _product("decode", (1, 768), (768, 3072))
    yield _product("decode", (1, 2048), (2048, 1000))


def _narrow() -> Iterator[Case]:
    for dtype in ("bfloat16", "float16"):
        for rows in (1, 8):
            yield _product("decode", (rows, 4096), (4096, 11008), dtype=dtype)
        yield _product("decode", (1, 4096), (4096, 11008), moving=True, transposed=True, dtype=dtype)
        yield _product("matmul", (256, 512), (512, 512), dtype=dtype)
    yield _restored(1, 4096, 11008)
    yield _whole_numbers(256, 512, 512)


def _restored(rows: int, k: int, n: int) -> Case:
    """int8 weights with a scale per column."""

    def build(b: FunctionBuilder, x: Any, w: Any, scale: Any) -> Expr:
        return b.op("matmul", x, b.op("dequantize", w, scale, np.zeros(n, np.int8), axis=1))

    def run(torch: Any, x: Any, w: Any, scale: Any) -> Callable[[], Any]:
        return lambda: torch.matmul(x, w.to(torch.float32) * scale)

    operands = Spec((rows, k)), Spec((k, n), "int8"), Spec((n,))
    nbytes = sum(each.nbytes for each in operands) + 4.0 * rows * n
    name = f"{rows}x{k} @ {k}x{n} int8 weights"
    return Case("decode", name, build, operands[:1], operands[1:], 2.0 * rows * n * k, nbytes, run)


def _whole_numbers(rows: int, k: int, n: int) -> Case:
    left, right = Spec((rows, k), "int32"), Spec((k, n), "int32")
    nbytes = left.nbytes + right.nbytes + 4.0 * rows * n

    def run(torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        return lambda: torch.matmul(x, w)

    name = f"{rows}x{k} @ {k}x{n} int32"
    return Case("matmul", name, op("matmul"), (left,), (right,), 2.0 * rows * n * k, nbytes, run)
