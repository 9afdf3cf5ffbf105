"""Maps: each element by itself, of sizes for each level of the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kernel_cases.case import Case, Spec, op, sizes

# In the first cache, odd, in the second, in the third, in memory.
SIZES = ((8, 512), (37, 101), (128, 768), (128, 3072), (4096, 4096))
FUNCTIONS = {
    "nn.relu": "relu",
    "nn.gelu": "gelu",
    "nn.gelu_tanh": "gelu_tanh",
    "nn.silu": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "erf": "erf",
}


def cases() -> Iterator[Case]:
    """All of this family."""
    for name, of_torch in FUNCTIONS.items():
        for shape in SIZES:
            yield _map(name, of_torch, Spec(shape))
    for shape in SIZES:
        yield _map("add", "add", Spec(shape), Spec(shape))
    for name, of_torch in (("multiply", "mul"), ("divide", "div"), ("maximum", "maximum")):
        yield _map(name, of_torch, Spec((128, 3072)), Spec((128, 3072)))
    yield from _broadcast()
    yield from _others()


def _map(name: str, of_torch: str, *operands: Spec) -> Case:
    result = Spec(tuple(np.broadcast_shapes(*(each.shape for each in operands))))

    def run(torch: Any, *args: Any) -> Callable[[], Any]:
        functional = torch.nn.functional
        if of_torch == "gelu_tanh":
            return lambda: functional.gelu(*args, approximate="tanh")
        if of_torch in ("relu", "gelu", "silu"):
            return lambda: getattr(functional, of_torch)(*args)
        out, function = torch.empty(result.shape), getattr(torch, of_torch)
        return lambda: function(*args, out=out)

    label = f"{name.removeprefix('nn.')} {', '.join(dict.fromkeys(sizes(each.shape) for each in operands))}"
    nbytes = sum(each.nbytes for each in operands) + result.nbytes
    return Case("elementwise", label, op(name), operands, (), float(result.size), nbytes, run)


def _broadcast() -> Iterator[Case]:
    for name, of_torch in (("add", "add"), ("multiply", "mul")):
        yield _map(name, of_torch, Spec((128, 3072)), Spec((3072,)))
        yield _map(name, of_torch, Spec((1, 64, 56, 56)), Spec((64, 1, 1)))
        yield _map(name, of_torch, Spec((512, 1)), Spec((1, 768)))


def _others() -> Iterator[Case]:
    shape = (128, 3072)
    size = Spec(shape).size

    def where(torch: Any, c: Any, x: Any, y: Any) -> Callable[[], Any]:
        out = torch.empty(shape)
        return lambda: torch.where(c, x, y, out=out)

    operands = Spec(shape, "bool"), Spec(shape), Spec(shape)
    yield Case("elementwise", "where 128x3072", op("where"), operands, (), size, 13.0 * size, where)
    for source, target in (
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float32", "float16"),
        ("int64", "float32"),
        ("float32", "int8"),
    ):
        yield _cast(Spec(shape, source), Spec(shape, target))


def _cast(source: Spec, target: Spec) -> Case:
    def run(torch: Any, x: Any) -> Callable[[], Any]:
        out = torch.empty(target.shape, dtype=getattr(torch, target.dtype))
        return lambda: out.copy_(x)

    name = f"{source.dtype} to {target.dtype} {sizes(source.shape)}"
    build = op("astype", dtype=target.dtype)
    return Case("elementwise", name, build, (source,), (), 0.0, source.nbytes + target.nbytes, run)
