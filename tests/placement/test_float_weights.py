"""Products with quantized weights are offered as products of integers first, then with float weights."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend

from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, TensorType, verify
from kernelyard.ir.parser import parse_module
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.patterns.registry import Accept, Decline
from kernelyard.placement.float_weights import FloatWeights
from kernelyard.placement.partition import partition
from kernelyard.placement.settings import PlacementSettings
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.pipelines import get_pipeline


def network() -> IRModule:
    """Two convolutions of uint8 with int8 weights; the first stores its result."""
    b = FunctionBuilder()
    y = b.parameter(TensorType((1, 4, 6, 6), "uint8"), "x")
    codes = (np.arange(4 * 4 * 9).reshape(4, 4, 3, 3) % 250 - 125).astype(np.int8)
    for _ in range(2):
        weight = b.op("dequantize", codes, np.float32([0.01, 0.02, 0.03, 0.04]), np.int8(0), axis=0)
        read = b.op("dequantize", y, np.float32(0.1), np.uint8(100))
        y = b.op("nn.conv2d", read, weight, padding=(1, 1, 1, 1))
        y = b.op("quantize", y, np.float32(2), np.uint8(128), dtype="uint8")
    return IRModule({"main": b.function(y)})


def decoded():
    return is_op("dequantize")(*(wildcard() for _ in range(3)))


class Library(InterpretedBackend):
    """Takes convolutions: of integers, of floats whose weights are constants, or both."""

    def __init__(self, name: str, of_integers: bool, of_floats: bool, most: int = 9) -> None:
        super().__init__(name, ["nn.conv2d"])
        self._of_integers, self._of_floats, self._left = of_integers, of_floats, most

    def patterns(self, target):
        of_floats = FusionPattern(f"{self.name}.conv2d", is_op("nn.conv2d")(wildcard(), wildcard()), self._constant)
        encoded = is_op("quantize")(is_op("nn.conv2d")(decoded(), decoded()), wildcard(), wildcard())
        of_integers = FusionPattern(f"{self.name}.of_integers", encoded, self._one_more)
        return [*[of_floats][: int(self._of_floats)], *[of_integers][: int(self._of_integers)]]

    def _one_more(self, match):
        self._left -= 1
        return Accept() if self._left >= 0 else Decline("busy", "it has enough")

    @staticmethod
    def _constant(match):
        (convolution,) = match.bindings
        return (
            Accept()
            if isinstance(convolution.value.args[1], Constant)
            else Decline("operand", "its weight is no constant")
        )


def composites(module: IRModule) -> list[str]:
    return sorted(
        f.attrs["Composite"] for f in module.graph_functions().values() for _ in [0] if "Composite" in f.attrs
    )


def left(module: IRModule) -> list[str]:
    return [b.value.op_name for b in module["main"].bindings if isinstance(b.value, Call) and b.value.op_name]


def placed(*backends: Library) -> IRModule:
    before = get_pipeline("quantized")(network())
    after = partition(before, backends, PlacementSettings())
    assert_same_meaning(before, after, [np.arange(144, dtype=np.uint8).reshape(1, 4, 6, 6)])
    return after


def test_products_of_integers_come_first():
    module = placed(Library("both", True, True))
    assert set(composites(module)) == {"both.of_integers"}
    assert not {"nn.conv2d", "dequantize", "quantize"} & set(left(module))


def test_what_is_left_has_constant_float_weights():
    module = placed(Library("floats", False, True))
    assert set(composites(module)) == {"floats.conv2d"}
    assert left(module).count("dequantize") == 2  # of the data


def test_one_backend_does_both():
    module = placed(Library("both", True, True, most=1))
    assert set(composites(module)) == {"both.conv2d", "both.of_integers"}


@pytest.mark.parametrize("first", [Library("none", False, False), Library("full", True, False, most=0)])
def test_what_one_leaves_is_quantized_for_the_next(first):
    module = placed(first, Library("next", True, False))
    assert set(composites(module)) == {"next.of_integers"}


LOOP = """module

def @main(%n: Tensor[(), int64], %x: Tensor[(3, 2), float32]) -> Tuple[Tensor[(3, 2), float32], Tensor[(2, 2), float32]] {
  %w: Tensor[(2, 2), float32] = dequantize(int8[2, 2](1, 2, 3, 4), float32(0.5), int8(0))
  %y: Tensor[(3, 2), float32] = matmul(%x, %w)
  %z: Tuple[Tensor[(), int64], Tensor[(2, 2), float32]] = while(@more, @halve, %n, %w)
  %w1: Tensor[(2, 2), float32] = %z[1]
  return (%y, %w1)
}

def @more(%n: Tensor[(), int64], %w: Tensor[(2, 2), float32]) -> Tensor[(), bool] {private: true} {
  %c: Tensor[(), bool] = less(%n, int64(3))
  return %c
}

def @halve(%n: Tensor[(), int64], %w: Tensor[(2, 2), float32]) -> Tuple[Tensor[(), int64], Tensor[(2, 2), float32]] {private: true} {
  %h: Tensor[(2, 2), float32] = multiply(%w, float32(0.5))
  %m: Tensor[(), int64] = add(%n, int64(1))
  return (%m, %h)
}
"""


def test_the_functions_of_a_loop_stay_its_operands():
    """A loop that carries a stored weight reads it again as it was stored, beside its condition and its body."""
    module = parse_module(LOOP)
    weights = FloatWeights()
    folded = weights.fold(module)
    assert not any(isinstance(b.value, Call) and b.value.op_name == "dequantize" for b in folded["main"].bindings)
    restored = weights.restore(folded)
    verify(restored)
    assert any(isinstance(b.value, Call) and b.value.op_name == "dequantize" for b in restored["main"].bindings)
    assert_same_meaning(module, restored, [np.int64(0), np.ones((3, 2), np.float32)])
