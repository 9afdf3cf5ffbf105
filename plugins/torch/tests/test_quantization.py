"""Programs with the operators of `quantized_decomposed`, as pt2e writes them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.nn import functional as F  # noqa: E402, N812

import kernelyard as ky  # noqa: E402
from kernelyard.plugins.discovery.manager import get_manager  # noqa: E402

pytest.importorskip("torch.ao.quantization.fx._decomposed", reason="it declares the operators")
Q = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)


class Quantized(torch.nn.Module):
    """A convolution with weights per channel, and a linear layer, whose inputs are uint8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("kernel", torch.randint(-127, 128, (8, 3, 3, 3), generator=generator, dtype=torch.int8))
        self.register_buffer("kernel_scales", torch.rand(8, generator=generator) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("weight", torch.randint(-127, 128, (5, 8), generator=generator, dtype=torch.int8))

    def forward(self, x: Any) -> Any:
        x = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, 0.02, 120, *UINT8), 0.02, 120, *UINT8)
        kernel = Q.dequantize_per_channel(self.kernel, self.kernel_scales, self.zeros, 0, -127, 127, torch.int8)
        x = F.relu(F.conv2d(x, kernel)).mean((2, 3))
        scale, zero = torch.tensor([0.01]), torch.tensor([3])
        x = Q.dequantize_per_tensor.tensor(Q.quantize_per_tensor.tensor(x, scale, zero, *INT8), scale, zero, *INT8)
        x = F.linear(x, Q.dequantize_per_tensor(self.weight, 0.01, 0, *INT8))
        return Q.quantize_per_tensor(x, 0.05, 2, 0, 127, torch.uint8)


def test_a_quantized_network_gives_what_pytorch_gives():
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(Quantized(), (x,))
    expected = Quantized()(x).numpy()
    found = ky.compile(program, backends=[])(x.numpy()).numpy()
    assert found.dtype == np.uint8
    assert found.max() <= 127
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert (found == expected).mean() > 0.8  # PyTorch multiplies by the reciprocal of a scale


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_channels_have_scales_of_their_own(axis):
    class Channels(torch.nn.Module):
        def forward(self, x: Any, scales: Any, zeros: Any) -> Any:
            stored = Q.quantize_per_channel(x, scales, zeros, axis, -100, 100, torch.int8)
            return stored, Q.dequantize_per_channel(stored, scales, zeros, axis, -100, 100, torch.int8)

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    size = x.shape[axis]
    given = (x, 2.0 ** -torch.arange(1, size + 1), torch.arange(size) - 2)
    exe = ky.compile(torch.export.export(Channels(), given), backends=[])
    for found, expected in zip(exe(*(each.numpy() for each in given)), Channels()(*given), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_products_arrive_quantized():
    program = torch.export.export(Quantized(), (torch.zeros(2, 3, 9, 9),))
    module = get_manager().get("torch", "frontend").import_model(program, {})
    ops = [binding.value.op_name for binding in module["main"].bindings if hasattr(binding.value, "op_name")]
    assert ops.count("dequantize") == 4
    assert ops.count("quantize") == 3


def test_a_saved_program_is_read_where_nothing_has_declared_its_operators(tmp_path):
    path = tmp_path / "quantized.pt2"
    torch.export.save(torch.export.export(Quantized(), (torch.zeros(2, 3, 9, 9),)), path)
    read = f"import kernelyard as ky; print(len(ky.compile({str(path)!r}, backends=[]).inputs))"
    found = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=False)
    assert (found.stdout.strip(), found.returncode) == ("1", 0), found.stderr


def test_small_weights_with_wide_zero_points_stay_stored():
    program = torch.export.export(Quantized(), (torch.zeros(2, 3, 9, 9),))
    patterns = str(ky.explain(program, backends=["dnnl"]))
    assert "dnnl.quantized_conv2d" in patterns
