"""Debug compiled models: `kernelyard.diff`, and the command of that name."""

from __future__ import annotations

from kernelyard_debug.diff import DiffReport as DiffReport
from kernelyard_debug.diff import diff as diff
from kernelyard_debug.errors import DebugError as DebugError
