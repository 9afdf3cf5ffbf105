"""Properties of GPUs, as cuDNN takes them where none is there: three are shipped, others come from files.

A file is what `cudnn.create_device_properties(0).serialize()` gives on a machine that has the GPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelyard.errors import OptionError

FOLDER = Path(__file__).with_name("devices")


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of a GPU that cuDNN needs. text: all of it, as JSON."""

    text: str
    name: str
    capability: tuple[int, int]
    processors: int

    def runs_on(self, other: DeviceProperties) -> bool:
        """Return True if a plan for this GPU also runs on another: they are of the same kind."""
        return (self.capability, self.processors) == (other.capability, other.processors)


def list_shipped_devices() -> tuple[str, ...]:
    """Return the names of the GPUs whose properties come with the plugin.

    Example:
        >>> list_shipped_devices()
        ('a100', 'h100', 'h200')
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def read_properties(name: str) -> DeviceProperties:
    """Return the properties of a GPU that is shipped, or those in a file.

    Raises: OptionError.

    Example:
        >>> read_properties("a100").capability
        (8, 0)
    """
    path = FOLDER / f"{name}.json" if name in list_shipped_devices() else Path(name)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError, LookupError, TypeError) as error:
        raise OptionError(
            "unknown GPU",
            found=f"{name}: {type(error).__name__}",
            expected=", ".join(list_shipped_devices()),
            hint="or the path of a file: see kernelyard_cudnn/devices.py",
        ) from error


def parse(text: str) -> DeviceProperties:
    """Parse properties from JSON. Raises: ValueError, LookupError or TypeError for what they cannot be."""
    fields: dict[str, Any] = json.loads(text)
    version, processors = int(fields["deviceVer"]), int(fields["multiProcessorCount"])
    return DeviceProperties(text, str(fields["deviceName"]), (version // 100, version % 100 // 10), processors)
