"""Effects: state in, state out; a decode loop over a cache computes what the whole sequence computes at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims, nn
from kernelyard.errors import FrontendError, ShapeError
from kernelyard.ir import TupleType, parse_module, to_text
from kernelyard.nn import op
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard.transform import FlattenEntryTuples

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE
RANDOM = np.random.default_rng(0)


class Attention(nn.Module):
    """Self-attention that sees what came before, with rotations that depend on the position."""

    def __init__(self, max_length: int | None = None) -> None:
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.keys = nn.KVCache((HEADS, SIZE), max_length=max_length)
        self.values = nn.KVCache((HEADS, SIZE), max_length=max_length)

    def forward(self, x):
        n = x.shape[0]
        past = self.keys.length
        q, k, v = (part.reshape(n, HEADS, SIZE) for part in op.split(self.qkv(x), 3, -1))
        angle = op.arange(past, past + n, dtype="float32").reshape(n, 1, 1)
        q, k = q * op.cos(angle), k * op.cos(angle)
        self.keys.append(k)
        self.values.append(v)
        seen = [cache.view().reshape(1, -1, HEADS, SIZE) for cache in (self.keys, self.values)]
        y = op.scaled_dot_product_attention(q.reshape(1, n, HEADS, SIZE), *seen, is_causal="bottom_right")
        return self.out(y.reshape(n, WIDTH))


class Decoder(nn.Module):
    def __init__(self, layers: int = 2, max_length: int | None = None) -> None:
        self.layers = nn.ModuleList([Attention(max_length) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


X = nn.spec.Tensor(["n", WIDTH])
STATES = [f"layers.{i}.{cache}.rows" for i in range(2) for cache in ("keys", "values")]


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.data = (RANDOM.standard_normal(parameter.shape) / 4).astype(parameter.dtype)
    return module


def attention_in_numpy(state, prefix: str, x: np.ndarray, window: int = 99) -> np.ndarray:
    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ state[f"{prefix}.{name}.weight"].T + state[f"{prefix}.{name}.bias"]

    q, k, v = (part.reshape(-1, HEADS, SIZE) for part in np.split(linear("qkv", x), 3, -1))
    rotated = np.cos(np.arange(len(x), dtype=np.float32))[:, None, None]
    scores = np.einsum("qhd,khd->hqk", q * rotated, k * rotated) / np.sqrt(SIZE)
    scores += np.where(np.tri(len(x), dtype=bool) & ~np.tri(len(x), k=-window, dtype=bool), 0, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("hqk,khd->qhd", powers / powers.sum(-1, keepdims=True), v)
    return linear("out", y.reshape(len(x), WIDTH))


def whole(decoder: Decoder, x: np.ndarray) -> np.ndarray:
    for i in range(len(decoder.layers)):
        x = (x + attention_in_numpy(decoder.state_dict(), f"layers.{i}", x)).astype(np.float32)
    return x


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return filled(Decoder())


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_a_decode_loop_is_the_whole_sequence(decoder: Decoder, backends: list[str], tmp_path: Path) -> None:
    exe = ky.compile(nn.ModuleSpec(decoder, {"forward": {"x": X}}), backends=backends)
    if backends:
        assert_offloaded(exe, "dnnl", at_least=4)
    exe.save(tmp_path / "decoder.kyar")
    machine = ky.VirtualMachine(ky.load(tmp_path / "decoder.kyar"))
    x = RANDOM.standard_normal((9, WIDTH)).astype(np.float32)
    state = machine.run("_initialize_effect", {})
    assert [(name, rows.shape) for name, rows in state.items()] == [(name, (0, HEADS, SIZE)) for name in STATES]
    outputs = []
    for begin, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        state = machine.run("forward", {"x": x[begin:end], **state})
        outputs.append(state.pop("output_0").numpy())
        assert {rows.shape for rows in state.values()} == {(end, HEADS, SIZE)}
    assert_allclose(np.concatenate(outputs), whole(decoder, x))


def test_states_are_parameters_and_results(decoder: Decoder) -> None:
    module, parameters = decoder.export({"forward": {"x": X}})
    function = module["forward"]
    assert function.attrs["input_names"] == ("x", *STATES, *parameters)
    assert function.attrs["output_names"] == ("output_0", *STATES)
    slots, n = dims.symbol("slots"), dims.symbol("n")
    assert function.params[1].tensor_type.shape == (slots - 1, HEADS, SIZE)
    assert function.result_type.fields[1].shape == (slots - 1 + n, HEADS, SIZE)
    assert module["_initialize_effect"].attrs["output_names"] == tuple(STATES)
    assert to_text(parse_module(to_text(module))) == to_text(module)


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
def test_without_effects_every_call_is_the_first(decoder: Decoder, backends: list[str]) -> None:
    spec = {"forward": nn.MethodSpec({"x": X}, effect_mode="none")}
    exe = ky.compile(nn.ModuleSpec(decoder, spec), backends=backends)
    assert list(exe.programs) == ["forward"]
    assert [info.name for info in exe.inputs] == ["x"]
    x = RANDOM.standard_normal((5, WIDTH)).astype(np.float32)
    assert_allclose(exe(x).numpy(), whole(decoder, x))


def test_packed_effects_are_one_tuple(decoder: Decoder) -> None:
    spec = {"forward": nn.MethodSpec({"x": X}, param_mode="none", effect_mode="packed")}
    module, _ = decoder.export(spec)
    function = module["forward"]
    assert function.attrs["input_names"] == ("x", "packed_effects")
    plain = decoder.export({"forward": {"x": X}})[0]["forward"].params[1:5]
    assert function.params[1].type == TupleType(tuple(param.type for param in plain))
    x = RANDOM.standard_normal((3, WIDTH)).astype(np.float32)
    machine = ky.VirtualMachine(ky.compile(nn.ModuleSpec(decoder, spec), backends=[]))
    state = machine["_initialize_effect"]()
    (output, *direct) = evaluate(FlattenEntryTuples()(module), [x, *map(np.asarray, state)], "forward")
    assert_allclose(output, whole(decoder, x))
    names = [info.name for info in machine.executable.programs["forward"].inputs]
    assert names == ["x", *(f"packed_effects_{i}" for i in range(4))]
    assert [info.name for info in machine.executable.programs["forward"].outputs] == ["output_0", *names[1:]]
    first, *state = machine["forward"](x, *state)
    assert_allclose(first.numpy(), output)
    for rows, wanted in zip(state, direct, strict=True):
        assert_allclose(rows.numpy(), wanted)


def test_a_bounded_cache_refuses_more_rows() -> None:
    decoder = filled(Decoder(1, max_length=4))
    machine = ky.VirtualMachine(ky.compile(nn.ModuleSpec(decoder, {"forward": {"x": X}}), backends=[]))
    x = RANDOM.standard_normal((4, WIDTH)).astype(np.float32)
    state = machine.run("_initialize_effect", {})
    state = machine.run("forward", {"x": x[:3], **state})
    state.pop("output_0")
    full = machine.run("forward", {"x": x[3:], **state})
    assert_allclose(full["output_0"].numpy(), whole(decoder, x)[3:])
    with pytest.raises(ShapeError):
        machine.run("forward", {"x": x[:2], **state})


class WindowAttention(nn.Module):
    """As `Attention`, over the last rows."""

    def __init__(self, window: int) -> None:
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.keys, self.values = (nn.WindowKVCache((HEADS, SIZE), window) for _ in range(2))

    def forward(self, x):
        n = x.shape[0]
        q, k, v = (part.reshape(n, HEADS, SIZE) for part in op.split(self.qkv(x), 3, -1))
        rotated = op.cos((self.keys.length + op.arange(n)).astype("float32").reshape(n, 1, 1))
        self.keys.append(k * rotated)
        self.values.append(v)
        seen = [cache.view().reshape(1, -1, HEADS, SIZE) for cache in (self.keys, self.values)]
        q = (q * rotated).reshape(1, n, HEADS, SIZE)
        y = op.scaled_dot_product_attention(q, *seen, self.keys.mask(), is_causal="bottom_right")
        return self.out(y.reshape(n, WIDTH))


@pytest.mark.parametrize("backends", [[], ["dnnl"]])
@pytest.mark.parametrize(("window", "steps"), [(9, (4, 1, 1, 3)), (3, (1,) * 9), (3, (3,) + (1,) * 6)])
def test_a_window_has_one_shape(window: int, steps: tuple[int, ...], backends: list[str]) -> None:
    attention = filled(WindowAttention(window))
    exe = ky.compile(nn.ModuleSpec(attention, {"forward": {"x": X}}), backends=backends)
    if backends:
        assert_offloaded(exe, "dnnl", at_least=2)
    machine = ky.VirtualMachine(exe)
    x = RANDOM.standard_normal((9, WIDTH)).astype(np.float32)
    state, outputs, begin = machine.run("_initialize_effect", {}), [], 0
    shapes = [value.shape for value in state.values()]
    for count in steps:
        state = machine.run("forward", {"x": x[begin : begin + count], **state})
        outputs.append(state.pop("output_0").numpy())
        begin += count
        assert [value.shape for value in state.values()] == shapes
        assert state["keys.length"].numpy() == begin
    weights = {f"_.{name}": array for name, array in attention.state_dict().items()}
    assert_allclose(np.concatenate(outputs), attention_in_numpy(weights, "_", x, window).astype(np.float32))


class Counter(nn.Effect):
    def __init__(self) -> None:
        super().__init__({"count": nn.spec.Tensor([], "int64"), "total": nn.spec.Tensor([2])})

    def initial(self):
        return {"count": np.asarray(10, np.int64), "total": np.ones(2, np.float32)}

    def add(self, x):
        self.write("count", self.read("count") + 1)
        self.write("total", self.read("total") + x)


class Averaging(nn.Module):
    def __init__(self) -> None:
        self.counter = Counter()

    def forward(self, x):
        self.counter.add(x)
        self.counter.add(x)
        return {"mean": self.counter.read("total") / self.counter.read("count").astype("float32")}

    def peek(self, x):
        return x


def test_effects_of_ones_own() -> None:
    methods = {name: {"x": nn.spec.Tensor([2])} for name in ("forward", "peek")}
    machine = ky.VirtualMachine(ky.compile(nn.ModuleSpec(Averaging(), methods), backends=[]))
    state = machine.run("_initialize_effect", {})
    results = machine.run("forward", {"x": np.full(2, 4, np.float32), **state})
    assert results["mean"].numpy().tolist() == [0.75, 0.75]
    assert results["counter.count"].numpy() == 12
    assert results["counter.total"].numpy().tolist() == [9, 9]
    state = {name: results[name] for name in state}
    unread = machine.run("peek", {"x": np.zeros(2, np.float32), **state})
    assert unread["counter.total"].numpy().tolist() == [9, 9]


def test_the_dtype_of_state_changes_with_that_of_parameters() -> None:
    decoder = Decoder(1).to("float16")
    assert {array.dtype.name for array in decoder.layers[0].keys.initial().values()} == {"float16"}
    counter = Averaging().to("float16").counter
    assert [kind.dtype for kind in counter.states.values()] == ["int64", "float16"]


class Applied(nn.Module):
    def __init__(self, function) -> None:
        self.cache = nn.KVCache((2,))
        self.function = function

    def forward(self, x):
        return self.function(self.cache, x)


STRAY = nn.KVCache((2,))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda cache, x: cache.append(x.reshape(-1)), "rows of another type"),
        (lambda cache, x: cache.append(x.astype("float64")), "rows of another type"),
        (lambda cache, x: cache.append(op.concat([x, x], 1)), "rows of another type"),
        (lambda cache, x: cache.write("rows", x.reshape(-1)), "assigned to the state 'rows'"),
        (lambda cache, x: cache.write("rows", x.astype("float64")), "assigned to the state 'rows'"),
        (lambda cache, x: cache.write("rows", op.concat([x, x], 1)), "assigned to the state 'rows'"),
        (lambda cache, x: cache.read("row"), "no state 'row'"),
        (lambda cache, x: cache.write("row", x), "no state 'row'"),
        (lambda cache, x: STRAY.view(), "not an attribute of the exported module"),
    ],
)
def test_what_cannot_be_state(function, message: str) -> None:
    with pytest.raises(FrontendError, match=message):
        Applied(function).export({"forward": {"x": nn.spec.Tensor(["n", 2])}})


def test_the_first_rows_alone() -> None:
    def function(cache, x):
        cache.append(x)
        return cache.view(x.shape[0])

    model = nn.ModuleSpec(Applied(function), {"forward": {"x": nn.spec.Tensor(["n", 2])}})
    machine = ky.VirtualMachine(ky.compile(model, backends=[]))
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    first, cache = machine["forward"](rows[:1], rows)
    assert first.numpy().tolist() == [[0, 1]]
    assert cache.numpy().tolist() == [*rows.tolist(), [0, 1]]


def test_effects_that_are_refused() -> None:
    with pytest.raises(FrontendError, match="no states"):
        nn.Effect({})
    with pytest.raises(FrontendError, match="positive integers"):
        nn.KVCache((2, 0))
    with pytest.raises(FrontendError, match="positive integers"):
        nn.KVCache((2,), max_length=-1)
    with pytest.raises(FrontendError, match="positive integers"):
        nn.WindowKVCache((2,), window=0)
    with pytest.raises(FrontendError, match="no initial shape"):
        nn.Effect({"x": nn.spec.Tensor(["n - 2"])}).initial()

    class Wrong(Counter):
        def initial(self):
            return {"count": np.asarray(0), "total": np.ones(3, np.float32)}

    averaging = Averaging()
    averaging.counter = Wrong()
    with pytest.raises(FrontendError, match=r"initial state 'counter\.total' does not fit"):
        averaging.export({"peek": {"x": nn.spec.Tensor([2])}})

    class Lacking(Counter):
        def initial(self):
            return {"count": np.asarray(0)}

    averaging.counter = Lacking()
    with pytest.raises(FrontendError, match=r"no initial state 'counter\.total'"):
        averaging.export({"peek": {"x": nn.spec.Tensor([2])}})


def test_the_name_of_the_first_state_is_taken() -> None:
    class Named(Averaging):
        def _initialize_effect(self, x):
            return x

    with pytest.raises(FrontendError, match="may be called '_initialize_effect'"):
        Named().export({"_initialize_effect": {"x": nn.spec.Tensor([2])}})
