"""Networks of float32, and what onnxruntime's tools make of them in 8 bits; weights are random, widths are real.

Static: uint8 data, int8 weights with a scale for each channel, QuantizeLinear and DequantizeLinear around each operator
(QDQ) or operators of integers (QOperator). Dynamic: DynamicQuantizeLinear and MatMulInteger. Transformers have fewer
layers than those of their names: their layers are all alike.

Source: Howard et al. 2019 (arXiv:1905.02244); Huang et al. 2016 (arXiv:1608.06993); Ronneberger et al. 2015
(arXiv:1505.04597); Wang et al. 2019 (arXiv:1911.11929).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the field's name for it)

from recipes.cnns import Residual, convolution, mobilenet_v2, resnet, squeezenet, with_random_norms

LAYERS = 3
CALIBRATION_FEEDS = 3
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class SqueezeExcite(nn.Module):
    """Each channel by what a small network makes of all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


def mobilenet_v3() -> nn.Module:
    """MobileNetV3-Large's kinds of blocks, for 224x224 images and 1000 classes."""
    layers: list[nn.Module] = [convolution(3, 16, 3, 2, activation=nn.Hardswish)]
    channels = 16
    stages = (
        *((3, 16, 16, 1, False, nn.ReLU), (3, 64, 24, 2, False, nn.ReLU), (3, 72, 24, 1, False, nn.ReLU)),
        *((5, 72, 40, 2, True, nn.ReLU), (5, 120, 40, 1, True, nn.ReLU), (5, 120, 40, 1, True, nn.ReLU)),
        *((3, 240, 80, 2, False, nn.Hardswish), (3, 200, 80, 1, False, nn.Hardswish)),
        *((3, 480, 112, 1, True, nn.Hardswish), (3, 672, 112, 1, True, nn.Hardswish)),
        *((5, 672, 160, 2, True, nn.Hardswish), (5, 960, 160, 1, True, nn.Hardswish)),
    )
    for kernel, inner, features, stride, is_excited, activation in stages:
        body = nn.Sequential(
            convolution(channels, inner, 1, activation=activation),
            convolution(inner, inner, kernel, stride, inner, activation),
            *([SqueezeExcite(inner)] if is_excited else []),
            convolution(inner, features, 1),
        )
        layers.append(Residual(body, activation=False) if stride == 1 and channels == features else body)
        channels = features
    layers.append(convolution(channels, 960, 1, activation=nn.Hardswish))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))
    return nn.Sequential(*layers, *head)


class DenseBlock(nn.Module):
    """Layers whose data are all that the layers before them made."""

    def __init__(self, channels: int, count: int, growth: int = 32) -> None:
        super().__init__()
        widths = [channels + n * growth for n in range(count)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), convolution(width, 128, 1, activation=nn.ReLU),
                          nn.Conv2d(128, growth, 3, 1, 1, bias=False))
            for width in widths
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet() -> nn.Module:
    """DenseNet-121, its last two blocks shorter."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    channels, counts = 64, (6, 12, 12, 8)
    for stage, count in enumerate(counts):
        layers.append(DenseBlock(channels, count))
        channels += 32 * count
        if stage < len(counts) - 1:
            halved = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1))
            layers += [halved, nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def two_convolutions(channels: int, features: int) -> nn.Module:
    """Two 3x3 convolutions with relu."""
    first = convolution(channels, features, 3, activation=nn.ReLU)
    return nn.Sequential(first, convolution(features, features, 3, activation=nn.ReLU))


class UNet(nn.Module):
    """A U-Net of half the width."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(map(two_convolutions, (3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1])
        self.merge = nn.ModuleList(two_convolutions(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for layer in self.down:
            x = layer(F.max_pool2d(x, 2) if seen else x)
            seen.append(x)
        for up, merge, skipped in zip(self.up, self.merge, seen[-2::-1], strict=True):
            x = merge(torch.cat([skipped, up(x)], 1))
        return self.head(x)


class CrossStage(nn.Module):
    """Residual blocks over one half of the channels; all halves are merged."""

    def __init__(self, channels: int, features: int, count: int) -> None:
        super().__init__()
        half = features // 2
        self.first = convolution(channels, features, 1, activation=nn.SiLU)
        self.blocks = nn.ModuleList(
            Residual(
                nn.Sequential(*(convolution(half, half, 3, activation=nn.SiLU) for _ in range(2))), activation=False
            )
            for _ in range(count)
        )
        self.last = convolution((2 + count) * half, features, 1, activation=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """A detector in the manner of YOLO: silu, cross-stage blocks, two scales."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.stem = convolution(3, 16, 3, 2, activation=nn.SiLU)
        self.stages = nn.ModuleList(
            nn.Sequential(convolution(channels, features, 3, 2, activation=nn.SiLU), CrossStage(features, features, 1))
            for channels, features in zip((16, *widths), widths, strict=False)
        )
        self.merge = CrossStage(widths[3] + widths[2], widths[2], 1)
        self.heads = nn.ModuleList(nn.Conv2d(width, 144, 1) for width in (widths[2], widths[3]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.stem(x)
        seen: list[torch.Tensor] = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        small = seen[-1]
        large = self.merge(torch.cat([F.interpolate(small, scale_factor=2.0), seen[-2]], 1))
        return self.heads[0](large), self.heads[1](small)


class Hidden(nn.Module):
    """The last hidden state of a network of `transformers`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)[0]


def images(network: nn.Module, size: int = 224) -> Made:
    """With one image."""
    return with_random_norms(network), (torch.randn(1, 3, size, size),)


def words(network: nn.Module, length: int = 128) -> Made:
    """With one sequence of random words."""
    return Hidden(network), (torch.randint(0, 30000, (1, length)),)


def bert() -> Made:
    """BERT-base."""
    return words(transformers.BertModel(transformers.BertConfig(num_hidden_layers=LAYERS)))


def distilbert() -> Made:
    """DistilBERT."""
    return words(transformers.DistilBertModel(transformers.DistilBertConfig(n_layers=LAYERS)))


def t5() -> Made:
    """The encoder of T5-base."""
    config = transformers.T5Config(d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=LAYERS)
    return words(transformers.T5EncoderModel(config))


def vit() -> Made:
    """ViT-base, 16x16 patches."""
    network = transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=LAYERS))
    return Hidden(network), (torch.randn(1, 3, 224, 224),)


def whisper() -> Made:
    """The encoder of Whisper base, for 10 seconds."""
    config = transformers.WhisperConfig(
        d_model=512,
        encoder_layers=LAYERS,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        max_source_positions=500,
    )
    return Hidden(transformers.WhisperModel(config).encoder), (torch.randn(1, 80, 1000),)


NETWORKS: Mapping[str, Callable[[], Made]] = {
    "resnet18": lambda: images(resnet(18)),
    "resnet50": lambda: images(resnet(50)),
    "squeezenet": lambda: images(squeezenet()),
    "mobilenetv2": lambda: images(mobilenet_v2()),
    "mobilenetv3": lambda: images(mobilenet_v3()),
    "efficientnet": lambda: images(Hidden(transformers.EfficientNetModel(transformers.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280)))),
    "regnet": lambda: images(Hidden(transformers.RegNetModel(transformers.RegNetConfig(layer_type="x")))),
    "densenet": lambda: images(densenet()),
    "unet": lambda: images(UNet(), 160),
    "detector": lambda: images(Detector(), 320),
    "bert": bert,
    "distilbert": distilbert,
    "vit": vit,
    "t5": t5,
    "whisper": whisper,
}  # fmt: skip
CNNS = tuple(NETWORKS)[:10]
TRANSFORMERS = tuple(NETWORKS)[10:]
SCHEMES = ("QDQ", "QOperator", "dynamic")


class RandomFeeds(CalibrationDataReader):
    """Feeds for calibration, of the shapes and dtypes of the one that is given."""

    def __init__(self, feeds: Mapping[str, np.ndarray]) -> None:
        rng = np.random.default_rng(0)
        noise = [{name: _like(array, rng) for name, array in feeds.items()} for _ in range(CALIBRATION_FEEDS)]
        self._left = iter([dict(feeds), *noise])

    def get_next(self) -> dict[str, np.ndarray] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return next(self._left, None)


def _like(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind == "i":
        return rng.integers(0, int(array.max()) + 1, array.shape).astype(array.dtype)
    return rng.standard_normal(array.shape).astype(array.dtype)


def write(name: str, schemes: tuple[str, ...], folder: Path) -> None:
    """NAME.onnx, NAME.npz (feeds), and for each scheme NAME_SCHEME.onnx with feeds beside it, into a folder."""
    torch.manual_seed(0)
    network, feeds = NETWORKS[name]()
    network.eval()
    path = folder / f"{name}.onnx"
    with torch.no_grad():
        program = torch.onnx.export(network, feeds, dynamo=True, opset_version=18, verbose=False)
    assert program is not None
    program.save(path)
    names = [value.name for value in program.model.graph.inputs]
    arrays = {str(name): feed.numpy() for name, feed in zip(names, feeds, strict=True)}
    np.savez(path.with_suffix(".npz"), **arrays)  # pyright: ignore[reportArgumentType]
    for scheme in schemes:
        to = folder / f"{name}_{scheme}.onnx"
        quantize(path, to, scheme, arrays)
        np.savez(to.with_suffix(".npz"), **arrays)  # pyright: ignore[reportArgumentType]


def quantize(path: Path, to: Path, scheme: str, feeds: Mapping[str, np.ndarray]) -> None:
    """Quantize a model by one of the schemes, as onnxruntime's own guide does."""
    with tempfile.TemporaryDirectory() as name:
        ready = Path(name) / "ready.onnx"
        quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
        if scheme == "dynamic":
            quantize_dynamic(str(ready), str(to), per_channel=True, weight_type=QuantType.QInt8)
        else:
            types: dict[str, Any] = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            how = QuantFormat[scheme]
            quantize_static(str(ready), str(to), RandomFeeds(feeds), quant_format=how, per_channel=True, **types)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(to), options, providers=["CPUExecutionProvider"])
    onnx.checker.check_model(str(to))


if __name__ == "__main__":
    import sys

    write(sys.argv[1], tuple(sys.argv[2].split(",")), Path(sys.argv[3]))
