"""ImageDecoder, by Pillow: a file is decoded while the model is compiled, since its size is that of the result."""

from __future__ import annotations

import io

import numpy as np

from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@converter("ImageDecoder", since=20)
def image_decoder(node: Node) -> Expr:
    """Return the pixels (H, W, channels) of an image file, as uint8."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        node.reject("Pillow is not installed, which decodes images (pip install pillow)")
    pixel_format = node.attr("pixel_format", "RGB")
    mode = _MODES.get(pixel_format) or node.reject(f"its pixel_format {pixel_format!r} is unknown")
    data = node.constant(node.input(0), "image").astype(np.uint8).tobytes()
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert(mode))
    except (UnidentifiedImageError, OSError) as error:
        node.reject(f"its image cannot be decoded: {error}")
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return Constant(np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels))
