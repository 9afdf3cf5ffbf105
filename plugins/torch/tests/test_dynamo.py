"""torch.compile(model, backend="kernelyard")."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kernelyard.errors import OptionError, PerformanceWarning
from kernelyard.testing import assert_offloaded

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import torch_networks as n  # noqa: E402
from torch_agreement import TOLERANCE, leaves  # noqa: E402
from torch_cases import CASES  # noqa: E402
from torch_control_flow import Branches, Loop  # noqa: E402

from kernelyard_torch import dynamo  # noqa: E402
from kernelyard_torch.compiled_graph import CompiledGraph  # noqa: E402


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[CompiledGraph]:
    """The graphs that were compiled, in order."""
    made: list[CompiledGraph] = []

    def remembered(*args: Any) -> CompiledGraph:
        made.append(CompiledGraph(*args))
        return made[-1]

    monkeypatch.setattr(dynamo, "CompiledGraph", remembered)
    torch._dynamo.reset()
    return made


def same(found: Any, expected: Any) -> None:
    for result, tensor in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(result, tensor, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, float(tensor.abs().max())))


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
        return torch.fft.rfft(x).abs() + 1

    compiled = torch.compile(function, backend="kernelyard")
    x = torch.randn(8)
    with pytest.warns(PerformanceWarning, match="fft") as caught:
        found = compiled(x)
    same((found, compiled(x)), (function(x), function(x)))  # the second call warns no more
    assert len([w for w in caught if issubclass(w.category, PerformanceWarning)]) == 1
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
    assert all(graph.executable.routines for graph in graphs)
    assert len(graphs) == 2
