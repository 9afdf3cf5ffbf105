"""Declares the operators that torchvision's Python sources expect of its compiled half.

A torchvision that is built for another PyTorch (with CUDA, without) has no such half; its networks need none of it.
"""

from __future__ import annotations

import importlib.util

import torch

BOXES = "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"


def _loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    folder = next(iter(spec.submodule_search_locations or ()), "") if spec else ""
    try:
        torch.ops.load_library(f"{folder}/_C.so")
    except OSError:
        return False
    return True


if not _loads():
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}{BOXES}")
