"""RuntimeModules that come from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PassError
from kernelyard.ir import Call, ExternFunc, FunctionBuilder, IRModule, get_op, verify
from kernelyard.ops.reference_runtime import ReferenceModule
from kernelyard.testing.reference import evaluate
from kernelyard.transform.partition.attach_extern_modules import AttachExternModules
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES

X = np.array([-1.0, 2.0], np.float32)


def extern(symbol, op="nn.relu"):
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    return ReferenceModule.from_calls({symbol: Call(get_op(op), [x])})


def caller(symbol="my_relu"):
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    return verify(IRModule({"main": b.function(b.call(get_op("call_dps_packed"), [ExternFunc(symbol), x], x.type))}))


class Source:
    """Stands for a source file: compiled when it is loaded."""

    def __init__(self, symbol):
        self.symbol, self.loads = symbol, 0

    def load(self):
        self.loads += 1
        return extern(self.symbol)


def test_calls_find_their_function():
    attached = verify(AttachExternModules([extern("my_relu")])(caller()))
    assert np.array_equal(evaluate(attached, [X])[0], [0, 2])


def test_sources_are_compiled_once():
    source = Source("my_relu")
    attached = AttachExternModules([source, source])(caller())
    assert source.loads == 1
    assert np.array_equal(evaluate(attached, [X])[0], [0, 2])


def test_modules_are_appended_not_replaced():
    first, second = extern("my_relu"), extern("other")
    attached = AttachExternModules([second])(AttachExternModules([first])(caller()))
    assert attached.attrs[EXTERNAL_MODULES] == (first, second)
    assert AttachExternModules([first])(attached) is attached


def test_each_symbol_once():
    with pytest.raises(PassError, match="'my_relu'"):
        AttachExternModules([extern("my_relu"), extern("my_relu", "tanh")])(caller())


def test_something_else_is_refused():
    with pytest.raises(PassError, match="only RuntimeModules") as info:
        AttachExternModules(["relu.so"])(caller())
    assert info.value.found == "str"
