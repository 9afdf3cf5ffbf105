"""Row-wise kernels: softmax and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kernel_cases.case import Case, Spec, op, sizes


def cases() -> Iterator[Case]:
    """All of this family."""
    for shape in ((1, 1000), (1, 32000), (1536, 128), (128, 1000), (1024, 4096), (197, 197), (12, 77, 77)):
        yield _softmax(shape, len(shape) - 1)
    yield _softmax((64, 21, 1024), 1)
    yield _softmax((1000, 64), 0)
    yield _softmax((8, 50, 7), 1)
    yield _softmax((128, 1000), 1, of_torch="log_softmax")
    for shape in ((128, 384), (128, 768), (77, 101), (2048, 1024), (16, 8192)):
        yield _layer_norm(shape)
    for shape in ((1, 4096), (128, 4096)):
        yield _rms_norm(shape)
    for groups, shape in ((32, (1, 320, 64, 64)), (32, (2, 512, 16, 16)), (8, (1, 64, 7, 9))):
        yield _group_norm(groups, shape)


def _softmax(shape: tuple[int, ...], axis: int, of_torch: str = "softmax") -> Case:
    x = Spec(shape)

    def run(torch: Any, x: Any) -> Callable[[], Any]:
        out, function = torch.empty(x.shape), getattr(torch, of_torch)
        return lambda: function(x, axis, out=out)

    build = op(f"nn.{of_torch}", axis=axis)
    return Case("rows", f"{of_torch} {sizes(shape)} on {axis}", build, (x,), (), 20.0 * x.size, 2.0 * x.nbytes, run)


def _layer_norm(shape: tuple[int, int]) -> Case:
    x, parameter = Spec(shape), Spec(shape[1:])

    def run(torch: Any, x: Any, gamma: Any, beta: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)

    build, weights = op("nn.layer_norm", axes=(1,)), (parameter, parameter)
    return Case("rows", f"layer_norm {sizes(shape)}", build, (x,), weights, 8.0 * x.size, 2.0 * x.nbytes, run)


def _rms_norm(shape: tuple[int, int]) -> Case:
    x, gamma = Spec(shape), Spec(shape[1:])

    def run(torch: Any, x: Any, gamma: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-5)

    build = op("nn.rms_norm", axes=(1,))
    return Case("rows", f"rms_norm {sizes(shape)}", build, (x,), (gamma,), 6.0 * x.size, 2.0 * x.nbytes, run)


def _group_norm(groups: int, shape: tuple[int, ...]) -> Case:
    x, parameter = Spec(shape), Spec(shape[1:2])

    def run(torch: Any, x: Any, gamma: Any, beta: Any) -> Callable[[], Any]:
        return lambda: torch.nn.functional.group_norm(x, groups, gamma, beta, 1e-5)

    name, weights = f"group_norm {sizes(shape)} in {groups}", (parameter, parameter)
    build = op("nn.group_norm", num_groups=groups)
    return Case("rows", name, build, (x,), weights, 8.0 * x.size, 2.0 * x.nbytes, run)
