"""torch.compile(model, backend="kernelyard")."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernelyard.errors import ExecutionError, OptionError, PerformanceWarning
from kernelyard.testing import assert_offloaded

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import torch_networks as n  # noqa: E402
from torch_agreement import TOLERANCE, leaves  # noqa: E402
from torch_cases import CASES  # noqa: E402
from torch_control_flow import Branches, Loop  # noqa: E402

from kernelyard_torch.compile_options import CompileOptions  # noqa: E402
from kernelyard_torch.compiled_graph import CompiledGraph  # noqa: E402


def same(found: Any, expected: Any) -> None:
    for result, tensor in zip(leaves(found), leaves(expected), strict=True):
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        torch.testing.assert_close(result, tensor, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, largest))


@pytest.mark.parametrize("name", [name for name in CASES if name != "lstm"])  # TorchDynamo captures no nn.LSTM
def test_networks(name: str, graphs: list[CompiledGraph]) -> None:
    case = CASES[name]
    model = case.make().eval()
    compiled = torch.compile(model, backend="kernelyard", dynamic=True, options={"backends": ["dnnl"]})
    with torch.no_grad():
        for inputs in (case.inputs(3, 7), case.inputs(2, 11)):
            same(compiled(*inputs), model(*inputs))
    assert graphs
    assert_offloaded(graphs[0].executable, "dnnl", case.pattern, at_least=case.at_least)


def test_no_backends(graphs: list[CompiledGraph]) -> None:
    model = n.MLP().eval()
    compiled = torch.compile(model, backend="kernelyard", options={"backends": []})
    x = torch.randn(3, 16)
    with torch.inference_mode():
        same(compiled(x), model(x))
    assert set(graphs[0].executable.report.coverage) <= {"native-cpu", "view"}


def test_graph_breaks(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        return y * 2 if float(y.sum()) > 0 else y - 1

    compiled = torch.compile(function, backend="kernelyard")
    for x in (torch.ones(3), -torch.ones(3)):
        same(compiled(x), function(x))
    assert len(graphs) >= 2


def test_unsupported_graphs_are_left_to_pytorch_with_one_warning(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        return torch.linalg.svdvals(x).abs() + 1

    compiled = torch.compile(function, backend="kernelyard")
    x = torch.randn(4, 3)
    with pytest.warns(PerformanceWarning, match="svd") as caught:
        found = compiled(x)
    same((found, compiled(x)), (function(x), function(x)))  # the second call warns no more
    (only,) = [w for w in caught if issubclass(w.category, PerformanceWarning)]
    assert only.filename == __file__  # not a line of PyTorch's or ours
    assert not graphs


def test_gradients_are_left_to_pytorch(graphs: list[CompiledGraph]) -> None:
    model = n.MLP()
    compiled = torch.compile(model, backend="kernelyard")
    x = torch.randn(3, 16)
    with pytest.warns(PerformanceWarning, match="gradients"):
        compiled(x).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    assert not graphs


def test_weights_that_are_written_to_are_seen(graphs: list[CompiledGraph]) -> None:
    model = torch.nn.Linear(4, 4)
    compiled = torch.compile(model, backend="kernelyard")
    x = torch.randn(2, 4)
    with torch.no_grad():
        same(compiled(x), model(x))
        model.weight.mul_(3)
        same(compiled(x), model(x))
        model.weight.copy_(torch.eye(4))
        same(compiled(x), model(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("freeze", [True, False])
def test_mutation_of_inputs_and_buffers(freeze: bool, graphs: list[CompiledGraph]) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            x.add_(1)
            self.total.add_(x)
            return self.total * 2

    model, plain = Counter(), Counter()
    compiled = torch.compile(model, backend="kernelyard", options={"freeze": freeze})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3)
            y = x.clone()
            same(compiled(x), plain(y))
            same(x, y)
    same(model.total, plain.total)
    assert graphs


def test_outputs_are_memory_of_their_own(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: (x + 1, x.reshape(2, 2)), backend="kernelyard")
    x = torch.zeros(4)
    first, _ = compiled(x)
    second, _ = compiled(x + 5)
    first.add_(10)
    same(first, torch.full((4,), 11.0))
    same(second, torch.full((4,), 6.0))


def test_numbers_as_inputs(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x, n: x * n + n, backend="kernelyard", dynamic=True)
    for number in (3, 7):
        same(compiled(torch.ones(2), number), torch.ones(2) * number + number)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_dtypes(dtype: Any, graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: (x + x) * 2, backend="kernelyard")
    x = torch.arange(6).to(dtype).reshape(2, 3)
    assert torch.equal(compiled(x), (x + x) * 2)
    assert torch.equal(compiled(x.T), ((x + x) * 2).T)


def test_unknown_options() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard", options={"backend": []})
    with pytest.raises(Exception, match="no option 'backend'") as caught:
        compiled(torch.ones(2))
    assert OptionError.code in str(caught.value)


def test_it_is_found_by_its_entry_point_in_a_new_process() -> None:
    assert "kernelyard" in torch._dynamo.list_backends()
    code = (
        "import warnings; warnings.simplefilter('error', UserWarning)\n"
        "import torch; compiled = torch.compile(lambda x: (x * 2).relu(), backend='kernelyard')\n"
        "assert compiled(torch.tensor([1.0, -1.0])).tolist() == [2.0, 0.0]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_weights_without_a_count_of_writes_are_inputs(graphs: list[CompiledGraph]) -> None:
    with torch.inference_mode():
        model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        compiled = torch.compile(model, backend="kernelyard")
        same(compiled(x), model(x))
    assert len(graphs[0].executable.inputs) == 3


def test_branches_and_loops(graphs: list[CompiledGraph]) -> None:
    branches, loop = Branches(), Loop()
    compiled = torch.compile(branches, backend="kernelyard"), torch.compile(loop, backend="kernelyard")
    with torch.no_grad():
        for x in (torch.ones(3, 4), -torch.ones(3, 4)):
            same(compiled[0](x), branches(x))
        for turns in (torch.tensor(0), torch.tensor(3)):
            same(compiled[1](turns, x), loop(turns, x))
    assert all(graph.executable.vm_functions for graph in graphs)
    assert len(graphs) == 2


# --- containers, numbers, constants -----------------------------------------------------------------------------------
def test_containers_keywords_and_none(graphs: list[CompiledGraph]) -> None:
    def function(x: Any, extras: Any, *, mask: Any = None, flag: bool = True) -> Any:
        first, second = extras["features"]
        y = x + first * second if flag else x
        return {"y": y if mask is None else y * mask, "rest": [None, (y.sum(), 3)]}

    compiled = torch.compile(function, backend="kernelyard", fullgraph=True)
    x = torch.randn(2, 3)
    for keywords in ({}, {"mask": torch.ones(3) * 2}, {"mask": None, "flag": False}):
        given = (x, {"features": [x * 2, x - 1]})
        found, expected = compiled(*given, **keywords), function(*given, **keywords)
        same(found, expected)
        assert found["rest"][0] is None
        assert found["rest"][1][1] == 3
    assert len(graphs) == 3


def test_constants_in_a_graph(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        y = x.new_zeros(x.shape)
        y[1:, :2] = 3
        return x + y + torch.tensor([1.0, 2.0, 3.0])

    compiled = torch.compile(function, backend="kernelyard", fullgraph=True)
    x = torch.randn(3, 3)
    same(compiled(x), function(x))
    assert graphs


def test_tied_weights_are_one_input(graphs: list[CompiledGraph]) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.words(tokens))

    model = Tied()
    compiled = torch.compile(model, backend="kernelyard", options={"freeze": False})
    tokens = torch.tensor([3, 5])
    with torch.no_grad():
        same(compiled(tokens), model(tokens))
    assert sorted(info.shape for info in graphs[0].executable.inputs) == [(2,), (6, 4)]


def test_sizes_that_data_decides(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        return x.nonzero(), x[x > 0] * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="kernelyard", fullgraph=True)
        for values in ([1.0, 0.0, -2.0], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]):
            same(compiled(torch.tensor(values)), function(torch.tensor(values)))
    assert len(graphs) == 1


def test_numbers_that_are_zero(graphs: list[CompiledGraph]) -> None:
    """Numbers are no sizes: a slice up to one, of two counters, may be empty."""

    class Counters(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = 0, 3

        def forward(self, x: Any) -> Any:
            parts = x[:, : self.first].sum(1), x[:, : self.second].sum(1)
            self.first, self.second = self.first + 1, self.second + 1
            return torch.stack(parts)

    model, plain = Counters(), Counters()
    compiled = torch.compile(model, backend="kernelyard", dynamic=True)
    x = torch.randn(2, 8)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", PerformanceWarning)
        for _ in range(2):
            for _ in range(4):
                same(compiled(x), plain(x))
            model.first = plain.first = 0
    assert graphs


def test_numbers_that_are_too_large(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x, n: x[:, :n] * 2, backend="kernelyard", dynamic=True)
    x = torch.randn(2, 8)
    same(compiled(x, 3), x[:, :3] * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        for n in (-2, sys.maxsize):
            same(compiled(x, n), x[:, :n] * 2)
    assert graphs


def test_returned_numbers_are_no_inputs_of_the_program(graphs: list[CompiledGraph]) -> None:
    """A number that is counted beside the tensors costs the program nothing."""

    def function(x: Any, count: int) -> Any:
        return x * 2, count + 1, 2 * count * x.shape[0]

    compiled = torch.compile(function, backend="kernelyard", dynamic=True)
    x = torch.randn(3)
    for count in (5, 7):
        found = compiled(x, count)
        same(found[0], x * 2)
        assert found[1:] == function(x, count)[1:]
    assert len(graphs[0].executable.inputs) == 1


def test_the_last_of_what_may_be_shorter(graphs: list[CompiledGraph]) -> None:
    """A window over a cache that grows: a negative bound beyond the front is the front."""

    def function(cache: Any, x: Any) -> Any:
        return torch.cat([cache, x], 1)[:, -14:] * 2

    compiled = torch.compile(function, backend="kernelyard")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        for length in (20, 25, 30, 12, 5, 13):
            feeds = torch.randn(2, length, 4), torch.randn(2, 1, 4)
            same(compiled(*feeds), function(*feeds))
    assert graphs


def test_a_bound_may_be_zero(graphs: list[CompiledGraph]) -> None:
    """It is a number that is traced as a symbol, not the size of an input."""

    def function(x: Any, begin: int) -> Any:
        return x[:, begin : begin + 7] * 2

    compiled = torch.compile(function, backend="kernelyard")
    x = torch.randn(2, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        for begin in (5, 11, 3, 0, 2):
            same(compiled(x, begin), function(x, begin))
    assert graphs


def test_a_call_that_does_not_work_is_left_to_pytorch(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard")
    x = torch.randn(2, 4)
    same(compiled(x), x + 1)

    def fail(*_: Any) -> Any:
        raise ExecutionError("a step failed")

    works = graphs[0].program
    assert works is not None
    graphs[0].program = works._replace(executable=fail)  # pyright: ignore[reportArgumentType]
    with pytest.warns(PerformanceWarning, match="calls fall back to eager PyTorch"):
        same(compiled(x), x + 1)
    same(compiled(x), x + 1)  # it warns once
    graphs[0].program = works
    same(compiled(x), x + 1)


def test_numbers_read_from_tensors(graphs: list[CompiledGraph]) -> None:
    def function(x: Any, count: Any) -> Any:
        n = count.item()
        torch._check(n >= 0)
        return torch.zeros(n) + x, x * n

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="kernelyard", fullgraph=True)
        for count in (0, 2, 5):
            same(compiled(torch.ones(1), torch.tensor(count)), (torch.ones(count), torch.ones(1) * count))
    assert graphs


def test_complex_numbers_inside_a_graph(graphs: list[CompiledGraph]) -> None:
    turns = torch.polar(torch.ones(2), torch.tensor([0.5, 2.0]))

    def function(x: Any) -> Any:
        return torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * turns).flatten(1)

    compiled = torch.compile(function, backend="kernelyard", fullgraph=True, options={"freeze": True})
    x = torch.randn(3, 4)
    same(compiled(x), function(x))
    turning = torch.compile(lambda x: (x * 1j, torch.fft.fft(x).T), backend="kernelyard")
    for found, expected in zip(turning(x), (x * 1j, torch.fft.fft(x).T), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    assert len(graphs) == 2


@pytest.mark.parametrize("first", [-2, 2])
def test_numbers_of_any_sign(first: int, graphs: list[CompiledGraph]) -> None:
    """One program is for all of them, but where TorchDynamo guards the sign."""
    functions = (
        lambda x, n: x[:, n:] * 2,
        lambda x, n: torch.roll(x, n, 1) * n,
        lambda x, n: x.tril(n) + x.triu(n),
        lambda x, n: torch.nn.functional.pad(x, (n, -n)) + 1,
    )
    x = torch.randn(8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        for function in functions:
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="kernelyard", dynamic=True)
            for n in (first, first + 1, -3, 3, 0):
                same(compiled(x, n), function(x, n))
    assert graphs


def test_what_is_unsupported_is_left_to_pytorch_alone(graphs: list[CompiledGraph]) -> None:
    """The nodes before and after are compiled; numbers, random ones too, come as from eager PyTorch."""

    def function(x: Any, weight: Any) -> Any:
        y = torch.relu(x @ weight) * torch.rand(x.shape[0], 1) + 1
        inverse = torch.linalg.inv(y[:, :3].T @ y[:, :3] + torch.eye(3))
        z = inverse * torch.multinomial(y.abs(), 1).sum() + torch.rand(3)
        return torch.tanh(z * 2).sum(0) - x.shape[0], x.shape[0] * 2, x

    compiled = torch.compile(function, backend="kernelyard", dynamic=True)
    weight = torch.randn(5, 4)
    for rows in (6, 9):
        x = torch.randn(rows, 5)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            torch.manual_seed(7)
            found = compiled(x, weight)
            torch.manual_seed(7)
            same(found, function(x, weight))
            assert found[1] == rows * 2
        if rows == 6:
            assert any("is compiled in 2 parts around eager PyTorch" in str(w.message) for w in caught)
    assert len(graphs) == 2
    assert all("native-cpu" in graph.executable.report.coverage for graph in graphs)


# --- random numbers ---------------------------------------------------------------------------------------------------
def test_random_numbers_are_those_of_pytorchs_seed(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        y = x * torch.rand(x.shape) + torch.randn(x.shape[0], 1)
        return y, torch.randint(0, 9, (4,)), torch.randperm(5), torch.rand_like(y)

    compiled = torch.compile(function, backend="kernelyard", fullgraph=True, dynamic=True)
    for count in (3, 5):
        x = torch.ones(count, 2)
        torch.manual_seed(7)
        expected = [function(x), function(x)]
        torch.manual_seed(7)
        same([compiled(x), compiled(x)], expected)
    assert len(graphs) == 1


def test_random_numbers_lie_as_the_tensor_that_they_are_like(graphs: list[CompiledGraph]) -> None:
    def function(x: Any) -> Any:
        return torch.randn_like(x) * 2, torch.rand_like(x) + 1

    compiled = torch.compile(function, backend="kernelyard")
    for length in (40, 30):
        x = torch.randn(3, length, 8).transpose(1, 2)
        torch.manual_seed(5)
        expected = function(x)
        torch.manual_seed(5)
        same(compiled(x), expected)
    assert graphs


def test_random_numbers_that_data_decides_are_left_to_pytorch(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: torch.poisson(x.abs()) + 1, backend="kernelyard")
    with pytest.warns(PerformanceWarning, match="poisson"):
        found = compiled(torch.randn(50))
    assert bool((found >= 1).all())
    assert not graphs


@pytest.mark.parametrize("training", [False, True])
def test_dropout(training: bool, graphs: list[CompiledGraph]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Dropout(0.5)).train(training)
    compiled = torch.compile(model, backend="kernelyard")
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compiled(torch.randn(3, 20))
        assert bool((found == 0).any()) == training
    assert bool(graphs) or any("dropout" in str(warning.message) for warning in caught)
    assert bool(graphs) or training


# --- options ----------------------------------------------------------------------------------------------------------
def test_options_of_plugins_reach_the_compiler(graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard", options={"options": {"nobody": {"a": 1}}})
    with pytest.raises(Exception, match="nobody") as caught:
        compiled(torch.ones(2))
    assert OptionError.code in str(caught.value)


def test_names_that_there_are_not_are_refused() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard", options={"precision": "float3"})
    with pytest.raises(Exception, match="float3"):
        compiled(torch.ones(2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard", mode="fastest-of-all")
    with pytest.raises(Exception, match="fastest-of-all"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_of_pytorch_are_accepted(mode: str, graphs: list[CompiledGraph]) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="kernelyard", mode=mode)
    same(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert graphs


def test_threads_and_precision(graphs: list[CompiledGraph]) -> None:
    model = torch.nn.Linear(64, 64).eval()
    options = {"threads": 3, "precision": "bf16"}
    x = torch.randn(4, 64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)  # a CPU without bfloat16 is slow
        torch.testing.assert_close(
            torch.compile(model, backend="kernelyard", options=options)(x), model(x), rtol=0.05, atol=0.05
        )
    assert graphs[0].executable is not None
    assert graphs[0].executable.threads == 3


def test_pytorchs_number_of_threads_is_the_default(graphs: list[CompiledGraph]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.compile(lambda x: x + 1, backend="kernelyard")(torch.ones(2))
    finally:
        torch.set_num_threads(before)
    assert graphs[0].executable is not None
    assert graphs[0].executable.threads == 1


# --- strides and memory -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_are_those_of_eager_mode(dynamic: bool, graphs: list[CompiledGraph]) -> None:
    model = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last).eval()
    compiled = torch.compile(model, backend="kernelyard", dynamic=dynamic)
    with torch.no_grad():
        for size in (9, 12):
            x = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last)
            found, eager = compiled(x), model(x)
            assert found.stride() == eager.stride()
            same(found, eager)
    assert graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).permute(2, 0, 1),
        lambda x: torch.relu(x).transpose(0, 1),
        lambda x: (x + 1).mT,
        lambda x: torch.cat([x, x], 1).permute(1, 2, 0),
    ],
)
def test_transposed_results(function: Any, graphs: list[CompiledGraph]) -> None:
    x = torch.randn(3, 4, 5)
    found, eager = torch.compile(function, backend="kernelyard")(x), function(x)
    assert found.stride() == eager.stride()
    same(found, eager)
    assert graphs


def test_callbacks_of_freed_results_are_not_traced(graphs: list[CompiledGraph], capfd: Any) -> None:
    """Let go of results inside of functions that TorchDynamo captures, where each frame is looked at."""

    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, states: list[Any]) -> None:
            torch._dynamo.graph_break()
            states[:] = [self.linear(state) for state in states]

    compiled = torch.compile(Steps(), backend="kernelyard")
    states = [torch.randn(2, 8), torch.randn(2, 8)]
    with torch.no_grad():
        for _ in range(4):
            compiled(states)
    assert graphs
    assert "Exception ignored" not in capfd.readouterr().err


def test_long_fourier_transforms_are_left_to_pytorch(graphs: list[CompiledGraph]) -> None:
    """Transforms of short axes are compiled with what is around them."""

    def convolve(x: Any, kernel: Any) -> Any:
        size = 2 * x.shape[-1]
        spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size)
        y = torch.fft.irfft(spectrum, size)[..., : x.shape[-1]]
        return (y.tanh() + x).softmax(-1) * 2

    for length, is_left in ((256, True), (8, False)):
        graphs.clear()
        torch._dynamo.reset()
        x, kernel = torch.randn(3, length), torch.randn(length)
        with torch.no_grad():
            found = torch.compile(convolve, backend="kernelyard")(x, kernel)
            torch.testing.assert_close(found, convolve(x, kernel), rtol=1e-4, atol=1e-5)
        compiled = [graph for graph in graphs if graph.executable is not None]
        names = [str(node.target) for graph in compiled for node in graph._graph.graph.nodes]
        assert "aten.tanh.default" in names
        assert ("aten._fft_c2r.default" not in names) == is_left


def test_threads_that_find_a_weight_written_to_compile_it_once(
    graphs: list[CompiledGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    compiled = torch.compile(model, backend="kernelyard")
    calls, compile_module, x = [], CompileOptions.compile, torch.randn(3, 8)

    def compile_slowly(options: CompileOptions, module: Any) -> Any:
        calls.append(module)
        time.sleep(0.5)  # the other thread comes to the graph meanwhile
        return compile_module(options, module)

    def call(_: int) -> Any:
        with torch.no_grad():
            return compiled(x)

    call(0)
    with torch.no_grad():
        model[0].weight.mul_(2)
    monkeypatch.setattr(CompileOptions, "compile", compile_slowly)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(call, range(2)):
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    assert len(graphs) == len(calls) == 1
