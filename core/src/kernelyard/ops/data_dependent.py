"""Operators that decide the sizes of their results: these are symbols of the stated type.

A size that may be zero is stated as a symbol minus one, since symbols are at least one.
"""

from __future__ import annotations

import numpy as np

from kernelyard.errors import ExecutionError
from kernelyard.ir.op import Attribute, Op, register_op
from kernelyard.ops.core_calls import stated


def _tensor_to_shape(x: np.ndarray) -> np.ndarray:
    sizes = x.tolist()
    if min(sizes, default=0) < 0:
        raise ExecutionError("a data-dependent size is negative", found=sizes)
    # One byte seen from everywhere. `broadcast_to` gives the same, in several times the time: each call waits for it.
    return np.ndarray(sizes, np.bool_, b"\0", 0, (0,) * len(sizes))


TENSOR_TO_SHAPE = register_op(
    Op(
        "tensor_to_shape",
        ("x",),
        stated,
        reference=_tensor_to_shape,
        opaque_type=True,
        introduces_symbols=True,
        summary="a tensor whose sizes are the elements of an int64 vector; it has no memory, and nobody reads it",
    )
)


def _nonzero(x: np.ndarray) -> np.ndarray:
    return np.stack(np.nonzero(np.atleast_1d(x))).astype(np.int64)


NONZERO = register_op(
    Op(
        "nonzero",
        ("x",),
        stated,
        reference=_nonzero,
        opaque_type=True,
        introduces_symbols=True,
        summary="the indices of the elements that are not zero: int64 of shape (rank, count), in row-major order",
    )
)


def _unique(
    x: np.ndarray,
    *,
    axis: int | None,
    sorted: bool,  # noqa: A002
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    values, indices, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:  # in the order of their first occurrence
        order = np.argsort(indices, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values = np.take(values, order, 0 if axis is None else axis)
        indices, counts, inverse = indices[order], counts[order], rank[inverse]
    return values, indices.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


UNIQUE = register_op(
    Op(
        "unique",
        ("x",),
        stated,
        reference=_unique,
        attributes={"axis": Attribute("int", None), "sorted": Attribute("bool", True)},
        opaque_type=True,
        introduces_symbols=True,
        summary="the unique elements (or slices along an axis), their first indices, inverse indices and counts",
    )
)


def _overlap(boxes: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (y1, x1, y2, x2) and one box."""
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2]) - common
    return np.divide(common, area, out=np.zeros_like(common), where=area > 0)


def _kept(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least: float) -> list[int]:
    """Return the boxes of one class, best first, without those that overlap a better one."""
    order = [i for i in np.argsort(-scores, kind="stable").tolist() if scores[i] > least]
    kept: list[int] = []
    while order and len(kept) < most:
        best, *order = order
        kept.append(best)
        if order:
            order = [
                i for i, o in zip(order, _overlap(boxes[order], boxes[best]).tolist(), strict=True) if o <= overlap
            ]
    return kept


def _non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    max_output_boxes_per_class: np.ndarray,
    iou_threshold: np.ndarray,
    score_threshold: np.ndarray,
    *,
    center_point_box: bool,
) -> np.ndarray:
    if center_point_box:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        boxes = np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)
    corners = np.concatenate(
        [np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], -1
    )
    most, overlap, least = int(max_output_boxes_per_class), float(iou_threshold), float(score_threshold)
    rows = [
        (batch, kind, box)
        for batch in range(scores.shape[0])
        for kind in range(scores.shape[1])
        for box in _kept(corners[batch], scores[batch, kind], most, overlap, least)
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


NON_MAX_SUPPRESSION = register_op(
    Op(
        "image.non_max_suppression",
        ("boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"),
        stated,
        reference=_non_max_suppression,
        attributes={"center_point_box": Attribute("bool", False)},
        opaque_type=True,
        introduces_symbols=True,
        summary="(batch, class, box) of the boxes that remain for each class, as rows of int64",
    )
)
