"""Tensors between regions in the order that both sides name: when that is agreed on, and that the meaning stays."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PluginContractError
from kernelyard.ir import FunctionBuilder, IRModule, parse_module, to_text, verify
from kernelyard.ir.types import tensors_of
from kernelyard.placement.partition import partition
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.layout.agree_border_layouts import AgreeBorderLayouts
from kernelyard.transform.layout.border_agreement import BorderLayouts
from kernelyard.transform.partition.run_codegen import RunCodegen

LAST = (0, 2, 3, 1)
SHAPE = (2, 3, 4, 5)
X = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
OPS = {"acme": ["nn.relu", "sigmoid", "add"], "zeus": ["tanh"]}


def placed(build, backends=("acme",), shape=SHAPE):
    """A function of one image, with the regions of backends in it."""
    b = FunctionBuilder()
    module = verify(IRModule({"main": b.function(build(b, b.input("x", shape)))}))
    return verify(partition(module, [InterpretedBackend(name, OPS[name]) for name in backends]))


def everywhere(order):
    """Return an answer that names one order for every border."""

    def layouts(region):
        results = tensors_of(region.function.result_type)
        return BorderLayouts((order,) * len(region.inputs), (order,) * len(results))

    return layouts


def agreed(before, **layouts):
    """The module with agreed borders, which means the same; also after codegen."""
    after = verify(AgreeBorderLayouts(layouts)(before))
    shape = before["main"].params[0].type.shape
    assert_same_meaning(before, after, [X.reshape(-1)[: np.prod(shape)].reshape(shape)])
    assert to_text(parse_module(to_text(after))) == to_text(after)
    codegens = {name: InterpretedBackend(name, OPS[name]).codegen for name in OPS}
    verify(RunCodegen(codegens)(after))
    return after


def shapes(module):
    """The shapes of what the regions give to the program, in order."""
    main = module["main"]
    calls = [b.value for b in main.bindings if called(module) and type(b.value).__name__ == "Call"]
    return [[t.shape for t in tensors_of(call.type)] for call in calls if call.op_name.startswith(("acme", "zeus"))]


def skipping(b, x):
    """Two regions of acme, which one tensor joins past the flip between them."""
    y = b.op("nn.relu", x)
    return b.op("add", y, b.op("sigmoid", b.op("flip", b.op("sigmoid", y), axes=(1,))))


def test_regions_that_name_one_order_hand_over_in_it():
    before = placed(skipping)
    after = agreed(before, acme=everywhere(LAST))
    assert shapes(before) == [[SHAPE, SHAPE], [SHAPE]]
    last = tuple(SHAPE[axis] for axis in LAST)
    assert shapes(after) == [[last, SHAPE], [SHAPE]], "flip reads row-major"
    assert called(after) == called(before), "nothing is added to the program"


def test_backends_agree_with_each_other():
    before = placed(lambda b, x: b.op("tanh", b.op("nn.relu", x)), ("acme", "zeus"))
    after = agreed(before, acme=everywhere(LAST), zeus=everywhere(LAST))
    assert shapes(after) == [[(2, 4, 5, 3)], [SHAPE]]


@pytest.mark.parametrize("other", [None, everywhere(None), everywhere((0, 3, 1, 2))], ids=["silent", "none", "another"])
def test_without_agreement_nothing_changes(other):
    before = placed(lambda b, x: b.op("tanh", b.op("nn.relu", x)), ("acme", "zeus"))
    layouts = {"acme": everywhere(LAST), **({} if other is None else {"zeus": other})}
    assert AgreeBorderLayouts(layouts)(before) is before


def test_what_others_read_too_is_handed_over_twice():
    def build(b, x):
        y = b.op("nn.relu", x)
        return b.op("multiply", b.op("tanh", y), y)

    before = placed(build, ("acme", "zeus"))
    after = agreed(before, acme=everywhere(LAST), zeus=everywhere(LAST))
    assert shapes(before) == [[SHAPE], [SHAPE]]
    assert shapes(after) == [[SHAPE, (2, 4, 5, 3)], [SHAPE]]


def test_a_region_that_is_called_twice_has_the_same_borders_everywhere():
    """The second call reads what flip gives, so that the first one must read row-major, too."""

    def build(b, x):
        y = b.op("tanh", b.op("nn.relu", x))
        return b.op("tanh", b.op("flip", y, axes=(1,)))

    before = placed(build, ("acme", "zeus"))
    assert [name for name in called(before) if name.startswith("@zeus")] == ["@zeus_0", "@zeus_0"]
    assert AgreeBorderLayouts({"acme": everywhere(LAST), "zeus": everywhere(LAST)})(before) is before


def types_of(module, *ops):
    """Shapes of what operators of the program read and give, in order."""
    calls = [b.value for b in module["main"].bindings if getattr(b.value, "op_name", "") in ops]
    return [(call.args[0].type.shape, call.type.shape) for call in calls]


@pytest.mark.parametrize("shape", [SHAPE, (2, 3, 3, 3)], ids=str)
def test_what_is_computed_element_by_element_takes_the_order_between_regions(shape):
    """As dynamic quantization has it: the range of a tensor, its numbers as integers, and these read again."""

    def build(b, x):
        y = b.op("nn.relu", x)
        scale = b.op("divide", b.op("max", y), np.array(255, np.float32))
        stored = b.op("quantize", y, scale, np.uint8(0), dtype="uint8")
        return b.op("tanh", b.op("floor", b.op("dequantize", stored, scale, np.uint8(0))))

    before = placed(build, ("acme", "zeus"), shape)
    after = agreed(before, acme=everywhere(LAST), zeus=everywhere(LAST))
    last = tuple(shape[axis] for axis in LAST)
    assert shapes(after) == [[last], [shape]]
    assert types_of(after, "max", "quantize", "dequantize", "floor") == [(last, ()), *[(last, last)] * 3]


OTHER_READERS = {
    "the caller": lambda b, y: (b.op("tanh", y), y),
    "an operator that goes along a dim": lambda b, y: (b.op("tanh", y), b.op("flip", y, axes=(1,))),
    "an operator of two tensors": lambda b, y: (b.op("tanh", y), b.op("multiply", y, y)),
}


@pytest.mark.parametrize("case", OTHER_READERS)
def test_what_is_read_row_major_too_is_computed_row_major(case):
    """An operator has one result; only regions write two."""
    before = placed(lambda b, x: b.tuple(*OTHER_READERS[case](b, b.op("floor", b.op("nn.relu", x)))), ("acme", "zeus"))
    assert AgreeBorderLayouts({"acme": everywhere(LAST), "zeus": everywhere(LAST)})(before) is before


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_scaled_by_channels_is_computed_row_major(count):
    channels = np.ones((3, 1, 1), np.float32)

    def build(b, x):
        y = b.op("nn.relu", x)
        for _ in range(count):
            y = b.op("multiply", b.op("floor", y), channels)
        return b.op("tanh", y)

    before = placed(build, ("acme", "zeus"))
    assert AgreeBorderLayouts({"acme": everywhere(LAST), "zeus": everywhere(LAST)})(before) is before


def test_parameters_and_results_of_the_program_stay():
    before = placed(lambda b, x: b.op("nn.relu", x))
    assert AgreeBorderLayouts({"acme": everywhere(LAST)})(before) is before


class Recorder:
    def __init__(self):
        self.violations = []

    def record_violation(self, backend, symbols, message):
        self.violations.append((backend, tuple(symbols), message))


@pytest.mark.parametrize(
    "answer",
    [
        BorderLayouts((), ()),
        BorderLayouts(((0, 1),), (LAST, None)),
        BorderLayouts((LAST,), ((0, 1, 2, 2), None)),
        "last",
    ],
)
def test_an_answer_that_does_not_fit_is_recorded(answer):
    before, recorder = placed(skipping), Recorder()
    assert AgreeBorderLayouts({"acme": lambda region: answer}, recorder)(before) is before
    assert {backend for backend, _, _ in recorder.violations} == {"acme"}
    with pytest.raises(PluginContractError, match="asked for the layouts of acme_0"):
        AgreeBorderLayouts({"acme": lambda region: answer}, strict=True)(before)


def test_a_backend_that_raises_is_recorded():
    def fail(region):
        raise ZeroDivisionError("no layout")

    before, recorder = placed(skipping), Recorder()
    assert AgreeBorderLayouts({"acme": fail}, recorder)(before) is before
    assert "no layout" in recorder.violations[0][2]
