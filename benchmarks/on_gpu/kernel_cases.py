"""Cases of the kernel benchmark: operators at the sizes that large networks have, and the same in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernel_cases.case import Build, Case, Spec, op

F16, BF16 = "float16", "bfloat16"
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def case(
    build: Build,
    feeds: Sequence[Spec],
    torch_of: Callable[..., Any],
    *,
    flops: float = 0.0,
    nbytes: float = 0.0,
    weights: Sequence[Spec] = (),
) -> Case:
    """A case; torch_of: the same with PyTorch's tensors. Its name is its place in a table of `kernel_cases`."""

    def run(torch: Any, *operands: Any) -> Callable[[], Any]:
        return lambda: torch_of(torch, *operands)

    return Case("", "", build, feeds, weights, flops, nbytes, run)


def product(rows: int, depth: int, columns: int, dtype: str = F16, transposed: bool = False) -> Case:
    """x @ w, or x @ w.T; both change from call to call. Few rows are bound by reading, and rated so."""
    x, w = Spec((rows, depth), dtype), Spec((columns, depth) if transposed else (depth, columns), dtype)
    nbytes = x.nbytes + w.nbytes + Spec((rows, columns), dtype).nbytes

    def build(b: Any, x: Any, w: Any) -> Any:
        return b.op("matmul", x, b.op("permute_dims", w, axes=(1, 0)) if transposed else w)

    flops = 0.0 if rows <= 16 else 2.0 * rows * depth * columns
    return case(build, (x, w), lambda torch, x, w: x @ (w.T if transposed else w), flops=flops, nbytes=nbytes)


def attention(batch: int, rows: int, heads: int, size: int, dtype: str = F16, causal: bool = True) -> Case:
    """The arithmetic is that of the scores that count."""
    q = Spec((batch, rows, heads, size), dtype)
    build = op("nn.attention", causal="top_left" if causal else "none")

    def torch_of(torch: Any, *operands: Any) -> Any:
        q, k, v = (each.transpose(1, 2) for each in operands)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    flops = 4.0 * batch * heads * rows * rows * size / (2 if causal else 1)
    return case(build, (q, q, q), torch_of, flops=flops, nbytes=4.0 * q.nbytes)


def convolution(batch: int, channels: int, size: int, last: bool, dtype: str = F16) -> Case:
    """3 x 3, as many filters as channels; last: images and weights have their channels last."""
    x = Spec((batch, size, size, channels) if last else (batch, channels, size, size), dtype)
    w = Spec((channels, 3, 3, channels) if last else (channels, channels, 3, 3), dtype)

    def build(b: Any, x: Any, w: Any) -> Any:
        if not last:
            return b.op("nn.conv2d", x, w, padding=(1, 1, 1, 1))
        x, w = (b.op("permute_dims", each, axes=TO_FIRST) for each in (x, w))
        return b.op("permute_dims", b.op("nn.conv2d", x, w, padding=(1, 1, 1, 1)), axes=TO_LAST)

    def torch_of(torch: Any, x: Any, w: Any) -> Any:
        if not last:
            return torch.nn.functional.conv2d(x, w, padding=1)
        return torch.nn.functional.conv2d(x.permute(TO_FIRST), w.permute(TO_FIRST), padding=1).permute(TO_LAST)

    flops = 2.0 * batch * size**2 * channels**2 * 9
    return case(build, (x,), torch_of, weights=(w,), flops=flops, nbytes=2.0 * x.nbytes + w.nbytes)


def layer_norm(rows: int, columns: int, dtype: str = F16) -> Case:
    """Over the last axis, with scale and shift."""
    x, parameter = Spec((rows, columns), dtype), Spec((columns,), dtype)

    def torch_of(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    build = op("nn.layer_norm", axes=(1,), epsilon=1e-5)
    return case(build, (x,), torch_of, weights=(parameter, parameter), nbytes=2.0 * x.nbytes)


def softmax(rows: int, columns: int, dtype: str = F16) -> Case:
    """Over the last axis."""
    x = Spec((rows, columns), dtype)
    return case(op("nn.softmax", axis=1), (x,), lambda torch, x: torch.softmax(x, 1), nbytes=2.0 * x.nbytes)


def elementwise(name: str, count: int, torch_of: Callable[..., Any], arity: int = 1, dtype: str = F16) -> Case:
    """An operator of one tensor or two."""
    x = Spec((count // 4096 or 1, min(count, 4096)), dtype)
    return case(op(name), (x,) * arity, torch_of, nbytes=(arity + 1.0) * x.nbytes)


def argmax(rows: int, columns: int, dtype: str = F16) -> Case:
    """Over the last axis: what a greedy decoder does for each word."""
    x = Spec((rows, columns), dtype)
    return case(op("argmax", axis=1), (x,), lambda torch, x: torch.argmax(x, 1), nbytes=float(x.nbytes))


def sum_of_rows(rows: int, columns: int, dtype: str = F16) -> Case:
    """Columns are kept."""
    x = Spec((rows, columns), dtype)
    return case(op("sum", axes=(0,)), (x,), lambda torch, x: torch.sum(x, 0), nbytes=float(x.nbytes))


KERNELS: Mapping[str, Callable[[], Case]] = {
    "negative_256mib": partial(elementwise, "negative", 1 << 27, lambda torch, x: -x),  # the ceiling of memory
    "matmul_8192_bf16": partial(product, 8192, 8192, 8192, BF16),  # the ceiling of arithmetic
    "matmul_4096_f16": partial(product, 4096, 4096, 4096),
    "matmul_4096_f16_transposed": partial(product, 4096, 4096, 4096, transposed=True),
    "gemv_transposed": partial(product, 1, 4096, 11008, transposed=True),
    "gemv": partial(product, 1, 4096, 11008),
    "gemv_batch8": partial(product, 8, 4096, 11008),
    "gemv_batch16": partial(product, 16, 4096, 11008),
    "attention_2048": partial(attention, 4, 2048, 16, 128),
    "attention_8192": partial(attention, 1, 8192, 16, 128),
    "attention_2048_bf16": partial(attention, 4, 2048, 16, 128, BF16),
    "conv3x3_64": partial(convolution, 32, 64, 56, False),
    "conv3x3_64_last": partial(convolution, 32, 64, 56, True),
    "conv3x3_256_last": partial(convolution, 32, 256, 14, True),
    "layer_norm_4096": partial(layer_norm, 8192, 4096),
    "layer_norm_768": partial(layer_norm, 8192, 768),
    "softmax_2048": partial(softmax, 8192, 2048),
    "softmax_50257": partial(softmax, 128, 50257),
    "add": partial(elementwise, "add", 1 << 26, lambda torch, x, y: x + y, 2),
    "gelu": partial(elementwise, "nn.gelu", 1 << 26, lambda torch, x: torch.nn.functional.gelu(x)),
    "argmax_50257": partial(argmax, 1, 50257),
    "argmax_50257_batch128": partial(argmax, 128, 50257),
    "sum_of_rows": partial(sum_of_rows, 8192, 4096),
}

# The same kinds, as small as the emulator wants them.
QUICK_KERNELS: Mapping[str, Callable[[], Case]] = {
    "matmul": partial(product, 33, 40, 24),
    "gemv_transposed": partial(product, 1, 48, 40, transposed=True),
    "attention": partial(attention, 1, 9, 2, 16),
    "conv3x3_last": partial(convolution, 1, 8, 6, True),
    "layer_norm": partial(layer_norm, 3, 40),
    "softmax": partial(softmax, 3, 50),
    "add": partial(elementwise, "add", 4096, lambda torch, x, y: x + y, 2),
    "argmax": partial(argmax, 2, 70),
    "sum_of_rows": partial(sum_of_rows, 20, 9),
}
