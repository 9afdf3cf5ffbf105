"""Non-maximum suppression: of boxes that overlap, the one with the best score remains.

`DecomposeDataDependent` replaces `image.non_max_suppression` by the two other operators, so that boxes are compared by
generated code, once the number of candidates is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.errors import ShapeError
from kernelyard.ir.op import Attribute, Attributes, Op, Sample, register_op
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.core_calls import require_stated_type
from kernelyard.ops.declaration import declare
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import FLOATS, require_dtype, require_rank, unify


# --- box_candidates ---------------------------------------------------------------------------------------------------
def _box_candidates(scores: np.ndarray, score_threshold: np.ndarray) -> np.ndarray:
    flat = scores.reshape(-1)
    candidates = np.flatnonzero(flat > score_threshold)
    best_first = candidates[np.argsort(-flat[candidates], kind="stable")]
    return best_first[np.argsort(best_first // max(scores.shape[-1], 1), kind="stable")].astype(np.int64)


BOX_CANDIDATES = register_op(
    Op(
        "image.box_candidates",
        ("scores", "score_threshold"),
        require_stated_type,
        reference=_box_candidates,
        opaque_type=True,
        introduces_symbols=True,
        summary="the flat indices (int64) of scores above a threshold, by rows of the last axis, each one best first",
    )
)


# --- suppress_boxes ---------------------------------------------------------------------------------------------------
def _suppress_boxes_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    boxes, groups, most, overlap = types
    require_dtype(boxes, FLOATS)
    require_rank(boxes, 2, "the boxes")
    unify(boxes.shape[1], 4, "the corners of a box")
    for type_, dtype, what in (
        (groups, "int64", "the groups"),
        (most, "int64", "the limit"),
        (overlap, boxes.dtype, "the threshold"),
    ):
        require_dtype(type_, (dtype,), what)
    require_rank(groups, 1, "the groups")
    return TensorType((unify(boxes.shape[0], groups.shape[0], "boxes"),), "bool")


def _suppress_boxes(
    boxes: np.ndarray, groups: np.ndarray, max_boxes_per_group: np.ndarray, iou_threshold: np.ndarray
) -> np.ndarray:
    if np.count_nonzero(np.diff(groups)) >= max(len(np.unique(groups)), 1):
        raise ShapeError("the boxes of a group do not come one after another", found=groups.tolist())
    kept = np.zeros(len(boxes), bool)
    for at, group in enumerate(groups):
        better = np.flatnonzero(kept[:at] & (groups[:at] == group))
        overlaps = _intersection_over_union(boxes[better], boxes[at])
        kept[at] = len(better) < max_boxes_per_group and not (overlaps > iou_threshold).any()
    return kept


def _intersection_over_union(boxes: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return the overlap of each of some boxes (y1, x1, y2, x2) with one box; 0 where the union has no area."""
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:], box[2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    union = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) + np.prod(box[2:] - box[:2]) - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def _suppress_boxes_samples() -> Iterator[Sample]:
    corners = np.abs(floats(24, 4))
    corners[:, 2:] += corners[:, :2]
    groups = np.repeat(np.array([0, 3, 4], np.int64), [9, 1, 14])
    for most, overlap in ((24, 0.3), (2, 0.5), (0, 0.5), (24, 1.0)):
        yield Sample(
            (corners, groups, np.array(most, np.int64), np.array(overlap, np.float32)), {}, f"{most}, {overlap}"
        )


declare(
    "image.suppress_boxes",
    ("boxes", "groups", "max_boxes_per_group", "iou_threshold"),
    _suppress_boxes_type,
    _suppress_boxes,
    samples=_suppress_boxes_samples,
    summary="which boxes (y1, x1, y2, x2) remain of those of each group, which come one after another, the best first",
)


# --- non_max_suppression ----------------------------------------------------------------------------------------------
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
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    candidates = _box_candidates(scores, score_threshold)
    groups, numbers = np.divmod(candidates, max(scores.shape[2], 1))
    images, classes = np.divmod(groups, max(scores.shape[1], 1))
    corners = np.concatenate([low, high], -1)[images, numbers]
    kept = _suppress_boxes(corners, groups, max_output_boxes_per_class, iou_threshold)
    return np.stack([images, classes, numbers], axis=1)[kept]


NON_MAX_SUPPRESSION = register_op(
    Op(
        "image.non_max_suppression",
        ("boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold"),
        require_stated_type,
        reference=_non_max_suppression,
        attributes={"center_point_box": Attribute("bool", False)},
        opaque_type=True,
        introduces_symbols=True,
        summary="(batch, class, box) of the boxes that remain for each class, as rows of int64",
    )
)
