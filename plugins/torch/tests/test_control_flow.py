"""torch.cond and while_loop become the operators `if` and `while`."""

from __future__ import annotations

from typing import Any

import pytest

import kernelyard as ky

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch._higher_order_ops import while_loop  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch_agreement import check_same, export_and_check  # noqa: E402
from torch_control_flow import Branches, Loop  # noqa: E402

BACKENDS = pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=["native", "dnnl"])


class Nested(torch.nn.Module):
    """A branch inside a loop."""

    def forward(self, x: Any) -> Any:
        def body(turn: Any, x: Any) -> Any:
            return turn + 1, torch.cond(x.max() > 4, lambda x: x / 2, lambda x: x * 3, (x,))

        return while_loop(lambda turn, x: turn < 5, body, (torch.zeros((), dtype=torch.int64), x))[1]


def operators(exe: ky.Executable) -> str:
    return "\n".join(str(vm_function) for vm_function in exe.vm_functions.values())


@BACKENDS
@pytest.mark.parametrize("open_sizes", [False, True], ids=["static", "dynamic"])
def test_cond(open_sizes: bool, backends: list[str]) -> None:
    batch = {0: Dim("batch", min=2, max=8)}
    exe = export_and_check(
        Branches(),
        torch.ones(3, 4),
        dynamic_shapes=(batch,) if open_sizes else None,
        others=[(-torch.ones(5 if open_sizes else 3, 4),)],
        backends=backends,
    )
    assert "if(" in operators(exe)


@BACKENDS
def test_while_loop(backends: list[str]) -> None:
    x = torch.randn(2, 4)
    exe = export_and_check(
        Loop(), torch.tensor(3), x, others=[(torch.tensor(0), x), (torch.tensor(7), x)], backends=backends
    )
    assert "goto" in operators(exe)


def test_a_branch_inside_a_loop() -> None:
    exe = export_and_check(Nested(), torch.tensor([1.0, 2.0]), others=[(torch.tensor([-3.0, 9.0]),)])
    assert "if(" in operators(exe)


def test_condition_of_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.shape[0] > 4, lambda x: x + 1, lambda x: x - 1, (x,))

    model = Model()
    program = torch.export.export(model, (torch.ones(6),), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    exe = ky.compile(program, backends=[])
    for count in (3, 4, 5, 8):
        check_same(exe(torch.ones(count)), model(torch.ones(count)))
