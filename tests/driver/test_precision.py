"""`compile(..., precision=...)`: what is asked for is done, said, saved, and refused where there is no such thing."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import kernelyard as ky
from kernelyard import dims
from kernelyard.driver.session.precision import BFLOAT16, PRECISIONS, cpu_flags, get_precision
from kernelyard.errors import OptionError, PerformanceWarning
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.testing import assert_offloaded, evaluate, relative_error
from kernelyard.testing.strategies import RandomProgram, modules

BF16_ERROR = 0.03  # of the largest result: eight bits, rounded a few times
RNG = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


@pytest.fixture(autouse=True)
def _any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are of no particular CPU: the warning of slow ones has tests of its own."""
    monkeypatch.setattr("kernelyard.driver.session.precision.cpu_flags", lambda _: frozenset(BFLOAT16))


def mlp() -> IRModule:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("add", b.op("matmul", b.input("x", (4, 64)), weights(64, 32)), weights(32)))
    return IRModule({"main": b.function(b.op("matmul", y, weights(32, 16)))})


X = RNG.standard_normal((4, 64)).astype(np.float32)


def test_float32_changes_nothing() -> None:
    module = mlp()
    assert get_precision("float32").apply(module) is module
    assert ky.compile(module, precision="float32").precision == ky.compile(module).precision == "float32"


@pytest.mark.parametrize("name", ["bf16"])
def test_a_program_says_its_precision_and_keeps_its_types(name: str, tmp_path: Path) -> None:
    module = mlp()
    exe = ky.compile(module, precision=name)
    exe.save(tmp_path / "model.kyar")
    (expected,) = evaluate(module, [X])
    for each in (exe, ky.load(tmp_path / "model.kyar")):
        assert each.precision == each.report.precision == name
        assert each.report.summary.startswith(name)
        assert [info.dtype for info in (*each.inputs, *each.outputs)] == ["float32", "float32"]
        result = each(X).numpy()
        assert not np.array_equal(result, expected)
        np.testing.assert_allclose(result, expected, atol=0.05 * np.abs(expected).max())
    assert ky.explain(module, precision=name).precision == name


def test_weights_of_bfloat16_take_half_the_file(tmp_path: Path) -> None:
    for name in ("float32", "bf16"):
        ky.compile(mlp(), precision=name, backends=[]).save(tmp_path / name)
    arrays = ky.load(tmp_path / "bf16").constants.values()
    assert {str(array.dtype) for array in arrays} == {"bfloat16"}
    wide = ky.load(tmp_path / "float32").constants.values()
    assert 2 * sum(array.nbytes for array in arrays) == sum(array.nbytes for array in wide)


@pytest.mark.parametrize("name", ["bf15", "bfloat16", "", 16, None, ["bf16"]])
def test_what_is_no_precision_is_refused(name: object) -> None:
    with pytest.raises(OptionError) as error:
        ky.compile(mlp(), precision=name)  # pyright: ignore[reportArgumentType]
    assert all(known in str(error.value) for known in PRECISIONS)
    with pytest.raises(OptionError):
        ky.explain(mlp(), precision=name)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("target", ["cpu", ky.Target("cpu", mcpu="x86-64-v3")], ids=str)
def test_a_cpu_without_the_instructions_gives_a_warning_and_right_results(
    target: ky.Target | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cpu_flags(target) if isinstance(target, ky.Target) else {"avx2"}
    monkeypatch.setattr("kernelyard.driver.session.precision.cpu_flags", lambda _: frozenset(found))
    module = mlp()
    with pytest.warns(PerformanceWarning, match="avx512_bf16"):
        exe = ky.compile(module, target, precision="bf16")
    (expected,) = evaluate(module, [X])
    assert relative_error(exe(X), expected) < BF16_ERROR
    with pytest.warns(PerformanceWarning, match="avx512_bf16"):
        ky.explain(module, target, precision="bf16")


def test_a_cpu_with_the_instructions_gives_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ky.explain(mlp(), precision="bf16")


# --- whole networks ---------------------------------------------------------------------------------------------------
def cnn() -> IRModule:
    """Convolutions with a residual, a concat, pools and a classifier; the batch is open."""
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 3, 16, 16))
    y = b.op("nn.relu", b.op("nn.conv2d", x, weights(16, 3, 3, 3), padding=(1,) * 4))
    z = b.op("add", b.op("nn.conv2d", y, weights(16, 16, 3, 3), padding=(1,) * 4), y)
    z = b.op("nn.max_pool2d", b.op("nn.relu", z), pool_size=(2, 2), strides=(2, 2))
    z = b.op("concat", z, b.op("nn.conv2d", z, weights(32, 16, 1, 1)), axis=1)
    z = b.op("matmul", b.op("mean", z, axes=(2, 3)), weights(48, 10))
    return IRModule({"main": b.function(b.op("nn.softmax", z, axis=1))})


def encoder() -> IRModule:
    """One layer of attention and a feed-forward network, each with its residual and norm; the length is open."""
    b = FunctionBuilder()
    x = b.input("x", (2, dims.symbol("s"), 32))
    q, k, v = (b.op("matmul", x, weights(32, 32)) for _ in range(3))
    scores = b.op("multiply", b.op("matmul", q, b.op("permute_dims", k, axes=(0, 2, 1))), np.float32(32**-0.5))
    y = b.op("matmul", b.op("matmul", b.op("nn.softmax", scores, axis=2), v), weights(32, 32))
    y = norm(b, b.op("add", y, x))
    hidden = b.op("nn.gelu", b.op("add", b.op("matmul", y, weights(32, 64)), weights(64)))
    return IRModule({"main": b.function(norm(b, b.op("add", b.op("matmul", hidden, weights(64, 32)), y)))})


def norm(b: FunctionBuilder, x: Var) -> Var:
    return b.op("nn.layer_norm", x, np.ones(32, np.float32), np.zeros(32, np.float32), axes=(2,), epsilon=1e-5)


NETWORKS = {"cnn": (cnn, "nn.conv2d", (3, 16, 16)), "encoder": (encoder, "matmul", (7, 32))}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backends", ["auto", []], ids=["auto", "kernels"])
@pytest.mark.parametrize("batch", [2])
def test_networks(network: str, backends: list[str] | str, batch: int, tmp_path: Path) -> None:
    """What is heavy is narrow, wherever it runs; results are near those of float32, from a file too."""
    build, heavy, shape = NETWORKS[network]
    module = build()
    exe = ky.compile(module, backends=backends, precision="bf16")
    products = [node for node in exe.report.nodes if node.op == heavy]
    assert products
    assert all("bfloat16" in node.type or node.gives for node in products), [node.type for node in products]
    if backends == "auto" and _has_instructions():
        assert_offloaded(exe, "dnnl", at_least=len(products))
        assert {node.backend for node in products} == {"dnnl"}
    exe.save(tmp_path / "model.kyar")
    x = RNG.standard_normal((batch, *shape)).astype(np.float32)
    (expected,) = evaluate(module, [x])
    assert relative_error(exe(x), expected) < BF16_ERROR
    np.testing.assert_array_equal(ky.load(tmp_path / "model.kyar")(x).numpy(), exe(x).numpy())


@settings(max_examples=20, deadline=None)
@given(modules(symbolic=True))
def test_random_programs_keep_their_types(program: RandomProgram) -> None:
    exe = ky.compile(program.module, precision="bf16", strict=True)
    main = program.module["main"]
    assert [info.dtype for info in exe.inputs] == [param.tensor_type.dtype for param in main.params]
    results = exe.run({info.name: array for info, array in zip(exe.inputs, program.inputs, strict=True)})
    wanted = evaluate(program.module, program.inputs)
    assert [tensor.numpy().dtype for tensor in results.values()] == [array.dtype for array in wanted]


def _has_instructions() -> bool:
    return "avx512_bf16" in cpu_flags(ky.Target("cpu"))
