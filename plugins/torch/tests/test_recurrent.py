"""nn.LSTM, nn.GRU and nn.RNN: one operator for each layer and direction."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402

import kernelyard as ky  # noqa: E402
from kernelyard.ir import Call, Function  # noqa: E402
from kernelyard_torch.frontend import TorchFrontend  # noqa: E402

BATCH = torch.export.Dim("batch", max=64)
OPERATORS = {"LSTM": "nn.lstm", "GRU": "nn.gru", "RNN": "nn.rnn"}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm, batch first": ("LSTM", {"batch_first": True, "bidirectional": True}),
    "lstm without biases": ("LSTM", {"bias": False}),
    "gru": ("GRU", {"bidirectional": True}),
    "gru without biases": ("GRU", {"bias": False, "batch_first": True}),
    "rnn": ("RNN", {"nonlinearity": "tanh"}),
    "rnn of relu": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


class Layers(nn.Module):
    def __init__(self, kind: str, **settings: Any) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(6, 20, 2, **settings)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.layers(x, *states)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], axis: int) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    states = {"states": ({1: BATCH},)} if len(inputs) > 1 else {}
    with torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes={"x": {axis: BATCH}, **states})


def operators(program: torch.export.ExportedProgram) -> Counter[str]:
    main = TorchFrontend().import_model(program, {})["main"]
    assert isinstance(main, Function)
    return Counter(each.value.op_name for each in main.bindings if isinstance(each.value, Call))


def agree(exe: ky.Executable, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected = model(*inputs)
    for found, wanted in zip(exe(*(x.numpy() for x in inputs)), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_layers(name: str) -> None:
    kind, settings = SETTINGS[name]
    model = Layers(kind, **settings).eval()
    axis = 0 if settings.get("batch_first") else 1
    program = exported(model, (torch.randn(4, 5, 6),), axis)
    assert operators(program)[OPERATORS[kind]] == 2 * (1 + settings.get("bidirectional", False))
    exe = ky.compile(program, backends=[])
    for batch in (1, 3):
        shape = (batch, 5, 6) if axis == 0 else (4, batch, 6)
        agree(exe, model, torch.randn(*shape))


def test_given_states() -> None:
    model = Layers("GRU").eval()
    inputs = torch.randn(4, 3, 6), torch.randn(2, 3, 20)
    agree(ky.compile(exported(model, inputs, 1), backends=[]), model, *inputs)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
def test_what_the_operator_does_not_do_comes_apart() -> None:
    model = Layers("LSTM", proj_size=4).eval()
    program = exported(model, (torch.randn(4, 3, 6),), 1)
    assert not operators(program)["nn.lstm"]
    agree(ky.compile(program, backends=[]), model, torch.randn(4, 2, 6))
