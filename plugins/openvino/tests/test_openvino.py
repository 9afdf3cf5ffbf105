from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.plugins.api import FunctionBuilder, IRModule
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, evaluate

pytest.importorskip("kernelyard_openvino")
random = np.random.default_rng(0)


def network():
    """Images -> classes: a convolution, pooling, a linear layer; of any number of images."""
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 3, 8, 8))
    x = b.op("nn.conv2d", x, random.normal(size=(4, 3, 3, 3)).astype(np.float32), padding=(1, 1, 1, 1))
    x = b.op("nn.max_pool2d", b.op("nn.relu", x), pool_size=(2, 2), strides=(2, 2))
    x = b.op("reshape", x, shape=(symbol("n"), 64))
    x = b.op("matmul", x, random.normal(size=(64, 5)).astype(np.float32))
    return IRModule({"main": b.function(b.op("nn.softmax", x, axis=1))})


def test_a_network_is_one_region_and_survives_saving(tmp_path):
    module = network()
    exe = ky.compile(module, backends=["openvino"], strict=True)
    assert exe.report.coverage["openvino"]["ops"] == 6
    assert len(exe.modules) == 1
    assert_offloaded(exe, "openvino", "openvino.nn.conv2d", count=1)
    exe.save(tmp_path / "network.kyar")
    loaded = ky.load(tmp_path / "network.kyar")
    loaded.threads = 2
    for n in (2, 1, 2):
        x = random.normal(size=(n, 3, 8, 8)).astype(np.float32)
        assert_allclose(loaded(x), evaluate(module, [x])[0])


def explained(op, *operands, **attributes):
    b = FunctionBuilder()
    y = b.op(op, *(b.input(f"x{i}", *operand) for i, operand in enumerate(operands)), **attributes)
    return ky.explain(IRModule({"main": b.function(y)}), backends=["openvino"])


def test_what_openvino_lacks_is_declined():
    assert_declined(explained("exp", ((2, 3), "float64")), "openvino", "dtype")
    assert_declined(explained("pad", ((2, 3), "float32"), pads=(1, 0, 1, 0), mode="wrap"), "openvino", "attribute")
    image = (1, 3, 2, 3), "float32"
    assert_declined(explained("nn.max_pool2d", ((0, 3, 4, 4), "float32"), pool_size=(2, 2)), "openvino", "shape")
    assert_declined(explained("clip", image, min=1.0, max=-1.0), "openvino", "attribute")
    assert_declined(explained("nn.celu", image, alpha=-0.5), "openvino", "attribute")
    for rows in (2, symbol("n")):
        reflected = explained("pad", ((rows, 3), "float32"), pads=(2, 0, 0, 1), mode="reflect")
        assert_declined(reflected, "openvino", "attribute")
    window = {"pool_size": (2, 2), "strides": (2, 2), "padding": (1, 1, 0, 0), "ceil_mode": True}
    assert_declined(explained("nn.avg_pool2d", image, **window, count_include_pad=True), "openvino", "attribute")
    one = (4, 3, 1, 1), "float32"
    strided = explained("nn.conv2d", image, one, strides=(2, 2), padding=(1, 1, 1, 1))
    assert_declined(strided, "openvino", "attribute")
    assert_declined(explained("nn.lrn", image, size=3, bias=0.5), "openvino", "attribute")
    assert_declined(explained("image.resize", image, sizes=(3, 6), scales=(2.0, 2.0)), "openvino", "attribute")


def test_sizes_that_follow_from_scales():
    b = FunctionBuilder()
    resized = b.op("image.resize", b.input("x", (1, 1, 3, 4)), sizes=(37, 6), scales=(37 / 3, 1.6), method="linear")
    module = IRModule({"main": b.function(b.op("nn.lrn", resized, size=3, alpha=0.5, bias=2.0))})
    exe = ky.compile(module, backends=["openvino"])
    assert_offloaded(exe, "openvino", "openvino.image.resize", count=1)
    assert_offloaded(exe, "openvino", "openvino.nn.lrn", count=1)
    x = random.normal(size=(1, 1, 3, 4)).astype(np.float32)
    assert_allclose(exe(x), evaluate(module, [x])[0])


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("pad", {"pads": (0, 1, 6, 0, 1, 6), "mode": "reflect"}),
        ("clip", {"min": 0.5, "max": 0.5}),
        ("nn.celu", {"alpha": 0.25}),
        *((op, {name: 0.0}) for op in ("nn.hard_sigmoid", "nn.hard_swish") for name in ("alpha", "beta")),
        ("nn.hard_sigmoid", {"alpha": -0.4, "beta": 0.75}),
        ("nn.selu", {"alpha": 0.0}),
        ("nn.selu", {"alpha": 1.5, "gamma": 0.0}),
        ("nn.avg_pool1d", {"pool_size": (2,), "strides": (2,), "padding": (1, 0), "ceil_mode": True}),
        ("nn.avg_pool1d", {"pool_size": (3,), "strides": (2,), "padding": (1, 1), "count_include_pad": True}),
        ("nn.avg_pool1d", {"pool_size": (2,), "strides": (2,), "ceil_mode": True, "count_include_pad": True}),
    ],
)
def test_attributes_at_their_limits(op, attributes):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op(op, b.input("x", (1, 2, 7)), **attributes))})
    exe = ky.compile(module, backends=["openvino"])
    assert_offloaded(exe, "openvino", f"openvino.{op}", count=1)
    x = random.normal(size=(1, 2, 7)).astype(np.float32)
    assert_allclose(exe(x), evaluate(module, [x])[0])


@pytest.mark.parametrize("rows", [3, symbol("n")])
def test_a_walk_back_that_begins_before_the_first_element_is_empty(rows):
    b = FunctionBuilder()
    waves = b.op("sin", b.input("x", (rows, 5)))
    none = b.op("strided_slice", waves, axes=(0,), begin=(-1,), end=(-1,), strides=(-1,))
    module = IRModule({"main": b.function(waves, none)})
    exe = ky.compile(module, backends=["openvino"])
    assert_offloaded(exe, "openvino", "openvino.strided_slice", count=1)
    x = random.normal(size=(3, 5)).astype(np.float32)
    assert [tensor.numpy().shape for tensor in exe(x)] == [(3, 5), (0, 5)]


def test_no_softplus_is_negative():
    b = FunctionBuilder()
    y = b.op("nn.softplus", b.input("x", (500,)))
    exe = ky.compile(IRModule({"main": b.function(y, b.op("add", y, b.input("z", ())))}), backends=["openvino"])
    assert_offloaded(exe, "openvino", "openvino.nn.softplus", count=1)
    softplus, _ = exe(np.linspace(-60, -10, 500, dtype=np.float32), np.float32(1))
    assert softplus.numpy().min() >= 0


def test_compiled_models_are_kept_as_blobs(tmp_path, monkeypatch):
    exe = ky.compile(network(), backends=["openvino"], options={"openvino": {"blobs": True}})
    exe.warm(x=(2, 3, 8, 8))  # any sizes that are prepared are kept
    exe.save(tmp_path / "network.kyar")
    loaded = ky.load(tmp_path / "network.kyar")
    (module,) = loaded.modules
    assert len(module.blobs()) == 1
    monkeypatch.setattr("kernelyard_openvino.runtime.model_of", None)  # nothing is left to compile
    x = random.normal(size=(2, 3, 8, 8)).astype(np.float32)
    assert_allclose(loaded(x), exe(x))
    assert module.fit("openvino 1, another processor") == "unusable"


def test_profiles_show_what_openvino_ran():
    exe = ky.compile(network(), backends=["openvino"])
    x = random.normal(size=(2, 3, 8, 8)).astype(np.float32)
    (step,) = exe.profile([x], calls=2).steps
    assert {"Convolution", "Softmax"} <= {part.label for part in step.inside}
    assert all(part.implementation for part in step.inside)


def test_the_parts_of_profiles_do_not_depend_on_their_times():
    """Count a part that takes less than a microsecond in one call, and more in another, in both."""
    from kernelyard_openvino.runtime import list_parts

    def entry(kind, exec_type, microseconds):
        status = SimpleNamespace(name="EXECUTED" if microseconds else "NOT_RUN")
        time = timedelta(microseconds=microseconds)
        return SimpleNamespace(node_type=kind, exec_type=exec_type, status=status, real_time=time)

    def parts(microseconds):
        entries = [entry("Parameter", "unknown_f32", 0), entry("Relu", "jit_avx2_f32", microseconds)]
        request = SimpleNamespace(get_profiling_info=lambda: [*entries, entry("Add", "undef", 0)])
        return [part.label for part, _ in list_parts(request)]

    assert parts(0) == parts(2) == ["Relu"]
