"""What the checks accept cuDNN has plans for, and what they decline it has not: asked of cuDNN itself, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.patterns import FusionPattern
from kernelyard.transform import FuseOpsByPattern
from kernelyard.transform.partition.region import Region
from kernelyard_cudnn import planning
from kernelyard_cudnn.backend import CudnnBackend, CudnnSerializer, Options
from kernelyard_cudnn.checks import Checks
from kernelyard_cudnn.devices import read_properties
from kernelyard_cudnn.patterns import fusion_patterns
from kernelyard_cudnn.runtime import lower_graph

from .conftest import module_of, numbers

pytestmark = pytest.mark.cuda_libs

F16, BF16, F32, F8 = "float16", "bfloat16", "float32", "float8_e4m3fn"
LAST, FIRST = "last", "first"
BIAS, RELU, SUM = "bias", "nn.relu", "residual"


class Case(NamedTuple):
    name: str
    build: Callable[[FunctionBuilder], Var]
    tf32: bool = False
    gpus: tuple[str, ...] = ("a100", "h200")


# --- convolutions -----------------------------------------------------------------------------------------------------
def convolution(
    b: FunctionBuilder,
    dtype: str,
    layout: str,
    stages: tuple[str, ...],
    c: int = 64,
    k: int = 64,
    size: int = 14,
    kernel: int = 3,
    pad: int = 1,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    rank: int = 2,
    transposed: bool = False,
    parameter: bool = False,
) -> Var:
    """The images, weights and results all lie in one layout."""
    n = rank + 2
    last, first = (0, *range(2, n), 1), (0, n - 1, *range(1, n - 1))
    stored = (2, *[size] * rank, c) if layout == LAST else (2, c, *[size] * rank)
    x = b.input("x", stored, dtype)
    x = b.op("permute_dims", x, axes=first) if layout == LAST else x
    shape = (c, k // groups) if transposed else (k, c // groups)
    weight = numbers(*shape, *[kernel] * rank, dtype=dtype)
    w = b.input("w", weight.shape, dtype) if parameter else weight
    attrs: dict[str, Any] = {"output_padding": (stride - 1,) * rank} if transposed else {}
    window = {"padding": (pad,) * (2 * rank), "strides": (stride,) * rank, "dilation": (dilation,) * rank}
    op = f"nn.conv{rank}d{'_transpose' if transposed else ''}"
    y = b.op(op, x, w, groups=groups, **window, **attrs)
    y = b.op("permute_dims", y, axes=last) if layout == LAST else y
    bias = (1, *[1] * rank, k) if layout == LAST else (1, k, *[1] * rank)
    for number, stage in enumerate(stages):
        if stage in ("bias", "scale"):
            y = b.op("add" if stage == "bias" else "multiply", y, numbers(*bias, dtype=dtype, seed=number))
        elif stage == "residual":
            y = b.op("add", y, b.input(f"r{number}", y.tensor_type.shape, dtype))
        elif stage == "clip":
            y = b.op("clip", y, min=0.0, max=6.0)
        else:
            y = b.op(stage, y)
    return y


def conv(name: str, dtype: str, layout: str, *stages: str, tf32: bool = False, **sizes: Any) -> Case:
    return Case(
        f"{name}, {dtype} {layout}{' tf32' if tf32 else ''}",
        partial(convolution, dtype=dtype, layout=layout, stages=stages, **sizes),
        tf32,
    )


def convolutions() -> list[Case]:
    cases: list[Case] = []
    for dtype in (F16, BF16, F32):
        for layout in (FIRST, LAST):
            cases += [
                conv("plain", dtype, layout),
                conv("bias and relu", dtype, layout, BIAS, RELU),
                conv("bias and clip", dtype, layout, BIAS, "clip"),
                conv("bias, residual, relu", dtype, layout, BIAS, SUM, RELU),
                conv("relu alone", dtype, layout, RELU),
            ]
    for layout in (FIRST, LAST):
        cases += [
            conv("three channels", F16, layout, BIAS, RELU, c=3, kernel=7, pad=3, stride=2),
            conv("odd channels", F16, layout, BIAS, c=5, k=7),
            conv("one channel", F32, layout, c=1),
            conv("two groups", F16, layout, BIAS, RELU, groups=2),
            conv("depthwise", F32, layout, groups=64),
            conv("depthwise and relu", F16, layout, BIAS, RELU, groups=64),
            conv("dilated", F16, layout, pad=2, dilation=2),
            conv("strided", F32, layout, BIAS, stride=2),
            conv("bias and gelu", F16, layout, BIAS, "nn.gelu"),
            conv("bias and silu", F16, layout, BIAS, "nn.silu"),
            conv("bias and sigmoid", F32, layout, BIAS, "sigmoid"),
            conv("scale and bias", F16, layout, "scale", BIAS),
            conv("volumes", F16, layout, BIAS, RELU, rank=3, size=6),
            conv("volumes", F32, layout, rank=3, size=6),
            conv("volumes and residual", F16, layout, BIAS, SUM, rank=3, size=6),
            conv("volumes and residual", F32, layout, BIAS, SUM, rank=3, size=6),
            conv("sequences", F16, layout, BIAS, RELU, rank=1),
            conv("sequences and residual", F16, layout, BIAS, SUM, rank=1),
            conv("plain", F8, layout),
            conv("bias and relu", F8, layout, BIAS, RELU),
            conv("depthwise", F8, layout, groups=64),
            conv("transposed", F16, layout, transposed=True, stride=2),
            conv("transposed", F32, layout, transposed=True, stride=2),
            conv("transposed and bias", F16, layout, BIAS, transposed=True, stride=2),
            conv("transposed and bias", F32, layout, BIAS, transposed=True, stride=2),
            conv("transposed, grouped", F16, layout, transposed=True, groups=2, stride=3),
            conv("transposed volumes", F16, layout, transposed=True, rank=3, size=5, stride=2),
            conv("transposed", F8, layout, transposed=True, stride=2),
        ]
    return [
        *cases,
        conv("gelu", F32, LAST, BIAS, "nn.gelu", tf32=True),
        conv("residual", F32, FIRST, BIAS, SUM, tf32=True),
        conv("volumes and residual", F32, LAST, BIAS, SUM, rank=3, size=6, tf32=True),
        conv("residual, grouped", F16, LAST, BIAS, SUM, RELU, groups=2),
        conv("residual, odd channels", F16, LAST, BIAS, SUM, RELU, c=5, k=7),
        conv("weights as they come, residual", F16, LAST, BIAS, SUM, parameter=True),
        conv("weights as they come, residual", F32, LAST, BIAS, SUM, parameter=True),
        conv("weights as they come", F32, LAST, BIAS, RELU, parameter=True),
    ]


# --- attention --------------------------------------------------------------------------------------------------------
def attention(
    b: FunctionBuilder,
    dtype: str = F16,
    rows: int = 32,
    columns: int = 32,
    heads: int = 4,
    shared: int = 4,
    size: int = 64,
    wide: int | None = None,
    causal: str = "none",
    bias: tuple[int, ...] | None = None,
    lengths: bool = False,
) -> Var:
    shapes = [(2, rows, heads, size), (2, columns, shared, size), (2, columns, shared, wide or size)]
    operands = [b.input(name, shape, dtype) for name, shape in zip("qkv", shapes, strict=True)]
    if lengths:
        visible = b.op("less", np.arange(columns, dtype=np.int32), b.input("lengths", (2, 1, 1, 1), "int32"))
        zero, least = (np.array(value, ky.dtypes.to_numpy(dtype)) for value in (0, -np.inf))
        return b.op("nn.attention_bias", *operands, b.op("where", visible, zero, least), causal=causal)
    if bias is not None:
        return b.op("nn.attention_bias", *operands, b.input("bias", bias, dtype), causal=causal)
    return b.op("nn.attention", *operands, causal=causal)


def attentions() -> list[Case]:
    rows: dict[str, dict[str, Any]] = {
        "plain": {},
        "bfloat16": {"dtype": BF16},
        "float32": {"dtype": F32},
        "float8": {"dtype": F8},
        "heads of 63": {"size": 63},
        "heads of 260": {"size": 260},
        "heads of 4": {"size": 4},
        "heads of 24": {"size": 24},
        "heads of 128": {"size": 128},
        "heads of 256": {"size": 256},
        "wider values": {"wide": 128},
        "odd values": {"wide": 20},
        "one query": {"rows": 1},
        "odd sequences": {"rows": 7, "columns": 9},
        "grouped queries": {"shared": 2},
        "one head of keys": {"shared": 1},
        "causal": {"causal": "top_left"},
        "causal from the end": {"causal": "bottom_right", "rows": 16},
        "causal from the end, more queries than keys": {"causal": "bottom_right", "columns": 16},
        "bias": {"bias": (2, 4, 32, 32)},
        "bias of keys": {"bias": (2, 1, 1, 32)},
        "bias of one row": {"bias": (32,)},
        "bias and causal": {"bias": (1, 1, 32, 32), "causal": "top_left"},
        "bias and causal from the end": {"bias": (1, 1, 32, 32), "causal": "bottom_right"},
        "lengths": {"lengths": True},
        "lengths and causal": {"lengths": True, "causal": "top_left"},
    }
    return [Case(f"attention: {name}", partial(attention, **row)) for name, row in rows.items()]


# --- norms ------------------------------------------------------------------------------------------------------------
def norm(b: FunctionBuilder, op: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> Var:
    inner = [shape[axis] for axis in axes]
    count = 2 if op == "nn.layer_norm" else 1
    parameters = [numbers(*inner, dtype=dtype, seed=n) for n in range(count)]
    return b.op(op, b.input("x", shape, dtype), *parameters, axes=axes)


def norms() -> list[Case]:
    return [
        Case(f"{op}: {label}, {dtype}", partial(norm, op=op, dtype=dtype, shape=shape, axes=axes))
        for op in ("nn.layer_norm", "nn.rms_norm")
        for label, shape, axes in (("rows", (4, 32, 768), (2,)), ("odd rows, two axes", (3, 5, 17), (1, 2)))
        for dtype in (F16, BF16, F32, F8)
    ]


CASES = [*convolutions(), *attentions(), *norms()]


# --- the two answers --------------------------------------------------------------------------------------------------
def grouped(module: IRModule, patterns: list[FusionPattern]) -> list[Region]:
    """The regions, where all of the program is one."""
    fused = FuseOpsByPattern(patterns, annotate_codegen=True)(module)
    main = fused.graph_functions()["main"]
    regions = {name: f for name, f in fused.graph_functions().items() if "Codegen" in f.attrs}
    if len(main.bindings) != 1 or len(regions) != 1:
        return []
    return [Region(name, "cudnn", f, fused) for name, f in regions.items()]


def our_answer(case: Case, gpu: str) -> bool:
    arch = "sm_{}{}".format(*read_properties(gpu).capability)
    patterns = CudnnBackend(Options(tf32=case.tf32)).patterns(ky.Target("cuda", arch=arch))
    return bool(grouped(module_of(case.build), list(patterns)))


def answer_of(cudnn: Any, case: Case, gpu: str) -> tuple[bool, str]:
    """What cuDNN says of the graph that would be asked of it, whatever our checks think."""
    unchecked = [replace(p, check=None) for p in fusion_patterns(Checks(ky.Target("cuda"), case.tf32))]
    (region,) = grouped(module_of(case.build), unchecked)
    graph = CudnnSerializer(Options(tf32=case.tf32)).serialize(region)
    try:
        made = planning.plan_for(cudnn, lower_graph(graph, {}).graph, read_properties(gpu))
    except planning.NoPlanError as error:
        return False, str(error.found)
    return made.get_workspace_size() >= 0, ""


def test_the_table_is_large() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("gpu", ["a100", "h200"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_checks_agree_with_cudnn(cudnn: Any, case: Case, gpu: str) -> None:
    ours, (its, reason) = our_answer(case, gpu), answer_of(cudnn, case, gpu)
    assert ours == its, reason or "cuDNN has a plan"
