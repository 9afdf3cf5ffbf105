"""Image classifiers of timm, with the size of image that each is for."""

from __future__ import annotations

from recipes.zoo import torchvision_operators  # noqa: F401  isort: skip (declares what torchvision expects)

import timm
import torch
from timm.data.config import resolve_model_data_config

from recipes.zoo.torch_models import Made


def make(architecture: str) -> Made:
    """Return the classifier, and an image."""
    network = timm.create_model(architecture)
    return network, (torch.randn(1, *resolve_model_data_config(network)["input_size"]),)
