"""The runtime half: CUDA source and cubins in native-cuda's artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from kernelyard_cuda.source_module import CudaSourceModule

KIND = "native-cuda"
SCHEMA = 2


class NativeCudaModule(CudaSourceModule):
    """Generated kernels."""

    kind: ClassVar[str] = KIND
    magic: ClassVar[bytes] = b"KYNCUDA1"
    schema: ClassVar[int] = SCHEMA


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> NativeCudaModule:
    """Read what `save_to_bytes` wrote. Raises: ArtifactCorruptedError, ArtifactVersionError."""
    return NativeCudaModule.load_from_bytes(data, constants)
