"""Networks of torchvision: classifiers, segmentation, optical flow, video."""

from __future__ import annotations

from recipes.zoo import torchvision_operators  # noqa: F401  isort: skip (declares what torchvision expects)

import torch
import torchvision

from recipes.zoo.torch_models import Made

VIDEO = {"r3d_18": 112, "mc3_18": 112, "r2plus1d_18": 112, "s3d": 224, "mvit_v1_b": 224}  # name -> height and width
SEGMENTATION = ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50")


def make(architecture: str) -> Made:
    """Return the network, and an image, two frames, or a clip of 16 (8 for the larger frames)."""
    given = {"weights_backbone": None} if architecture in SEGMENTATION else {}
    if architecture == "googlenet":
        given = {"aux_logits": False, "init_weights": False}
    network = torchvision.models.get_model(architecture, weights=None, **given)
    if architecture in VIDEO:
        size = VIDEO[architecture]
        return network, (torch.randn(1, 3, 8 if size == 112 else 16, size, size),)
    if architecture == "raft_small":
        return network, (torch.rand(1, 3, 128, 160) * 2 - 1, torch.rand(1, 3, 128, 160) * 2 - 1)
    return network, (torch.randn(1, 3, *((256, 256) if architecture in SEGMENTATION else (224, 224))),)
