"""Modules: what they contain, their state, and how they become IR."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.errors import FrontendError, UnknownModelError
from kernelyard.ir import parse_module, to_text
from kernelyard.testing import evaluate


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        self.linear = nn.Linear(size, size)
        self.scale = nn.Parameter((size,))

    def forward(self, x):
        return nn.op.relu(self.linear(x)) * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.heads = nn.ModuleDict({"left": nn.Linear(4, 2, bias=False), "right": nn.Linear(4, 3)})
        self.extra = nn.ParameterList([nn.Parameter((4,))])

    def forward(self, x):
        x = self.blocks(x) + self.extra[0]
        return self.heads["left"](x), self.heads["right"](x)


SPEC = {"forward": {"x": nn.spec.Tensor(["n", 4])}}
NAMES = [
    "blocks.0.linear.weight",
    "blocks.0.linear.bias",
    "blocks.0.scale",
    "blocks.1.linear.weight",
    "blocks.1.linear.bias",
    "blocks.1.scale",
    "heads.left.weight",
    "heads.right.weight",
    "heads.right.bias",
    "extra.0",
]


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    random = np.random.default_rng(seed)
    for parameter in module.parameters():
        parameter.data = random.standard_normal(parameter.shape).astype(parameter.dtype)
    return module


def net_in_numpy(state, x):
    for i in "01":
        hidden = np.maximum(x @ state[f"blocks.{i}.linear.weight"].T + state[f"blocks.{i}.linear.bias"], 0)
        x = hidden * state[f"blocks.{i}.scale"]
    x = x + state["extra.0"]
    return x @ state["heads.left.weight"].T, x @ state["heads.right.weight"].T + state["heads.right.bias"]


def test_parameters_are_found_by_attribute() -> None:
    assert [name for name, _ in Net().named_parameters()] == NAMES
    paths = [path for path, _ in Net().named_modules()]
    assert paths[:4] == ["", "blocks", "blocks.0", "blocks.0.linear"]


def test_a_shared_parameter_is_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.embedding = nn.Embedding(8, 4)
            self.out = nn.Linear(4, 8, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, x):
            return self.out(self.embedding(x))

    tied = filled(Tied())
    assert [name for name, _ in tied.named_parameters()] == ["embedding.weight"]
    assert list(tied.state_dict()) == ["embedding.weight", "out.weight"]
    exe = ky.compile(nn.ModuleSpec(tied, {"forward": {"x": nn.spec.Tensor(["n"], "int64")}}), backends=[])
    weight = tied.embedding.weight.data
    x = np.array([3, 0])
    np.testing.assert_allclose(exe(x).numpy(), weight[x] @ weight.T, rtol=1e-5, atol=1e-6)


def test_a_module_that_contains_itself_is_refused() -> None:
    module = Block(2)
    module.linear = module
    with pytest.raises(FrontendError, match="contains itself"):
        list(module.named_parameters())


def test_state_goes_from_one_module_to_another() -> None:
    source, target = filled(Net()), Net()
    assert target.state_dict() == {}
    assert target.load_state_dict(source.state_dict()) == ([], [])
    for name, array in source.state_dict().items():
        np.testing.assert_array_equal(target.state_dict()[name], array)
        assert not array.flags.writeable


def test_state_that_does_not_fit_changes_nothing() -> None:
    net, state = Net(), filled(Net()).state_dict()
    with pytest.raises(FrontendError, match="does not fit the module") as error:
        net.load_state_dict({**{n: a for n, a in state.items() if n != "extra.0"}, "extra.1": state["extra.0"]})
    assert error.value.hint == "did you mean 'extra.0'?"
    with pytest.raises(FrontendError, match="another shape or dtype than the parameter") as error:
        net.load_state_dict({**state, "extra.0": np.ones(5, np.float32)})
    assert error.value.where == "extra.0"
    assert net.state_dict() == {}
    assert net.load_state_dict({"extra.0": state["extra.0"], "y": 0}, strict=False) == (NAMES[:-1], ["y"])
    assert list(net.state_dict()) == ["extra.0"]


def test_to_changes_the_dtype_of_floating_point_parameters() -> None:
    net = filled(Net()).to("float16")
    assert {parameter.dtype for parameter in net.parameters()} == {"float16"}
    assert {array.dtype.name for array in net.state_dict().values()} == {"float16"}


def test_export_takes_inputs_then_parameters() -> None:
    module, params = Net().export(SPEC)
    assert list(params) == NAMES
    function = module["forward"]
    assert function.attrs["input_names"] == ("x", *NAMES)
    assert function.params[0].tensor_type.shape == (dims.symbol("n"), 4)
    assert to_text(parse_module(to_text(module))) == to_text(module)
    origins = {binding.var.origin for binding in function.bindings}
    assert "module 'blocks.1.linear' (Linear)" in origins


def test_an_exported_module_and_a_compiled_one_compute_the_same() -> None:
    net = filled(Net())
    module, params = net.export(SPEC)
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    expected = net_in_numpy(net.state_dict(), x)
    feeds = {"x": x, **{name: parameter.data for name, parameter in params.items()}}
    open_weights = ky.compile(module, backends=[]).run(feeds).values()
    bound = ky.compile(nn.ModuleSpec(net, SPEC), backends=["dnnl"])
    assert [info.name for info in bound.inputs] == ["x"]
    from_ir = evaluate(nn.ModuleSpec(net, SPEC).to_ir(), [x], "forward")
    for results in (open_weights, bound(x), from_ir):
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-5, atol=1e-5)


def test_containers_hold_by_name() -> None:
    parameters = nn.ParameterDict({"a": nn.Parameter((2,))})
    parameters["b"] = nn.Parameter((3,))
    assert (list(parameters), len(parameters), "b" in parameters) == (["a", "b"], 2, True)
    assert [name for name, _ in parameters.named_parameters()] == ["a", "b"]
    assert list(parameters.values()) == [parameters["a"], parameters["b"]]
    assert list(parameters.keys()) == [name for name, _ in parameters.items()]
    modules = nn.ModuleDict({"a": nn.ReLU()})
    assert list(modules.values()) == [modules["a"]]
    assert list(modules.keys()) == ["a"]


class Halved(nn.Mutator):
    def visit_module(self, name, node):
        return nn.Identity() if name == "heads.left" else super().visit_module(name, node)

    def visit_param(self, name, node):
        return nn.Parameter(node.shape, "float16", node.data.astype("float16")) if "bias" in name else node

    def visit_effect(self, name, node):
        return nn.KVCache(node.unit_shape, "float16")


def test_a_mutator_replaces_parts_wherever_they_are() -> None:
    net = filled(Net())
    net.cache, net.named = nn.KVCache((2,)), nn.ParameterDict({"bias": net.extra[0]})
    net.blocks[1].linear.bias = net.blocks[0].linear.bias
    bias = net.blocks[0].linear.bias.data
    assert Halved().visit("", net) is net
    assert isinstance(net.heads["left"], nn.Identity)
    assert net.blocks[0].linear.bias is net.blocks[1].linear.bias
    np.testing.assert_array_equal(net.blocks[0].linear.bias.data, bias.astype("float16"))
    assert net.cache.states["rows"].dtype == "float16"
    dtypes = {name: parameter.dtype for name, parameter in net.named_parameters()}
    # extra.0 was visited under that name first
    assert {name for name, dtype in dtypes.items() if dtype == "float16"} == {
        "blocks.0.linear.bias",
        "heads.right.bias",
    }


def test_methods_are_entry_functions() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(4, 4)

        def encode(self, x):
            return {"code": self.linear(x)}

        def decode(self, pair, rows, factor):
            a, b = pair
            return [nn.op.full((rows, 1), factor) * (a - b), a]

    two = filled(Two())
    pair = nn.spec.Tuple([nn.spec.Tensor(["m", 4]), nn.spec.Tensor(["m", 4])])
    spec = {
        "encode": {"x": nn.spec.Tensor(["n", 4])},
        "decode": {"pair": pair, "rows": nn.spec.Int("m"), "factor": 3.0},
    }
    exe = ky.compile(nn.ModuleSpec(two, spec), backends=[])
    machine = ky.VirtualMachine(exe)
    x = np.ones((2, 4), np.float32)
    state = two.state_dict()
    np.testing.assert_allclose(machine["encode"](x).numpy(), x @ state["linear.weight"].T + state["linear.bias"], 1e-5)
    assert [spec.name for spec in exe.programs["encode"].outputs] == ["code"]
    assert [spec.name for spec in exe.programs["decode"].inputs] == ["pair_0", "pair_1"]
    difference, same = machine["decode"](x, 3 * x)
    assert (difference.numpy() == -6).all()
    assert (same.numpy() == x).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "a spec must map methods"),
        ({"forwards": {}}, "has no method 'forwards'"),
        ({"forward": {}}, "does not fit the method forward"),
        ({"forward": {"x": nn.spec.Tensor(["n", 4]), "y": 1}}, "does not fit the method forward"),
        ({"forward": {"x": nn.spec.Int()}}, "'x' cannot be inferred"),
        ({"forward": {"x": object()}}, "invalid spec"),
    ],
)
def test_specs_that_do_not_fit(spec, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        Net().export(spec)


def test_what_a_spec_cannot_hold() -> None:
    with pytest.raises(FrontendError, match="invalid size"):
        nn.spec.Tensor(["n +"])
    with pytest.raises(ky.errors.KernelyardError, match="unknown dtype"):
        nn.spec.Tensor([1], "float31")


def test_parameters_without_numbers_are_named() -> None:
    with pytest.raises(FrontendError, match="no values yet") as error:
        ky.compile(nn.ModuleSpec(Net(), SPEC))
    assert "heads.left.weight" in str(error.value)


def test_a_module_without_a_spec_is_refused() -> None:
    with pytest.raises(UnknownModelError, match="no spec of its inputs") as error:
        ky.compile(Net())
    assert "ModuleSpec" in str(error.value.hint)


def test_nothing_runs_outside_of_an_export() -> None:
    with pytest.raises(FrontendError, match="traced, not run"):
        nn.ReLU()(nn.Tensor.placeholder((1,), "float32"))


class Applied(nn.Module):
    """One function as a module."""

    def __init__(self, function) -> None:
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x > 0 else -x, "no truth value"),
        (lambda x: [], "returns nothing"),
        (lambda x: 3, "not a tensor"),
        (lambda x: x + nn.Parameter((4,)), "not an attribute of the exported module"),
        (lambda x: x.astype("int64") * 2.5, "an integer tensor"),
        (lambda x: x + "1", "invalid operand"),
        (lambda x: x.reshape(-1, -1), "only one size"),
        (lambda x: nn.op.split(x, 3, axis=1), "split equally"),
        (lambda x: nn.op.squeeze(x, 1), "size 1"),
        (lambda x: nn.op.interpolate(x, 2, mode="sharp"), "invalid arguments of interpolate"),
    ],
)
def test_what_cannot_be_traced(function, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        Applied(function).export(SPEC)


def test_a_type_error_is_the_operators_own() -> None:
    with pytest.raises(ky.errors.TypeInferenceError):
        Applied(lambda x: x + np.ones((1, 5), np.float32)).export(SPEC)


def test_the_parameter_of_an_input_name_is_refused() -> None:
    class Clash(nn.Module):
        def __init__(self) -> None:
            self.x = nn.Parameter((1,))

        def forward(self, x):
            return x + self.x

    with pytest.raises(FrontendError, match="share names"):
        Clash().export(SPEC)
