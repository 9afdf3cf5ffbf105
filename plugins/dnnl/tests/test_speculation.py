"""New sizes are lowered by what oneDNN answered at earlier ones; what was assumed wrongly is asked again."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_dnnl import execution, graph_templates, primitive
from kernelyard_dnnl.execution import GraphPlans
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitive import SLOW_TO_DESCRIBE
from kernelyard_dnnl.processor import has_wide_vectors
from kernelyard_dnnl.speculation import WEIGHTS, Speculation, SpeculativePrimitive

SIZES = ((8, 8), (9, 5), (17, 23), (3, 4), (64, 80), (31, 7))


@pytest.fixture(autouse=True)
def no_templates(monkeypatch) -> None:
    """Have each size lowered: no template makes its plan."""
    monkeypatch.setattr(graph_templates, "MOST_TEMPLATES", 0)


@pytest.fixture
def network() -> IRModule:
    """A convolution of 24 filters, for which implementations are compared, one that adds to it, and a product."""
    b, random = FunctionBuilder(), np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (0.3 * random.standard_normal(shape)).astype(np.float32)

    window = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    x = b.input("x", (1, 8, dims.symbol("h"), dims.symbol("w")))
    y = b.op("nn.relu", b.op("nn.conv2d", x, weights(24, 8, 3, 3), **window))
    y = b.op("nn.relu", b.op("add", b.op("nn.conv2d", y, weights(24, 24, 3, 3), **window), y))
    return IRModule({"main": b.function(b.op("matmul", b.op("mean", y, axes=(2, 3), keepdims=False), weights(24, 5)))})


def compiled(network: IRModule) -> ky.Executable:
    exe = ky.compile(network, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d", at_least=2)
    return exe


def is_right(exe: ky.Executable, network: IRModule, height: int, width: int) -> None:
    x = np.random.default_rng(height * width).standard_normal((1, 8, height, width), dtype=np.float32)
    assert_allclose(exe(x), evaluate(network, [x])[0])


def test_the_library_is_asked_about_little_more_than_what_runs(network, monkeypatch):
    asked: list[str] = []
    created = primitive._create_descriptor
    monkeypatch.setattr(
        primitive, "_create_descriptor", lambda recipe, threads: asked.append(recipe.kind) or created(recipe, threads)
    )
    primitive.primitive_of.cache_clear()
    exe = compiled(network)
    counts: list[int] = []
    for height, width in ((40, 40), (40, 48), (40, 56)):
        asked.clear()
        is_right(exe, network, height, width)
        counts.append(len(asked))
    assert counts[2] < counts[0], counts
    assert counts[2] <= 6, counts


def test_results_are_right_at_every_size(network):
    exe = compiled(network)
    for height, width in (*SIZES, *SIZES):
        is_right(exe, network, height, width)


@pytest.mark.parametrize("answer", ["implementation", "weights", "refusal"])
def test_what_is_assumed_wrongly_is_asked_again(network, monkeypatch, answer):
    """Every answer is spoilt: the plan is made anew, and is what it would be without speculation."""
    if answer == "implementation" and not has_wide_vectors():
        pytest.skip("implementations are compared where filters fill a vector of 16 in part")
    keep, again = Speculation.keep, []

    def spoilt(self: Speculation) -> Speculation:
        keep(self)
        for key, (question, found) in self._answers.items():
            known = dict(found.known)
            if answer == "implementation":
                known = {name: "other" if name == answer else value for name, value in known.items()}
            elif answer == "weights":  # as of another layer
                known = {name: value for name, value in known.items() if name not in WEIGHTS} | {
                    name: primitive.MemoryDescriptor((7, 7), "float32", (7, 1)) for name in WEIGHTS if name in known
                }
            refusal = ("dnnl_convolution_forward_primitive_desc_create", 3) if answer == "refusal" else None
            self._answers[key] = question, found._replace(known=known, refusal=refusal)
        return self

    blind = Speculation.blind
    monkeypatch.setattr(Speculation, "keep", spoilt)
    monkeypatch.setattr(Speculation, "blind", lambda self: again.append(self) or blind(self))
    exe = compiled(network)
    for height, width in SIZES:
        is_right(exe, network, height, width)
    assert again


def test_what_varies_is_not_assumed_again(network, monkeypatch):
    """A question whose answer was wrong once is put to the library at each size from then on."""
    monkeypatch.setattr(Speculation, "blind", lambda self: pytest.fail("all answers were forgotten"))
    is_as_assumed, relied_on = SpeculativePrimitive.is_as_assumed, []
    assert isinstance(is_as_assumed, property)

    def is_no_product(primitive: SpeculativePrimitive) -> bool:
        relied_on.append(primitive.recipe.kind)
        return primitive.recipe.kind != "matmul" and is_as_assumed.__get__(primitive)

    monkeypatch.setattr(SpeculativePrimitive, "is_as_assumed", property(is_no_product))
    exe = compiled(network)
    for height, width in SIZES:
        is_right(exe, network, height, width)
    assert relied_on.count("matmul") == 1


def test_what_takes_long_to_ask_is_checked_at_the_end(monkeypatch):
    """A transposed convolution is described beside the lowering; where that was assumed wrongly, all is done again."""
    is_as_assumed, blind, again = SpeculativePrimitive.is_as_assumed, Speculation.blind, []
    assert isinstance(is_as_assumed, property)
    slow = property(lambda self: self.recipe.kind not in SLOW_TO_DESCRIBE and is_as_assumed.__get__(self))
    monkeypatch.setattr(SpeculativePrimitive, "is_as_assumed", slow)
    monkeypatch.setattr(Speculation, "blind", lambda self: again.append(self) or blind(self))
    b, random = FunctionBuilder(), np.random.default_rng(0)
    x = b.input("x", (1, 32, dims.symbol("h"), dims.symbol("w")))
    weight = random.standard_normal((32, 32, 2, 2), dtype=np.float32)
    module = IRModule({"main": b.function(b.op("nn.conv2d_transpose", x, weight, strides=(2, 2)))})
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d_transpose")
    for height, width in SIZES:
        data = random.standard_normal((1, 32, height, width), dtype=np.float32)
        assert_allclose(exe(data), evaluate(module, [data])[0])
    assert len(again) == 1


def test_deterministic_programs_ask_each_time(network, monkeypatch):
    """The same sizes give the same bits, whatever ran before."""
    seen: list[Speculation | None] = []
    lowered = GraphPlans._lower_graph
    monkeypatch.setattr(GraphPlans, "_lower_graph", lambda self, *args: seen.append(args[-1]) or lowered(self, *args))
    exe = ky.compile(network, backends=["dnnl"], target=ky.Target("cpu", deterministic=True))
    assert_offloaded(exe, "dnnl", at_least=2)
    for height, width in SIZES:
        is_right(exe, network, height, width)
    assert seen
    assert not any(each._earlier for each in seen if each is not None)


def test_no_garbage_is_collected_while_a_graph_is_bound(network, monkeypatch):
    """Collections would look again and again at what is made for a graph of many nodes."""
    monkeypatch.setattr(execution, "MANY_NODES", 2)
    lower, found = GraphPlans._lower_graph, []
    monkeypatch.setattr(
        GraphPlans, "_lower_graph", lambda self, *args: found.append(gc.isenabled()) or lower(self, *args)
    )
    is_right(compiled(network), network, 8, 8)
    assert found
    assert not any(found)
    assert gc.isenabled()


def test_a_node_that_takes_an_operation_back_is_lowered_again(monkeypatch):
    """What the first attempt did is as if it had not been: else the operation before it would be lost."""
    is_as_assumed, refused = SpeculativePrimitive.is_as_assumed, []
    assert isinstance(is_as_assumed, property)

    def is_asked_before(primitive: SpeculativePrimitive) -> bool:
        refused.append(primitive.asked)
        return refused.count(primitive.asked) > 1 and is_as_assumed.__get__(primitive)

    take_back, taken = Lowering.take_back, []
    monkeypatch.setattr(Lowering, "take_back", lambda self: taken.append(self._current) or take_back(self))
    monkeypatch.setattr(Speculation, "blind", lambda self: pytest.fail("all answers were forgotten"))
    monkeypatch.setattr(SpeculativePrimitive, "is_as_assumed", property(is_asked_before))
    module, random = pair_of_convolutions(), np.random.default_rng(0)
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d", at_least=2)
    for height, width in ((192, 176), (176, 200), (200, 184)):
        data = random.standard_normal((1, 16, height, width), dtype=np.float32)
        assert_allclose(exe(data), evaluate(module, [data])[0])
    assert refused
    if not taken:
        pytest.skip("this library does not fuse the two for this processor")
    assert len(taken) == 3 + 1


def pair_of_convolutions() -> IRModule:
    """A convolution of single pixels, and one of each channel by itself, which takes it back."""
    b, random = FunctionBuilder(), np.random.default_rng(0)
    x = b.input("x", (1, 16, dims.symbol("h"), dims.symbol("w")))
    point, each = (random.standard_normal(shape, dtype=np.float32) for shape in ((96, 16, 1, 1), (96, 1, 3, 3)))
    window = {"strides": (1, 1), "dilation": (1, 1)}
    y = b.op("nn.conv2d", x, point, padding=(0, 0, 0, 0), groups=1, **window)
    return IRModule({"main": b.function(b.op("nn.conv2d", y, each, padding=(1, 1, 1, 1), groups=96, **window))})
