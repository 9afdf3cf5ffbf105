"""Convolutions: layouts, epilogues and dtypes on the emulator, and every reason to decline one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, Var
from kernelyard.placement.partition import partition_for
from kernelyard.placement.recorder import Recorder
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

from .conftest import compiled, declined, feeds_of, module_of, numbers

N, H = symbol("n"), symbol("h")
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
SIZES = ({"n": 1, "h": 5}, {"n": 3, "h": 8})


def image(b: FunctionBuilder, dtype: str = "float32", channels: int = 8) -> Var:
    return b.input("x", (N, channels, H, 6), dtype)


def conv(
    b: FunctionBuilder, dtype: str = "float32", channels: int = 8, out: int = 8, groups: int = 1, **attrs: Any
) -> Var:
    attrs.setdefault("padding", (1, 1, 1, 1))
    weight = numbers(out, channels // groups, 3, 3, dtype=dtype)
    return b.op("nn.conv2d", image(b, dtype, channels), weight, groups=groups, **attrs)


def block(b: FunctionBuilder, dtype: str, *stages: str) -> Var:
    y = conv(b, dtype)
    for number, stage in enumerate(stages):
        if stage == "residual":
            y = b.op("add", y, b.input("residual", (N, 8, H, 6), dtype))
        elif stage == "bias":
            y = b.op("add", y, numbers(8, 1, 1, dtype=dtype, seed=number))
        else:
            y = b.op(stage, y)
    return y


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("stages", [(), ("bias",), ("bias", "nn.relu"), ("bias", "tanh")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bias_and_activation_in_each_layout(machine: Any, dtype: str, stages: tuple[str, ...], layout: str) -> None:
    module = module_of(lambda b: block(b, dtype, *stages))
    exe = compiled(module, layout=layout)
    assert_offloaded(exe, "cudnn", "cudnn.conv2d")
    assert {region.ops[-1] for region in exe.report.regions} <= {"nn.conv2d", "add", "nn.relu", "tanh", "permute_dims"}
    for sizes in SIZES:
        feeds = feeds_of(module, **sizes)
        assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


def test_convolutions_of_one_image_read_it_channels_last(machine: Any) -> None:
    """As a residual block that makes images smaller has them: no permutation is a step of its own."""

    def build(b: FunctionBuilder) -> Var:
        x = b.op("nn.relu", conv(b, "float16"))
        left = b.op("nn.relu", b.op("nn.conv2d", x, numbers(8, 8, 3, 3, dtype="float16"), padding=(1, 1, 1, 1)))
        return b.op("add", left, b.op("nn.conv2d", x, numbers(8, 8, 1, 1, dtype="float16", seed=1)))

    module = module_of(build)
    exe = compiled(module)
    assert_offloaded(exe, "cudnn", "cudnn.conv2d", at_least=3)
    _, left, right = (region.ops for region in exe.report.regions)
    assert left[:2] == right[:2] == ("permute_dims", "nn.conv2d")
    assert {*left, *right} <= {"permute_dims", "nn.conv2d", "nn.relu", "add"}
    assert not any("permute" in step.symbol for step in exe.main.steps[1:-1])
    for sizes in SIZES:
        feeds = feeds_of(module, **sizes)
        assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


@pytest.mark.parametrize(
    "stages", [("bias", "residual", "nn.relu"), ("bias", "nn.silu"), ("residual", "nn.relu")], ids=str
)
def test_any_epilogue_of_channels_last_images(machine: Any, stages: tuple[str, ...]) -> None:
    def build(b: FunctionBuilder) -> Var:
        data = image(b)
        # Channels-last, as the next one reads it; beside it what is added, of another convolution.
        x, other = (b.op("nn.relu", b.op("nn.conv2d", data, numbers(8, 8, 1, 1, seed=seed))) for seed in (0, 9))
        y = b.op("nn.conv2d", x, numbers(8, 8, 3, 3), padding=(1, 1, 1, 1))
        for number, stage in enumerate(stages):
            if stage == "residual":
                y = b.op("add", y, other)
            elif stage == "bias":
                y = b.op("add", y, numbers(8, 1, 1, seed=number))
            else:
                y = b.op(stage, y)
        return y

    module = module_of(build)
    exe = compiled(module, layout="last")
    assert_offloaded(exe, "cudnn", "cudnn.conv2d", at_least=2)
    wanted = tuple("add" if stage in ("bias", "residual") else stage for stage in stages)
    assert any(region.ops[-len(wanted) :] == wanted for region in exe.report.regions), str(exe.report)
    feeds = feeds_of(module, **SIZES[1])
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_sequences_and_volumes(check: Any, rank: int, transposed: bool, groups: int) -> None:
    def build(b: FunctionBuilder) -> Var:
        x = b.input("x", (N, 4, *(H, 5, 4)[:rank]))
        shape = (4, 6 // groups) if transposed else (6, 4 // groups)
        weight = numbers(*shape, *(3, 2, 3)[:rank])
        window = {"strides": (2, 1, 1)[:rank], "padding": (1, 0, 1)[:rank] * 2, "dilation": (1, 2, 1)[:rank]}
        name = f"nn.conv{rank}d{'_transpose' if transposed else ''}"
        return b.op(
            name, x, weight, groups=groups, **window, **({"output_padding": (1, 0, 0)[:rank]} if transposed else {})
        )

    name = f"cudnn.conv{rank}d{'_transpose' if transposed else ''}"
    check(build, name, sizes=SIZES)


def test_float8_is_cut_to_its_range(machine: Any) -> None:
    """Where the arch has it; what it cannot hold becomes its largest number, as cuDNN has it."""
    dtype = "float8_e4m3fn"

    def build(b: FunctionBuilder) -> Var:
        x = b.op("permute_dims", b.input("x", (1, 4, 4, 32), dtype), axes=FIRST)
        weight = np.full((16, 32, 1, 1), 64, ky.dtypes.to_numpy(dtype))
        return b.op("permute_dims", b.op("nn.conv2d", x, weight), axes=LAST)

    module = module_of(build)
    exe = compiled(module)
    assert_offloaded(exe, "cudnn", "cudnn.conv2d")
    (feed,) = feeds_of(module)
    found = np.asarray(machine(exe)(feed).numpy()).astype(np.float32)
    exact = feed.astype(np.float32).sum(3, keepdims=True).repeat(16, 3) * 64
    np.testing.assert_allclose(found, np.clip(exact, -448, 448), rtol=0.07, atol=1)
    assert np.abs(found).max() <= 448


def test_tf32_rounds_operands_where_it_is_asked_for(machine: Any) -> None:
    module = module_of(lambda b: conv(b))
    (feed,) = feeds_of(module, **SIZES[1])
    wanted = evaluate(module, [feed])[0]
    errors = {}
    for tf32 in (False, True):
        exe = compiled(module, tf32=tf32)
        assert_offloaded(exe, "cudnn", "cudnn.conv2d")
        errors[tf32] = float(np.abs(np.asarray(machine(exe)(feed).numpy()) - wanted).max())
    assert errors[False] < 1e-5
    assert 1e-5 < errors[True] < 1e-2


def test_the_narrow_are_put_channels_last_unless_told_otherwise() -> None:
    def orders(**options: Any) -> set[tuple[int, ...]]:
        def build(b: FunctionBuilder) -> Var:
            x = b.op("nn.conv2d", image(b, "float16"), numbers(8, 8, 1, 1, dtype="float16"))
            return b.op("nn.conv2d", b.op("nn.relu", x), numbers(8, 8, 3, 3, dtype="float16"))

        exe = compiled(module_of(build), **options)
        graphs = exe.modules[0].graphs.values()
        return {tuple(graph.nodes[-1].attrs["orders"]["x"]) for graph in graphs}

    assert LAST in orders()
    assert orders(layout="first") == {(0, 1, 2, 3)}


# --- declined ---------------------------------------------------------------------------------------------------------
def with_operand(shape: tuple[Any, ...]) -> Any:
    return lambda b: b.op("add", conv(b), b.input("other", shape))


@pytest.mark.parametrize(
    ("build", "code", "reason"),
    [
        (lambda b: conv(b, "float64"), "dtype", "supported are float32 or float16 or bfloat16"),
        (
            lambda b: conv(b, padding=(0, 1, 1, 1)),
            "attribute",
            "padding (0, 1, 1, 1); cuDNN's is the same on both sides",
        ),
        (
            lambda b: b.op("nn.conv2d", b.input("x", (N, symbol("c"), 4, 4)), b.input("w", (4, symbol("c"), 3, 3))),
            "dynamic-shape",
            "channels and kernel must be known, found c, c",
        ),
        (with_operand((N, 8, H, 6)), "layout", "x must be channels-last"),
        (with_operand((2, N, 8, H, 6)), "operand", "makes"),
        (lambda b: b.op("nn.elu", conv(b), alpha=0.5), "attribute", "an elu with alpha 0.5"),
        (lambda b: b.op("clip", conv(b), min=-1.0, max=1.0), "attribute", "a clip to -1.0 and 1.0"),
        (lambda b: b.op("subtract", b.input("r", (1, 8, 1, 1)), conv(b)), "", ""),
    ],
)
def test_what_is_declined(build: Any, code: str, reason: str, machine: Any) -> None:
    """With its code and a sentence; what is left of it may be taken, and all is right."""
    answers = declined(build)
    assert not code or any(c == code and reason in message for c, message in answers), answers
    module = module_of(build)
    feeds = feeds_of(module, n=2, h=5, c=3)
    assert_allclose(np.asarray(machine(compiled(module))(*feeds).numpy()), evaluate(module, feeds)[0])


def test_a_bias_of_equal_numbers_is_one_all_the_same(check: Any) -> None:
    """It is folded to one number, and cuDNN's engines for a bias want one for each channel."""
    check(
        lambda b: b.op("nn.relu", b.op("add", conv(b), np.full((8, 1, 1), 0.25, np.float32))),
        "cudnn.conv2d",
        sizes=SIZES,
    )


def test_a_bias_that_is_none_is_not_taken_for_one(machine: Any) -> None:
    """One number for each column of the image has as many elements as a bias might."""

    def build(b: FunctionBuilder) -> Var:
        y = b.op("nn.conv2d", b.input("x", (2, 8, 6, 8)), numbers(8, 8, 1, 1))
        return b.op("add", y, numbers(8))

    module = module_of(build)
    exe = compiled(module)
    assert [region.ops for region in exe.report.regions] == [("nn.conv2d",)]
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])


@pytest.mark.parametrize(
    ("arch", "dtype", "answer"),
    [
        ("sm_75", "float32", "GPUs of sm_75; cuDNN's rules here are those of sm_80 and later"),
        ("sm_80", "float8_e4m3fn", "float8_e4m3fn on sm_80; it needs sm_90"),
        ("sm_80,sm_90", "float8_e4m3fn", "float8_e4m3fn on sm_80; it needs sm_90"),
        (None, "float8_e4m3fn", "float8_e4m3fn on a target without the arch of its GPU; it needs sm_90"),
    ],
)
def test_what_the_arch_has_not(arch: str | None, dtype: str, answer: str) -> None:
    recorder = Recorder()
    target = ky.Target("cuda", arch=arch)
    placed = partition_for("cudnn", module_of(lambda b: conv(b, dtype)), target=target, recorder=recorder)
    assert list(placed.functions) == ["main"], "nothing is taken"
    assert ("arch", answer) in [(each.code, each.message) for each in recorder.list_declined_matches()]


def test_weights_shared_by_convolutions_are_stored_once() -> None:
    weight = numbers(8, 8, 3, 3, dtype="float16")

    def build(b: FunctionBuilder) -> Var:
        x = b.input("x", (1, 8, 8, 8), "float16")
        for _ in range(3):
            x = b.op("nn.relu", b.op("add", b.op("nn.conv2d", x, weight, padding=(1, 1, 1, 1)), np.float16(1)))
        return x

    exe = compiled(module_of(build))
    arrays = [array for array in exe.modules[0].constants().values() if array.size == weight.size]
    assert len(arrays) <= 2, "as they are for the image that comes in, and channels-last for what follows"
