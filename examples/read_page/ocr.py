"""Reading a page with the three PP-OCR networks: find the lines, turn them upright, recognise their text.

Needs NumPy and Pillow. An `Engine` turns a model file into something callable on named arrays, so that the same
steps run on Kernelyard and, in the benchmark, on other engines.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

Network = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]
Box = tuple[float, float, float, float]

MODELS = {
    "detector": "PP-OCRv6_det_small.onnx",
    "classifier": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "recogniser": "PP-OCRv6_rec_small.onnx",
}
HEIGHT = 48  # of a line, as the classifier and the recogniser expect it
CLASSIFIER_WIDTH, RECOGNISER_LEAST_WIDTH = 192, 320
SURE = 0.9  # how sure the classifier must be to turn a line over


@dataclass(frozen=True)
class Line:
    """One line that was read: where (left, top, right, bottom in pixels), what, and how surely (0 to 1)."""

    box: Box
    text: str
    confidence: float


def model_paths() -> dict[str, Path]:
    """Return the paths of the models in the rapidocr wheel; the package itself is never imported.

    Raises: FileNotFoundError with the pip line.
    """
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the models are not here: pip install --no-deps rapidocr==3.10.0")
    folder = Path(next(iter(spec.submodule_search_locations))) / "models"
    return {name: folder / file for name, file in MODELS.items()}


class PageReader:
    """Reads pages with three networks; each has one input called "x"."""

    def __init__(self, detector: Network, classifier: Network, recogniser: Network, characters: str) -> None:
        self.detector, self.classifier, self.recogniser = detector, classifier, recogniser
        self.characters = characters.rstrip("\n").split("\n")

    def read(self, page: Image.Image) -> list[Line]:
        """Read the lines of a page, from top to bottom."""
        return [self._read_line(page, box) for box in self.find_lines(page)]

    def find_lines(self, page: Image.Image) -> list[Box]:
        """Return boxes around the lines of a page, from top to bottom."""
        width, height = (max(32, round(side / 32) * 32) for side in page.size)
        (probability,) = self.detector({"x": as_input(page.resize((width, height), Image.Resampling.BILINEAR))})
        found = boxes_of(probability[0, 0])
        scale_x, scale_y = page.width / width, page.height / height
        return [
            (left * scale_x, top * scale_y, right * scale_x, bottom * scale_y) for left, top, right, bottom in found
        ]

    def _read_line(self, page: Image.Image, box: Box) -> Line:
        left, top, right, bottom = map(round, box)
        crop = self._upright(page.crop((left, top, right, bottom)))
        width = scaled_width(crop)
        image = padded(crop, width, max(RECOGNISER_LEAST_WIDTH, width))
        (scores,) = self.recogniser({"x": image})
        text, confidence = self._decode(scores[0])
        return Line(box, text, confidence)

    def _upright(self, crop: Image.Image) -> Image.Image:
        (scores,) = self.classifier({"x": padded(crop, min(CLASSIFIER_WIDTH, scaled_width(crop)), CLASSIFIER_WIDTH)})
        return crop.rotate(180) if scores[0, 1] > SURE else crop

    def _decode(self, scores: np.ndarray) -> tuple[str, float]:
        """Greedy CTC: the best class of each step, repeats merged, blanks (class 0) left out; the rest is a space."""
        best = scores.argmax(1)
        kept = np.flatnonzero((best != 0) & (np.concatenate([[-1], best[:-1]]) != best))
        table = ["", *self.characters]
        text = "".join(table[i] if i < len(table) else " " for i in best[kept])
        return text, float(scores.max(1)[kept].mean()) if len(kept) else 0.0


def as_input(image: Image.Image) -> np.ndarray:
    """Convert an RGB image to the networks' input: 1 x 3 x height x width, channels in BGR order, values in [-1, 1]."""
    pixels = np.asarray(image, np.float32)[:, :, ::-1] / 127.5 - 1
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def scaled_width(crop: Image.Image) -> int:
    """Return the width of a crop scaled to a height of `HEIGHT`."""
    return max(1, math.ceil(HEIGHT * crop.width / crop.height))


def padded(crop: Image.Image, width: int, full_width: int) -> np.ndarray:
    """Return a crop resized to `width` x `HEIGHT`, at the left of a grey image of `full_width`."""
    image = np.zeros((1, 3, HEIGHT, full_width), np.float32)
    image[..., :width] = as_input(crop.resize((width, HEIGHT), Image.Resampling.BILINEAR))
    return image


def boxes_of(probability: np.ndarray, threshold: float = 0.3, least: float = 0.5, grow: float = 1.6) -> list[Box]:
    """Return boxes around the connected regions above `threshold` whose mean reaches `least`, from top to bottom.

    The network marks the core of each line only: a box grows on every side by area * `grow` / perimeter.
    """
    height, width = probability.shape
    boxes: list[Box] = []
    for rows, columns in components(probability > threshold):
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        if min(bottom - top, right - left) < 3 or probability[rows, columns].mean() < least:
            continue
        margin = (bottom - top) * (right - left) * grow / (2 * (bottom - top + right - left))
        box = (
            float(max(0, left - margin)),
            float(max(0, top - margin)),
            float(min(width, right + margin)),
            float(min(height, bottom + margin)),
        )
        boxes.append(box)
    return sorted(boxes, key=lambda box: box[1])


def components(mask: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the 4-connected regions of a mask as (rows, columns), by joining runs of neighbouring rows."""
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    runs: list[tuple[int, int, int]] = []
    above: list[int] = []
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        here: list[int] = []
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            run = len(runs)
            runs.append((y, int(start), int(stop)))
            parent.append(run)
            here.append(run)
            for other in above:
                if runs[other][1] < stop and start < runs[other][2]:
                    parent[root(run)] = root(other)
        above = here
    members: dict[int, list[tuple[int, int, int]]] = {}
    for run, extent in enumerate(runs):
        members.setdefault(root(run), []).append(extent)
    return [
        (
            np.concatenate([np.full(stop - start, y) for y, start, stop in extents]),
            np.concatenate([np.arange(start, stop) for _, start, stop in extents]),
        )
        for extents in members.values()
    ]
