"""Plans as bytes beside what they are good for: a version of cuDNN, a kind of GPU, a graph at known shapes."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from kernelyard.runtime.api import Fields, corrupted, read_json
from kernelyard_cudnn.devices import DeviceProperties, parse

WHERE = "plan of cudnn"
LENGTH_NBYTES = 8


@dataclass(frozen=True)
class Blob:
    """graph: its text."""

    version: int
    device: DeviceProperties
    graph: str
    plan: bytes

    def to_array(self) -> np.ndarray:
        """Return the blob as a constant of an artifact."""
        header = json.dumps({"version": self.version, "device": self.device.text, "graph": self.graph}).encode()
        return np.frombuffer(len(header).to_bytes(LENGTH_NBYTES, "little") + header + self.plan, np.uint8)


def read_blob(array: np.ndarray) -> Blob:
    """Return the blob that `Blob.to_array` wrote. Raises: ArtifactCorruptedError."""
    data = array.tobytes()
    length = int.from_bytes(data[:LENGTH_NBYTES], "little")
    start = LENGTH_NBYTES + length
    if start > len(data):
        raise corrupted(WHERE, f"{len(data)} bytes", f"at least {start}")
    fields = Fields(read_json(data[LENGTH_NBYTES:start], WHERE), WHERE)
    text = fields.text("device")
    try:
        device = parse(text)
    except (ValueError, LookupError, TypeError) as error:
        raise corrupted(WHERE, f"a device: {error}", "properties of a GPU") from error
    return Blob(fields.integer("version"), device, fields.text("graph"), data[start:])
