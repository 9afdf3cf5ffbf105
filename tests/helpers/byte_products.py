"""Products of bytes, which sum up exactly with VNNI alone: oneDNN declines them without, onnxruntime cuts sums off."""

from __future__ import annotations

import pytest

from kernelyard_dnnl.primitives.integer_product import can_multiply_integers

HAS_BYTE_PRODUCTS = can_multiply_integers()
NO_VNNI = "no VNNI: oneDNN declines products of bytes, and onnxruntime cuts off their sums"
needs_byte_products = pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason=NO_VNNI)
