"""How functions take parameters, and modules whose forward is a function of its own."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn
from kernelyard.errors import FrontendError
from kernelyard.ir import Call, GlobalVar, TupleType, parse_module, to_text
from kernelyard.nn import op
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard.transform import FlattenEntryTuples

RANDOM = np.random.default_rng(0)
X = nn.spec.Tensor(["n", 4])


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data = RANDOM.standard_normal(parameter.shape).astype(parameter.dtype)
    return module


class Net(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.second(op.relu(self.first(x)))


NAMES = ["first.weight", "first.bias", "second.weight"]


def net_in_numpy(net: Net, x: np.ndarray) -> np.ndarray:
    w, b, v = (net.state_dict()[name] for name in NAMES)
    return np.maximum(x @ w.T + b, 0) @ v.T


# --- parameters -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backends", [[], ["dnnl"]])
@pytest.mark.parametrize(
    ("mode", "names"),
    [("plain", ["x", *NAMES]), ("packed", ["x", *(f"packed_params_{i}" for i in range(3))]), ("none", ["x"])],
)
def test_a_compiled_function_takes_parameters_as_asked(mode, names, backends) -> None:
    net = filled(Net())
    exe = ky.compile(nn.ModuleSpec(net, {"forward": nn.MethodSpec({"x": X}, mode)}), backends=backends)
    assert [info.name for info in exe.inputs] == names
    if backends:
        assert_offloaded(exe, "dnnl", at_least=2)
    x = RANDOM.standard_normal((5, 4)).astype(np.float32)
    weights = [] if mode == "none" else [parameter.data for parameter in net.parameters()]
    assert_allclose(exe(x, *weights).numpy(), net_in_numpy(net, x))


def test_packed_parameters_are_one_tuple() -> None:
    net = filled(Net())
    module, parameters = net.export({"forward": nn.MethodSpec({"x": X}, "packed")})
    function = module["forward"]
    assert function.attrs["input_names"] == ("x", "packed_params")
    assert function.params[1].type == TupleType(tuple(parameter.type for parameter in parameters.values()))
    assert to_text(parse_module(to_text(module))) == to_text(module)
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    given = [x, *(parameter.data for parameter in parameters.values())]
    (result,) = evaluate(FlattenEntryTuples()(module), given, "forward")
    assert_allclose(result, net_in_numpy(net, x))


def test_an_export_may_bind_them() -> None:
    net = filled(Net())
    module, _ = net.export({"forward": nn.MethodSpec({"x": X}, "none")})
    assert module["forward"].attrs["input_names"] == ("x",)
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    assert_allclose(evaluate(module, [x], "forward")[0], net_in_numpy(net, x))
    with pytest.raises(FrontendError, match="no values yet"):
        Net().export({"forward": nn.MethodSpec({"x": X}, "none")})


def test_open_parameters_need_no_numbers() -> None:
    exe = ky.compile(nn.ModuleSpec(Net(), {"forward": nn.MethodSpec({"x": X}, "plain")}), backends=[])
    assert [info.name for info in exe.inputs] == ["x", *NAMES]


def test_methods_may_differ() -> None:
    class Two(Net):
        def hidden(self, x):
            return self.first(x)

    model = nn.ModuleSpec(filled(Two()), {"forward": nn.MethodSpec({"x": X}, "packed"), "hidden": {"x": X}})
    exe = ky.compile(model, backends=[])
    assert {name: len(program.inputs) for name, program in exe.programs.items()} == {"forward": 4, "hidden": 1}


@pytest.mark.parametrize("modes", [{"param_mode": "flat"}, {"effect_mode": "flat"}, {"effect_mode": None}])
def test_unknown_modes_are_refused(modes) -> None:
    with pytest.raises(FrontendError, match=r"invalid (param|effect)_mode") as error:
        nn.MethodSpec({"x": X}, **modes)
    assert error.value.expected == "plain, packed, none"


def test_specs_that_are_none() -> None:
    with pytest.raises(FrontendError, match="must map arguments"):
        Net().export({"forward": nn.MethodSpec(X)})
    with pytest.raises(FrontendError, match="does not fit the method forward") as error:
        Net().export({"forward": {"x": X, "$": {"param_mode": "packed"}}})
    assert "nn.MethodSpec" in str(error.value.hint)


# --- subroutines ------------------------------------------------------------------------------------------------------
class Block(nn.Module):
    define_subroutine = True

    def __init__(self, factor: float = 1.0) -> None:
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x, extra=None):
        y = op.relu(self.linear(x)) * self.factor
        return y if extra is None else {"sum": y + extra["bias"], "both": (y, extra["bias"])}


class Tower(nn.Module):
    def __init__(self, *blocks: Block) -> None:
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        return self.blocks(x)


def calls(module, name: str) -> list[str]:
    values = [binding.value for binding in module[name].bindings]
    return [call.op.name for call in values if isinstance(call, Call) and isinstance(call.op, GlobalVar)]


def tower_in_numpy(tower: Tower, x: np.ndarray) -> np.ndarray:
    for block in tower.blocks:
        x = np.maximum(x @ block.linear.weight.data.T + block.linear.bias.data, 0) * np.float32(block.factor)
    return x


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_equal_blocks_are_one_function(backends: list[str]) -> None:
    tower = filled(Tower(Block(), Block(), Block(2.0)))
    module, parameters = tower.export({"forward": {"x": X}})
    assert list(module) == ["forward", "Block", "Block_1"]
    assert calls(module, "forward") == ["Block", "Block", "Block_1"]
    assert list(module.public_functions()) == ["forward"]
    assert to_text(parse_module(to_text(module))) == to_text(module)
    x = RANDOM.standard_normal((3, 4)).astype(np.float32)
    given = [x, *(parameter.data for parameter in parameters.values())]
    assert_allclose(evaluate(module, given, "forward")[0], tower_in_numpy(tower, x))
    exe = ky.compile(nn.ModuleSpec(tower, {"forward": {"x": X}}), backends=backends)
    assert list(exe.programs) == ["forward"]
    if backends:
        assert_offloaded(exe, "dnnl", at_least=3)
    assert_allclose(exe(x).numpy(), tower_in_numpy(tower, x))


def test_a_subroutine_of_other_types_is_another_function() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            self.block = Block()

        def forward(self, x):
            return self.block(x), self.block(op.concat([x, x])), self.block(x)

    module, _ = Twice().export({"forward": {"x": X}})
    assert calls(module, "forward") == ["Block", "Block_1", "Block"]


def test_what_goes_in_and_out_may_be_nested() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            self.block = Block()

        def forward(self, x):
            out = self.block(x, extra={"bias": x * 2.0})
            return out["sum"], out["both"]

    nested = filled(Nested())
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    results = ky.compile(nn.ModuleSpec(nested, {"forward": {"x": X}}), backends=[])(x)
    block = tower_in_numpy(Tower(nested.block), x)
    for result, wanted in zip(results, (block + 2 * x, block, 2 * x), strict=True):
        assert_allclose(result.numpy(), wanted)


class Inner(nn.Module):
    define_subroutine = True

    def __init__(self, cache: nn.KVCache, scale: nn.Parameter) -> None:
        self.cache, self.scale = cache, scale

    def forward(self, x):
        self.cache.append(x * self.scale)
        return op.sum(self.cache.view(), 0)


class Outer(nn.Module):
    define_subroutine = True

    def __init__(self) -> None:
        self.cache, self.scale = nn.KVCache((4,)), nn.Parameter((4,))
        self.inner = Inner(self.cache, self.scale)

    def forward(self, x):
        return self.inner(x) + self.inner(x), self.scale


def test_subroutines_read_and_replace_state() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            self.outer = Outer()

        def forward(self, x):
            return self.outer(x)

    whole = filled(Whole())
    module, _ = whole.export({"forward": {"x": X}})
    assert list(module) == ["forward", "_initialize_effect", "Inner", "Inner_1", "Outer"]
    assert calls(module, "Outer") == ["Inner", "Inner_1"]
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    machine = ky.VirtualMachine(ky.compile(nn.ModuleSpec(whole, {"forward": {"x": X}}), backends=[]))
    result, scale, rows = machine["forward"](x, np.zeros((0, 4), np.float32))
    assert_allclose(rows.numpy(), np.concatenate([x, x]) * whole.outer.scale.data)
    assert_allclose(result.numpy(), 3 * (x * whole.outer.scale.data).sum(0))
    assert_allclose(scale.numpy(), whole.outer.scale.data)


def test_subroutines_return_tensors() -> None:
    class Nothing(nn.Module):
        define_subroutine = True

        def forward(self, x):
            return None

    class Whole(nn.Module):
        def __init__(self) -> None:
            self.nothing = Nothing()

        def forward(self, x):
            return self.nothing(x) or x

    with pytest.raises(FrontendError, match="returns no tensors"):
        Whole().export({"forward": {"x": X}})


@pytest.mark.parametrize("returned", [lambda kept, x: kept, lambda kept, x: kept + x])
def test_subroutines_use_what_they_are_given(returned) -> None:
    class Keeping(nn.Module):
        define_subroutine = True
        kept: nn.Tensor

        def forward(self, x):
            return returned(self.kept, x)

    class Whole(nn.Module):
        def __init__(self) -> None:
            self.keeping = Keeping()

        def forward(self, x):
            self.keeping.kept = op.exp(x)
            return self.keeping(x)

    with pytest.raises(FrontendError, match="a tensor that it was not given") as error:
        Whole().export({"forward": {"x": X}})
    assert error.value.where == "module 'keeping' (Keeping)"
