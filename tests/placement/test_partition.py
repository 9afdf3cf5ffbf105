"""partition: backends in turn, first come first served; broken ones are named and left out."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims, placement
from kernelyard.errors import PassError, PluginContractError, UnknownBackendError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ir.verify import verify
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.patterns.composite import op_names
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import DeclinedMatch
from kernelyard.target import Target
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard.testing.reference import assert_same_meaning

X = np.random.default_rng(0).standard_normal((4, 8), dtype=np.float32)
W = np.random.default_rng(1).standard_normal((8, 8), dtype=np.float32)


def network(shape: Sequence[dims.Dim] = X.shape) -> IRModule:
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", shape), W, origin="node 'M' (MatMul)")
    y = b.op("nn.relu", y, origin="node 'R' (Relu)")
    y = b.op("erf", y, origin="node 'E' (Erf)")
    return verify(IRModule({"main": b.function(b.op("tanh", y, origin="node 'T' (Tanh)"))}))


def report_of(module: IRModule, backends: Sequence[InterpretedBackend]) -> tuple[IRModule, Report]:
    recorder = Recorder()
    placed = partition(module, backends, PlacementSettings(recorder=recorder))
    verify(placed)
    return placed, build_report(placed, recorder)


def test_the_first_backend_that_accepts_keeps_the_op() -> None:
    one = InterpretedBackend("one", ["matmul", "nn.relu"], declines={"matmul": "dtype"})
    two = InterpretedBackend("two", ["matmul", "nn.relu", "tanh"])
    placed, report = report_of(network(), [one, two])
    assert called(placed) == ["@two_0", "@one_0", "erf", "@two_1"]
    assert_same_meaning(network(), placed, [X])
    assert_offloaded(report, "two", "two.matmul", count=1)
    (declined,) = report.declined
    assert declined == DeclinedMatch(
        "one", "one.matmul", "node 'M' (MatMul)", "matmul", "dtype", "matmul is not for one", taken_by="two"
    )
    assert report.untaken == ()


def test_report_of_a_placement() -> None:
    acme = InterpretedBackend("acme", ["matmul", "nn.relu", "tanh"], declines={"tanh": "dtype"})
    _, report = report_of(network(), [acme])
    assert [(r.pattern, r.ops, r.function, r.node) for r in report.regions] == [
        ("acme.matmul", ("matmul",), "acme_0", "node 'M' (MatMul)"),
        ("acme.nn.relu", ("nn.relu",), "acme_0", "node 'R' (Relu)"),
    ]
    assert report.coverage["acme"]["ops"] == 2
    assert report.coverage["acme"]["flops"] == 2 * 4 * 8 * 8 + 4 * 8
    assert report.coverage["rest"]["ops"] == 2
    assert report.coverage["acme"]["ops_fraction"] == 0.5
    assert report.summary == "acme 2/4 ops (89 % of FLOPs) · rest 2 · declined 1: dtype×1"


def test_symbols_count_as_64() -> None:
    placed, report = report_of(network((dims.symbol("n"), 8)), [InterpretedBackend("acme", ["matmul"])])
    assert report.coverage["acme"]["flops"] == 2 * 64 * 8 * 8
    assert "taken as 64" in str(report)
    assert_same_meaning(network((dims.symbol("n"), 8)), placed, [X])


def test_every_match_that_leaks_is_in_the_report() -> None:
    b = FunctionBuilder()
    t = b.op("matmul", b.input("x", X.shape), W, origin="node 'M' (MatMul)")
    module = IRModule({"main": b.function(b.op("nn.relu", t, origin="node 'R' (Relu)"), t)})
    fused = FusionPattern("acme.matmul_relu", is_op("nn.relu")(is_op("matmul")(wildcard(), wildcard())))
    _, report = report_of(module, [InterpretedBackend("acme", ["nn.relu"], patterns=[fused])])
    (declined,) = report.declined
    assert (declined.code, declined.node, declined.op) == ("leaking-intermediate", "node 'M' (MatMul)", "matmul")
    assert declined.taken_by == ""


def test_backends_prepare_the_module_for_themselves() -> None:
    class Preparing(InterpretedBackend):
        def prepare(self, module: IRModule) -> IRModule:
            b = FunctionBuilder()
            x = b.input("x", X.shape)
            return IRModule({"main": b.function(b.op("tanh", b.op("tanh", x)))})

    placed, _ = report_of(network(), [Preparing("acme", ["tanh"])])
    assert called(placed) == ["@acme_0"]


class Broken(InterpretedBackend):
    def prepare(self, module: IRModule) -> IRModule:
        raise RuntimeError("no luck")


class Foreign(InterpretedBackend):
    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        return [FusionPattern("other.relu", is_op("nn.relu")(wildcard()))]


@pytest.mark.parametrize(("backend", "message"), [(Broken("bad"), "no luck"), (Foreign("bad"), "another backend")])
def test_a_broken_backend_is_recorded_and_the_others_go_on(backend: InterpretedBackend, message: str) -> None:
    placed, report = report_of(network(), [backend, InterpretedBackend("acme", ["tanh"])])
    assert called(placed) == ["matmul", "nn.relu", "erf", "@acme_0"]
    (violation,) = report.violations
    assert violation.backend == "bad"
    assert message in violation.message
    assert "contract violations 1" in report.summary
    assert "bad" in str(report)
    with pytest.raises(PluginContractError, match=message):
        partition(network(), [backend], PlacementSettings(strict=True))


@pytest.mark.parametrize("kinds", [("cpu",), ("cuda", "cpu")])
def test_partition_for_an_installed_backend(kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    acme = InterpretedBackend("my-acme", ["tanh"])

    class Manager:
        def infos(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(name="my-acme", targets=kinds)]

        def get(self, name: str, part: str, target: str) -> InterpretedBackend:
            assert (name, part, target) == ("my-acme", "backend", kinds[0])
            return acme

    monkeypatch.setattr("kernelyard.placement.partition.get_manager", Manager)
    assert called(placement.partition_for_my_acme(network())) == ["matmul", "nn.relu", "erf", "@my_acme_0"]
    with pytest.raises(AttributeError):
        placement.partition_with_my_acme  # noqa: B018


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> InterpretedBackend:
    """Is the one installed backend; it takes convolutions, sums and relus."""
    backend = InterpretedBackend("acme", ["nn.conv2d", "add", "nn.relu", "multiply"])
    manager = SimpleNamespace(infos=list, get=lambda name, part, target: backend)
    monkeypatch.setattr("kernelyard.placement.partition.get_manager", lambda: manager)
    return backend


def convolution(name: str = "main") -> tuple[IRModule, dict[str, np.ndarray]]:
    """A convolution with bias, batch norm and relu whose parameters are arguments, and arrays for them."""
    b = FunctionBuilder()
    x, weight, bias = b.input("x", (1, 3, 8, 8)), b.input("weight", (4, 3, 3, 3)), b.input("bias", (4, 1, 1))
    statistics = [b.input(name, (4,)) for name in ("gamma", "beta", "mean", "variance")]
    y = b.op("nn.batch_norm", b.op("add", b.op("nn.conv2d", x, weight), bias), *statistics, epsilon=1e-3)
    module = verify(IRModule({name: b.function(b.op("nn.relu", y))}))
    rng = np.random.default_rng(0)
    params = {p.name: rng.uniform(0.5, 1, p.tensor_type.shape).astype(np.float32) for p in b.params[1:]}
    return module, params


def test_partition_for_binds_params_and_simplifies(acme: InterpretedBackend) -> None:
    module, params = convolution()
    placed = verify(placement.partition_for_acme(module, params))
    assert called(placed) == ["@acme_0"]
    assert [param.name for param in placed.entry_functions()["main"].params] == ["x"]
    composites = [f for f in placed.graph_functions().values() if "Composite" in f.attrs]
    assert [op for f in composites for op in op_names(f)] == ["nn.conv2d", "add", "nn.relu"], "no batch norm is left"
    x = np.ones((1, 3, 8, 8), np.float32)
    (expected,), (found,) = evaluate(module, [x, *params.values()]), evaluate(placed, [x])
    assert_allclose(found, expected)


def test_params_of_the_only_function_and_of_none(acme: InterpretedBackend) -> None:
    module, params = convolution("forward")
    assert len(placement.partition_for_acme(module, params).entry_functions()["forward"].params) == 1
    with pytest.raises(PassError, match="no parameter 'wieght'"):
        placement.partition_for_acme(module, {"wieght": params["weight"]})


@pytest.mark.parametrize("bind_constants", [True, False])
def test_partition_for_with_constants_as_arguments(acme: InterpretedBackend, bind_constants: bool) -> None:
    placed = verify(placement.partition_for_acme(*convolution(), bind_constants=bind_constants))
    (call,) = (binding.value for binding in placed.entry_functions()["main"].bindings)
    assert len(call.args) == (1 if bind_constants else 3), "x, and weight and bias where they are not bound"


def test_partition_for_an_unknown_backend_says_how_to_get_it() -> None:
    with pytest.raises(UnknownBackendError, match="no-such"):
        placement.partition_for_no_such(network())


def test_placing_a_large_network_takes_little_time() -> None:
    import time

    b = FunctionBuilder()
    x = b.input("x", X.shape)
    for _ in range(60):
        y = b.op("add", b.op("matmul", x, W), W[0])
        x = b.op("add", b.op("tanh", b.op("multiply", y, b.op("sigmoid", y))), x)
    module = IRModule({"main": b.function(x)})
    unary = [
        "tanh",
        "nn.relu",
        "sigmoid",
        "exp",
        "nn.gelu",
        "sqrt",
        "abs",
        "nn.silu",
        "nn.mish",
        "nn.elu",
        "erf",
        "log",
    ]
    matmul = is_op("matmul")(wildcard(), wildcard())
    patterns = [
        FusionPattern(
            f"acme.{op}_{i}",
            is_op(op)(is_op("add")(matmul, wildcard()).optional(lambda p: is_op("add")(p, wildcard()))),
        )
        for op in unary
        for i in range(8)
    ]
    acme = InterpretedBackend("acme", ["matmul", "add", "multiply", "tanh", "sigmoid"], patterns)
    begin = time.process_time()
    placed = partition(module, [acme])
    assert time.process_time() - begin < 1.0  # about 0.1 s on an idle machine: 360 ops, 101 patterns
    assert called(placed) == ["@acme_0"]
