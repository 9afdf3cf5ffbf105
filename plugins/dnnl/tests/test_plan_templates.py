"""Plans for new sizes are made by straight-line code that was traced at others, where its conditions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import Expr, FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_dnnl import graph_templates
from kernelyard_dnnl.execution import GraphPlans
from kernelyard_dnnl.graph_templates import GraphTemplates
from kernelyard_dnnl.plan_template import PlanTemplate
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.primitives.reduction import TWO_STEP_POOLING

H, W = dims.symbol("h"), dims.symbol("w")
CHANNELS = 24


def weights(*shape: int) -> np.ndarray:
    scale = np.prod(shape[1:]) ** -0.5  # so that sums stay small
    return (scale * np.random.default_rng(sum(shape)).standard_normal(shape)).astype(np.float32)


def conv(b: FunctionBuilder, x: Expr, filters: int, size: int = 3, stride: int = 1, groups: int = 1) -> Expr:
    window = {"strides": (stride,) * 2, "padding": (size // 2,) * 4, "dilation": (1, 1), "groups": groups}
    channels = x.type.shape[1] // groups  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(channels, int)
    return b.op("nn.conv2d", x, weights(filters, channels, size, size), **window)


def squeezed(b: FunctionBuilder, x: Expr) -> Expr:
    """A block of a MobileNet: depthwise, with squeeze and excitation, and a residual."""
    y = b.op("nn.hard_swish", conv(b, x, 48, 1))
    y = b.op("nn.relu", conv(b, y, 48, groups=48))
    scales = b.op("mean", y, axes=(2, 3), keepdims=True)
    scales = b.op("sigmoid", conv(b, b.op("nn.relu", conv(b, scales, 12, 1)), 48, 1))
    return b.op("add", conv(b, b.op("multiply", y, scales), CHANNELS, 1), x)


def pyramid(b: FunctionBuilder, x: Expr) -> Expr:
    """Halve an image and double it again, beside itself."""
    half = b.op("nn.relu", conv(b, x, 32, stride=2))
    double = b.op(
        "nn.conv2d_transpose", half, weights(32, CHANNELS, 2, 2), strides=(2, 2), padding=(0, 0, 0, 0),
        dilation=(1, 1), groups=1, output_padding=(0, 0),
    )  # fmt: skip
    double = b.op("nn.relu", b.op("add", double, weights(CHANNELS, 1, 1)))
    return conv(b, b.op("concat", double, conv(b, x, CHANNELS), axis=1), 8)


def sequence(b: FunctionBuilder, x: Expr) -> Expr:
    """The columns of an image as a sequence, as text recognizers have it."""
    rows = b.op("permute_dims", b.op("mean", conv(b, x, 40), axes=(2,), keepdims=False), axes=(0, 2, 1))
    return b.op("nn.softmax", b.op("matmul", rows, weights(16, 40).T), axis=2)


NETWORKS: dict[str, Callable[[FunctionBuilder, Expr], Expr]] = {
    "squeeze and excitation": squeezed,
    "pyramid": pyramid,
    "sequence": sequence,
}


def looked_up(b: FunctionBuilder, x: Expr) -> Expr:
    """Bytes of a quantized network, which a table of ours makes others of: a kernel that the library does not have."""
    stored = b.op("quantize", b.op("nn.relu", x), np.float32(0.02), np.uint8(0), dtype="uint8")
    real = b.op("dequantize", stored, np.float32(0.02), np.uint8(0))
    stored = b.op("quantize", b.op("sigmoid", real), np.float32(1 / 256), np.uint8(0), dtype="uint8")
    return b.op("dequantize", stored, np.float32(1 / 256), np.uint8(0))


def module_of(build: Callable[[FunctionBuilder, Expr], Expr], factor: int = 2) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (1, CHANNELS, factor * H, factor * W))
    return IRModule({"main": b.function(build(b, b.op("nn.relu", conv(b, x, CHANNELS))))})


def image(height: int, width: int) -> np.ndarray:
    random = np.random.default_rng(height * width)
    return random.standard_normal((1, CHANNELS, 2 * height, 2 * width), dtype=np.float32)


def compiled(module: IRModule, threads: int = 1) -> ky.Executable:
    exe = ky.compile(module, backends=["dnnl"])
    exe.threads = threads
    assert_offloaded(exe, "dnnl", pattern="dnnl.conv2d")
    return exe


@pytest.fixture(scope="module", autouse=True)
def _traced_at_once() -> Iterator[None]:
    """The second set of sizes is traced, so that tests need no more of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_templates, "FIRST_TRACED_SET", 2)
        yield


@pytest.fixture
def lowered(monkeypatch) -> list[object]:
    """The sizes that graphs are lowered for, without a template."""
    found: list[object] = []
    lower = GraphPlans._lower_graph

    def lower_graph(self: GraphPlans, graph, values, *others):
        found.append(dict(values))
        return lower(self, graph, values, *others)

    monkeypatch.setattr(GraphPlans, "_lower_graph", lower_graph)
    return found


@pytest.fixture
def traced(monkeypatch) -> list[bool]:
    """For each lowering that was to be traced, whether it was."""
    found: list[bool] = []
    trace = GraphTemplates.trace
    monkeypatch.setattr(GraphTemplates, "trace", lambda self, *a: found.append(trace(self, *a)) or found[-1])
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_new_sizes_are_not_lowered(build, threads, lowered, traced):
    module = module_of(build)
    exe = compiled(module, threads)
    for height, width in ((20, 18), (21, 20), (22, 19), (20, 22), (21, 17)):
        x = image(height, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert traced
    assert all(traced)
    assert all(sizes == lowered[0] for sizes in lowered), lowered  # the first ones, of each graph


def test_kernels_of_ours_are_traced(traced):
    module = module_of(looked_up)
    exe = ky.compile(module, backends=["dnnl"])
    assert_offloaded(exe, "dnnl", pattern="dnnl.lookup")
    for height, width in ((20, 18), (21, 20), (22, 19)):
        x = image(height, width)
        found, wanted = exe(x).numpy(), evaluate(module, [x])[0]
        assert np.abs(found - wanted).max() < 2 / 256  # what is stored may be the next number
        assert (found != wanted).mean() < 1e-3
    assert traced
    assert all(traced)


def test_few_sizes_are_not_traced(monkeypatch, lowered, traced):
    monkeypatch.setattr(graph_templates, "FIRST_TRACED_SET", 4)
    exe = compiled(module_of(squeezed))
    for count, height in enumerate(range(8, 18, 2), start=1):
        exe(image(height, 9))
        assert len(traced) == (count >= 4)
    assert len(lowered) == 3


@settings(max_examples=6)
@given(st.sampled_from(list(NETWORKS)), st.lists(st.tuples(*[st.integers(1, 40)] * 2), min_size=3, max_size=6))
def test_any_sizes_give_what_a_new_program_gives(name, sizes):
    module = module_of(NETWORKS[name])
    exe = compiled(module)
    for height, width in sizes:
        x = image(height, width)
        assert_allclose(exe(x), compiled(module)(x))


def test_sizes_that_are_decided_about_otherwise_have_a_template_of_their_own(lowered, traced):
    """A mean over many pixels takes two steps."""
    module = module_of(squeezed)
    exe = compiled(module)
    small, large = ((4, 5), (5, 4), (6, 6)), ((20, 30), (30, 20), (25, 22))
    assert 4 * 6 * 6 < TWO_STEP_POOLING <= 4 * 20 * 30
    for height, width in (*small, *large, *small):
        x = image(height, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert len(traced) >= 2
    assert all(traced)
    assert len(lowered) == 1
    info = exe.cache_info()["dnnl: templates of plans"]
    assert (info.hits, info.misses, info.entries) == (5, len(traced), len(traced))


def test_nothing_is_traced_where_templates_are_of_no_use(monkeypatch, lowered, traced):
    monkeypatch.setattr(PlanTemplate, "plan", lambda self, *_: None)
    module = module_of(squeezed)
    exe = compiled(module)
    for width in range(8, 20):
        x = image(9, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert len(traced) == graph_templates.MOST_MISSES
    assert len(lowered) == 12


def test_templates_are_few(monkeypatch, traced):
    monkeypatch.setattr(graph_templates, "MOST_TEMPLATES", 1)
    module = module_of(squeezed)
    exe = compiled(module)
    for height, width in ((4, 5), (5, 4), (20, 30), (30, 20)):
        x = image(height, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert len(traced) == 1


def test_what_cannot_be_traced_is_lowered(monkeypatch, lowered, traced):
    """An object that asks for the hash of a size, as one in a set, is met once."""
    plain = graph_templates.lower_operations

    def lower_operations(lowering):
        hash(lowering._sizes(H))
        return plain(lowering)

    monkeypatch.setattr(graph_templates, "lower_operations", lower_operations)
    module = module_of(squeezed)
    exe = compiled(module)
    for width in (8, 9, 10, 11):
        x = image(9, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert traced == [False]
    assert len(lowered) == 4


def test_a_primitive_that_is_implemented_otherwise_has_its_graph_traced_again(monkeypatch, lowered, traced):
    module = module_of(squeezed)
    exe = compiled(module)
    exe(image(20, 20)), exe(image(20, 21))
    count = len(traced)
    assert count
    assert all(traced)
    implementation = Primitive.implementation
    renamed = property(lambda self: "jit:another" if 44 in self._asked[0].shape else implementation.__get__(self))
    monkeypatch.setattr(Primitive, "implementation", renamed)
    for width in (22, 23):
        x = image(20, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert len(traced) == count + 1
    assert len(lowered) == 1


def test_constant_weights_are_packed_as_the_primitive_now_prefers(monkeypatch, lowered, traced):
    """Where a layout was another one at the sizes that were traced, the weights are packed again."""
    module = module_of(squeezed)
    exe = compiled(module)
    exe(image(20, 20)), exe(image(20, 21))
    compared: list[str] = []
    has_layout = Primitive.has_layout

    def has_another(self, what, index, layout):
        compared.append(what)
        return what != "weights_md" and has_layout(self, what, index, layout)

    monkeypatch.setattr(Primitive, "has_layout", has_another)
    for width in (22, 23):
        x = image(20, width)
        assert_allclose(exe(x), evaluate(module, [x])[0])
    assert "weights_md" in compared
    assert len(lowered) == 1


def test_a_refusal_of_the_library_leaves_the_sizes_to_the_lowering(monkeypatch, lowered):
    from kernelyard_dnnl import plan_template
    from kernelyard_dnnl._native import StatusError

    module = module_of(squeezed)
    exe = compiled(module)
    exe(image(20, 20)), exe(image(20, 21))

    def refuse(*_):
        raise StatusError("dnnl_convolution_forward_primitive_desc_create", 3)

    monkeypatch.setattr(plan_template, "_generate", refuse)
    x = image(20, 22)
    assert_allclose(exe(x), evaluate(module, [x])[0])
    assert len(lowered) == 2
