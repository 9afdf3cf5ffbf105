"""What becomes of names, containers, weights and sizes of a program, and which programs are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import FrontendError, UnsupportedOperatorError
from kernelyard.ir import Constant, Function, operands

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.export import Dim  # noqa: E402
from torch_agreement import check_same, export_and_check  # noqa: E402

from kernelyard_torch.frontend import TorchFrontend  # noqa: E402
from kernelyard_torch.tensors import to_array  # noqa: E402


def export(function: Any, *inputs: Any, **options: Any) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    return torch.export.export(function if isinstance(function, torch.nn.Module) else Model(), inputs, **options)


def constants_of(program: Any) -> list[Constant]:
    """The constants of a program's module, each object once."""
    main = TorchFrontend().import_model(program, {})["main"]
    assert isinstance(main, Function)
    read = [operand for binding in main.bindings for operand in operands(binding.value)]
    return list({id(operand): operand for operand in read if isinstance(operand, Constant)}.values())


# --- names and containers ---------------------------------------------------------------------------------------------
def test_names_of_sizes_inputs_and_outputs() -> None:
    class Model(torch.nn.Module):
        def forward(self, image: Any, extras: dict[str, Any], *, mask: Any) -> dict[str, Any]:
            first, second = extras["features"]
            return {"logits": image + first, "states": [second * mask, (image,)]}

    batch, width = Dim("batch", min=2, max=8), Dim("width", min=2, max=9)
    row = {0: batch, 1: width}
    program = torch.export.export(
        Model(),
        (torch.ones(3, 4), {"features": [torch.ones(3, 4), torch.ones(3, 4)]}),
        {"mask": torch.ones(3, 4)},
        dynamic_shapes={"image": row, "extras": {"features": [row, row]}, "mask": row},
    )
    exe = ky.compile(program, backends=[])
    assert [info.name for info in exe.inputs] == ["image", "extras_features_0", "extras_features_1", "mask"]
    assert [info.name for info in exe.outputs] == ["logits", "states_0", "states_1_0"]
    assert {info.shape for info in exe.inputs} == {("batch", "width")}
    assert exe.metadata == {"range.batch": "2..8", "range.width": "2..9"}
    feeds = {info.name: np.full((2, 5), float(i), np.float32) for i, info in enumerate(exe.inputs)}
    results = exe.run(feeds)
    assert {name: float(value.numpy()[0, 0]) for name, value in results.items()} == {
        "logits": 1.0,
        "states_0": 6.0,
        "states_1_0": 0.0,
    }


def test_sizes_without_a_name_are_called_after_their_input() -> None:
    exe = ky.compile(export(lambda x: x * 2, torch.ones(3, 4), dynamic_shapes=(({0: Dim.DYNAMIC, 1: Dim.AUTO},),)))
    assert exe.inputs[0].shape == (f"{exe.inputs[0].name}_0", f"{exe.inputs[0].name}_1")


def test_results_without_names_are_numbered_and_what_is_no_tensor_is_left_out() -> None:
    exe = ky.compile(export(lambda x: (x + 1, None, [x, 3]), torch.ones(2)), backends=[])
    assert [info.name for info in exe.outputs] == ["output_0", "output_2_0", "output_2_1"]


def test_inputs_that_are_none_or_unused() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, bias: Any = None, unused: Any = None) -> Any:
            return x * 2 if bias is None else x + bias

    x = torch.ones(2)
    exe = ky.compile(torch.export.export(Model(), (x,), {"bias": None, "unused": x}), backends=[])
    assert [info.name for info in exe.inputs] == ["x", "unused"]
    check_same(exe(x, x), x * 2)


# --- weights ----------------------------------------------------------------------------------------------------------
def test_weights_are_not_copied_and_tied_ones_stay_tied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False)
            self.head.weight = self.words.weight
            self.register_buffer("scale", torch.full((6,), 2.0))

        def forward(self, tokens: Any) -> Any:
            return self.head(self.words(tokens)) * self.scale

    model = Tied()
    program = torch.export.export(model, (torch.tensor([1, 2]),))
    weights = [each for each in constants_of(program) if each.data.shape == (6, 4)]
    assert len(weights) == 1
    assert np.shares_memory(weights[0].data, program.state_dict["words.weight"].detach().numpy())
    check_same(ky.compile(program)(torch.tensor([3, 5])), model(torch.tensor([3, 5])))


def test_weights_and_results_are_the_same_memory_on_both_sides() -> None:
    model = torch.nn.Linear(4, 2)
    program = torch.export.export(model, (torch.ones(3, 4),))
    places = {constant.data.ctypes.data for constant in constants_of(program)}
    assert {weight.data_ptr() for weight in program.state_dict.values()} <= places
    assert model.weight.data_ptr() in places
    result = ky.compile(program, backends=[])(torch.ones(3, 4))
    assert torch.from_dlpack(result).data_ptr() == result.numpy().ctypes.data


def test_a_program_of_another_device_than_its_weights_is_read_in_host_memory() -> None:
    """The device "meta" stands for a GPU's, which a PyTorch without CUDA does not know."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            self.register_buffer("offset", torch.ones(3))

        def forward(self, x: Any) -> Any:
            chosen = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
            return self.linear(chosen) + self.offset + torch.arange(3)

    x = torch.randn(2, 4)
    wanted = Model.forward(model := Model(), x).detach().numpy()
    program = torch.export.export(model, (x,))
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta["val"] = value.to("meta")
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("meta")}
    found = ky.compile(program, backends=[])(x.numpy())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)
    assert any(str(node.kwargs.get("device")) == "meta" for node in program.graph.nodes)  # it is as it was


def test_reading_a_program_takes_time_in_proportion_to_its_nodes() -> None:
    def calls(layers: int) -> int:
        """How many functions of ours are called while a program is read."""
        program = torch.export.export(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers))), (x,))
        count = 0

        def counted(frame: Any, event: str, _: Any) -> None:
            nonlocal count
            count += event == "call" and "kernelyard" in frame.f_code.co_filename

        sys.setprofile(counted)
        try:
            TorchFrontend().import_model(program, {})
        finally:
            sys.setprofile(None)
        return count

    x = torch.ones(1, 4)
    first, second, third = calls(20), calls(40), calls(60)
    assert abs((third - second) - (second - first)) <= 0.1 * (second - first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_views_of_tensors(dtype: Any) -> None:
    tensor = torch.arange(6).to(dtype).reshape(2, 3)
    array = to_array(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    assert array.astype(np.float64).tolist() == tensor.double().tolist()
    assert to_array(tensor.T).shape == (3, 2)


# --- sizes that data decides ------------------------------------------------------------------------------------------
def test_sizes_that_data_decides() -> None:
    model = export(lambda x: (x.nonzero(), x[x > 0] * 2), torch.tensor([1.0, 0.0, -2.0]))
    exe = ky.compile(model, backends=[])
    for values in ([1.0, 0.0, -2.0], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]):
        x = torch.tensor(values)
        check_same(exe(x), (x.nonzero(), x[x > 0] * 2))


def test_unique_elements() -> None:
    def function(x: Any) -> Any:
        return *torch.unique(x, return_inverse=True, return_counts=True), torch.unique(x[0])

    exe = ky.compile(export(function, torch.tensor([[3, 1], [1, 1]])), backends=[])
    assert "reference" not in exe.report.coverage
    for values in ([[3, 1], [1, 1]], [[1, 2], [4, -3]], [[0, 0], [0, 0]]):
        x = torch.tensor(values)
        check_same(exe(x), function(x))


def test_numbers_read_from_tensors() -> None:
    def function(x: Any, count: Any) -> Any:
        n = count.item()
        torch._check(n >= 0)
        torch._check(n <= 8)
        return torch.zeros(n) + x, x * n

    exe = ky.compile(export(function, torch.ones(1), torch.tensor(3)), backends=[])
    for count in (0, 2, 5):
        check_same(exe(torch.ones(1), torch.tensor(count)), (torch.ones(count), torch.ones(1) * count))


# --- mutation ---------------------------------------------------------------------------------------------------------
class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        self.total += x
        return self.total * 2


def test_programs_that_write_to_their_buffers_are_refused_or_give_the_new_values() -> None:
    program = torch.export.export(Counter(), (torch.ones(2),))
    with pytest.raises(UnsupportedOperatorError, match="total"):
        ky.compile(program)
    exe = ky.compile(program, options={"torch": {"mutations": "outputs"}}, backends=[])
    assert [info.name for info in exe.inputs] == ["x", "total"]
    results = exe.run({"x": np.ones(2, np.float32), "total": np.full(2, 3, np.float32)})
    assert {name: value.numpy().tolist() for name, value in results.items()} == {
        "output": [8.0, 8.0],
        "new_total": [4.0, 4.0],
    }


def test_training_mode_of_batch_norm_gives_the_new_statistics() -> None:
    model = torch.nn.BatchNorm2d(3).train()
    program = torch.export.export(model, (torch.randn(4, 3, 5, 5),))
    with pytest.raises(UnsupportedOperatorError, match="running_mean"):
        ky.compile(program)
    exe = ky.compile(program, options={"torch": {"mutations": "outputs"}}, backends=[])
    x = torch.randn(4, 3, 5, 5)
    state = {name: value.clone() for name, value in model.named_buffers()}
    results = exe.run({exe.inputs[0].name: x, **state})
    with torch.no_grad():
        check_same(results.pop("output"), model(x))
    for name, value in model.named_buffers():
        check_same(results.pop(f"new_{name}"), value)
    assert not results


def test_programs_that_write_to_their_inputs_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="mutates its buffers or inputs"):
        ky.compile(export(lambda x: x.add_(1), torch.ones(2)))


# --- what is refused --------------------------------------------------------------------------------------------------
def test_all_unsupported_operators_are_listed_with_their_lines() -> None:
    def function(x: Any) -> Any:
        y = torch.linalg.svdvals(x[None])
        return torch.poisson(x).sum() + y.sum() + torch.randint(0, 3, (2,)).sum()

    with pytest.raises(UnsupportedOperatorError) as caught:
        ky.compile(export(function, torch.ones(8)))
    text = str(caught.value)
    assert "3 operators" in text
    assert "svd" in text
    assert "poisson" in text
    assert "randint" in text
    assert "test_exported_programs.py:" in text


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.linalg.eigvalsh, "aten._linalg_eigh"), (torch.linalg.lu_factor, "aten.linalg_lu_factor")],
)
def test_operators_that_check_for_errors_as_they_run_are_listed(function: Any, name: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match="there is no converter for it") as caught:
        ky.compile(export(function, torch.eye(3)))
    assert name in str(caught.value)


def test_random_numbers_are_drawn_anew_in_each_call() -> None:
    def function(x: Any) -> Any:
        return x + torch.rand(x.shape[0], 50), x + torch.randn(x.shape[0], 50), torch.randperm(x.shape[0])

    program = export(function, torch.zeros(4, 1), dynamic_shapes=(({0: Dim("n", min=2, max=99)},),))
    exe = ky.compile(program, backends=[])
    first, second = ([result.numpy() for result in exe(torch.zeros(60, 1))] for _ in range(2))
    even, normal, order = first
    assert 0 <= even.min() < 0.01 < 0.99 < even.max() < 1
    assert abs(normal.mean()) < 0.1 < 0.9 < normal.std() < 1.1
    assert sorted(order) == list(range(60))
    assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_slices_of_open_length_count_from_the_end() -> None:
    """A size that is a begin with a minus is one from the end, as a number would be."""

    def function(x: Any, y: Any) -> Any:
        count = y.shape[0]
        return x[:, -count:] + y, x[:, :-count] * 2, x[-1:, -count:], x[:, -(-count // 2) :]

    sizes = {1: Dim("size", min=4, max=40)}, {0: Dim("count", min=2, max=40)}
    exe = ky.compile(export(function, torch.zeros(3, 10), torch.zeros(4), dynamic_shapes=(sizes,)))
    for size, count in ((10, 4), (17, 5), (9, 8)):
        x, y = torch.randn(3, size), torch.randn(count)
        for found, expected in zip(exe(x, y), function(x, y), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


def test_training_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5)).train()
    with pytest.raises(UnsupportedOperatorError, match=r"model.eval\(\)"):
        ky.compile(torch.export.export(model, (torch.ones(2),)))


def test_options_are_checked() -> None:
    program = export(lambda x: x + 1, torch.ones(2))
    with pytest.raises(FrontendError, match="mutations"):
        TorchFrontend().import_model(program, {"mutation": "refuse"})
    with pytest.raises(FrontendError, match="unknown"):
        TorchFrontend().import_model(program, {"mutations": "perhaps"})


def test_other_models_do_not_import_torch() -> None:
    code = (
        "import sys; from kernelyard_torch.plugin import kernelyard_frontend as f; "
        "assert not f().accepts('model.onnx') and not f().accepts(b''); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_saved_program_is_the_same(tmp_path: Any) -> None:
    exe = export_and_check(torch.nn.Linear(4, 2), torch.randn(3, 4))
    exe.save(tmp_path / "linear.kyar")
    x = torch.randn(3, 4)
    assert np.array_equal(ky.load(tmp_path / "linear.kyar")(x).numpy(), exe(x).numpy())
