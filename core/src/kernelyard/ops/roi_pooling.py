"""Pooling over regions of interest: rectangles of images, each cut into a grid of cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, flops_per_output
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import FLOATS, INTEGERS, require, require_dtype, require_rank, unify


# --- roi_align --------------------------------------------------------------------------------------------------------
def _roi_align_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, rois, batch = types
    require_dtype(x, FLOATS)
    require_dtype(batch, INTEGERS, "the batch indices")
    for type_, rank, what in ((x, 4, "x"), (rois, 2, "the regions"), (batch, 1, "the batch indices")):
        require_rank(type_, rank, what)
    unify(rois.shape[1], 4, "the corners of a region")
    _require_grid(attrs["sizes"])
    require(
        attrs.get("sampling_ratio", 1) > 0,
        "there is no sample",
        found=attrs.get("sampling_ratio"),
        expected="1 or more",
    )
    return TensorType((unify(rois.shape[0], batch.shape[0], "regions"), x.shape[1], *attrs["sizes"]), x.dtype)


def _require_grid(sizes: Sequence[int]) -> None:
    require(len(sizes) == 2 and min(sizes) > 0, "the grid makes no sense", found=sizes, expected="two positive sizes")


def _positions(start: float, cell: float, cells: int, taps: int) -> np.ndarray:
    """Return the sampling positions of all cells along an axis, shape (cells, taps)."""
    return start + (np.arange(cells)[:, None] + (np.arange(taps) + 0.5) / max(taps, 1)) * cell


def _neighbours(positions: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the two elements around each position, and their weights, both of shape (..., 2).

    Outside of the image weights are 0.
    """
    at = np.clip(positions, 0, size - 1)
    low = np.floor(at)
    indices = np.minimum(np.stack([low, low + 1], -1), size - 1).astype(np.int64)
    inside = (positions >= -1) & (positions <= size)
    return indices, np.stack([1 - (at - low), at - low], -1) * inside[..., None]


def _roi_align(
    x: np.ndarray,
    rois: np.ndarray,
    batch: np.ndarray,
    *,
    sizes: tuple[int, int],
    sampling_ratio: int = 0,
    spatial_scale: float,
    mode: str,
    half_pixel: bool,
) -> np.ndarray:
    result = np.zeros((len(rois), x.shape[1], *sizes), x.dtype)
    offset = 0.5 if half_pixel else 0.0
    regions = rois.astype(np.float64) * spatial_scale - offset
    for number, (region, image) in enumerate(zip(regions, batch.tolist(), strict=True)):
        neighbours = []
        for axis, (first, last) in enumerate(((region[1], region[3]), (region[0], region[2]))):
            extent = last - first if half_pixel else max(last - first, 1.0)
            cell = extent / sizes[axis]
            taps = sampling_ratio if sampling_ratio > 0 else max(int(np.ceil(cell)), 0)
            neighbours.append(_neighbours(_positions(first, cell, sizes[axis], taps), x.shape[2 + axis]))
        if all(indices.size for indices, _ in neighbours):
            result[number] = (_mean_of_samples if mode == "avg" else _largest_term)(x[image], *neighbours)
    return result


_Neighbours = tuple[np.ndarray, np.ndarray]  # (cells, samples, 2): indices of elements, and their weights


def _mean_of_samples(image: np.ndarray, rows: _Neighbours, columns: _Neighbours) -> np.ndarray:
    """Return the mean of the samples of each cell, (channels, rows, columns): products with the part of the image that
    has a weight.
    """
    used, weights = [], []
    for indices, weight in (rows, columns):
        first, last = indices.min(), indices.max() + 1
        dense = np.zeros((len(indices), last - first))
        np.add.at(dense, (np.arange(len(indices))[:, None, None], indices - first), weight / indices.shape[1])
        used.append(slice(first, last))
        weights.append(dense)
    return weights[0] @ image[:, *used].astype(np.float64) @ weights[1].T


def _largest_term(image: np.ndarray, rows: _Neighbours, columns: _Neighbours) -> np.ndarray:
    """Return the largest of the weighted elements that the samples of a cell are made of."""
    terms = np.empty((len(image), len(rows[0]), len(columns[0])))
    for p, q in np.ndindex(terms.shape[1:]):
        (y, u), (x, v) = (
            (indices[n].ravel(), weights[n].ravel()) for n, (indices, weights) in ((p, rows), (q, columns))
        )
        terms[:, p, q] = (image[:, y[:, None], x] * np.outer(u, v)).max((1, 2))
    return terms


def _images_and_regions() -> tuple[np.ndarray, ...]:
    regions = [[0, 0, 6, 5], [1.5, 2, 4, 4.5], [-2, -2, 9, 9], [5, 5, 2, 3], [3, 0, 3, 7]]
    return floats(2, 3, 7, 8), np.array(regions, np.float32), np.array([0, 1, 1, 0, 1])


def _roi_align_samples() -> Iterator[Sample]:
    for mode in ("avg", "max"):
        yield Sample(_images_and_regions(), {"sizes": (2, 3), "sampling_ratio": 2, "mode": mode}, mode)
    how = {"sizes": (3, 2), "sampling_ratio": 1, "spatial_scale": 0.5, "half_pixel": True}
    yield Sample(_images_and_regions(), how, "half a pixel")


def _roi_align_adaptive_samples() -> Iterator[Sample]:
    for mode in ("avg", "max"):
        how = {"sizes": (3, 2), "spatial_scale": 0.5, "half_pixel": True, "mode": mode}
        yield Sample(_images_and_regions(), how, mode)


_ROI_ALIGN_ATTRIBUTES = {
    "sizes": Attribute("ints"),
    "spatial_scale": Attribute("float", 1.0),
    "mode": Attribute("str", "avg", ("avg", "max")),
    "half_pixel": Attribute("bool", False),
}

declare(
    "image.roi_align",
    ("x", "rois", "batch_indices"),
    _roi_align_type,
    _roi_align,
    attributes={**_ROI_ALIGN_ATTRIBUTES, "sampling_ratio": Attribute("int")},
    samples=_roi_align_samples,
    flops=flops_per_output(16),
    summary="the mean of x (N, C, H, W) sampled in the cells of regions (x1, y1, x2, y2): (regions, C, *sizes)",
)

declare(
    "image.roi_align_adaptive",
    ("x", "rois", "batch_indices"),
    _roi_align_type,
    _roi_align,
    attributes=_ROI_ALIGN_ATTRIBUTES,
    samples=_roi_align_adaptive_samples,
    flops=flops_per_output(16),
    summary="roi_align with about one sample for each element of x in a cell",
)


# --- roi_max_pool -----------------------------------------------------------------------------------------------------
def _roi_max_pool_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, rois = types
    require_dtype(x, FLOATS)
    require_rank(x, 4, "x")
    require_rank(rois, 2, "the regions")
    unify(rois.shape[1], 5, "the image and the corners of a region")
    _require_grid(attrs["sizes"])
    return TensorType((rois.shape[0], x.shape[1], *attrs["sizes"]), x.dtype)


def _roi_max_pool(x: np.ndarray, rois: np.ndarray, *, sizes: tuple[int, int], spatial_scale: float) -> np.ndarray:
    result = np.zeros((len(rois), x.shape[1], *sizes), x.dtype)
    for number, (image, left, top, right, bottom) in enumerate(rois):
        first = np.floor(np.array([top, left]) * spatial_scale + 0.5).astype(int)
        last = np.floor(np.array([bottom, right]) * spatial_scale + 0.5).astype(int)
        cell = np.maximum(last - first + 1, 1) / sizes
        for at in np.ndindex(*sizes):
            low = np.clip(np.floor(at * cell).astype(int) + first, 0, x.shape[2:])
            high = np.clip(np.ceil((np.array(at) + 1) * cell).astype(int) + first, 0, x.shape[2:])
            window = x[int(image), :, low[0] : high[0], low[1] : high[1]]
            if window.size:
                result[number, :, *at] = window.max((1, 2))
    return result


def _roi_max_pool_samples() -> Iterator[Sample]:
    regions = np.array([[0, 0, 0, 6, 5], [1, 2, 1, 5, 5], [1, 6, 6, 20, 20]], np.float32)
    yield Sample((floats(2, 3, 7, 8), regions), {"sizes": (2, 3)}, "whole elements")
    yield Sample((floats(2, 3, 7, 8), regions), {"sizes": (2, 2), "spatial_scale": 0.5}, "scaled")


declare(
    "image.roi_max_pool",
    ("x", "rois"),
    _roi_max_pool_type,
    _roi_max_pool,
    attributes={"sizes": Attribute("ints"), "spatial_scale": Attribute("float", 1.0)},
    samples=_roi_max_pool_samples,
    flops=flops_per_output(16),
    summary="the largest of x (N, C, H, W) in the cells of regions (image, x1, y1, x2, y2): (regions, C, *sizes)",
)
