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
from kernelyard.transform.layout.agree_border_layouts import AgreeBorderLayouts, BorderLayouts
from kernelyard.transform.partition.run_codegen import RunCodegen

LAST = (0, 2, 3, 1)
SHAPE = (2, 3, 4, 5)
X = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
OPS = {"acme": ["nn.relu", "sigmoid", "add"], "zeus": ["tanh"]}


def placed(build, backends=("acme",)):
    """A function of one image, with the regions of backends in it."""
    b = FunctionBuilder()
    module = verify(IRModule({"main": b.function(build(b, b.input("x", SHAPE)))}))
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
    assert_same_meaning(before, after, [X])
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
    """Two regions of acme, which one tensor joins past the floor between them."""
    y = b.op("nn.relu", x)
    return b.op("add", y, b.op("sigmoid", b.op("floor", b.op("sigmoid", y))))


def test_regions_that_name_one_order_hand_over_in_it():
    before = placed(skipping)
    after = agreed(before, acme=everywhere(LAST))
    assert shapes(before) == [[SHAPE, SHAPE], [SHAPE]]
    last = tuple(SHAPE[axis] for axis in LAST)
    assert shapes(after) == [[last, SHAPE], [SHAPE]], "floor reads row-major"
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
    """The second call reads what floor gives, so that the first one must read row-major, too."""

    def build(b, x):
        y = b.op("tanh", b.op("nn.relu", x))
        return b.op("tanh", b.op("floor", y))

    before = placed(build, ("acme", "zeus"))
    assert [name for name in called(before) if name.startswith("@zeus")] == ["@zeus_0", "@zeus_0"]
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
