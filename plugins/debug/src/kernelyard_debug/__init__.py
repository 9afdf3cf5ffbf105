"""Debug compiled models: `kernelyard.diff`, `reduce` and `bisect`, and the commands of these names."""

from __future__ import annotations

from kernelyard_debug.bisect import BisectReport as BisectReport
from kernelyard_debug.bisect import bisect as bisect
from kernelyard_debug.case import Case as Case
from kernelyard_debug.diff import diff as diff
from kernelyard_debug.diff_report import DiffReport as DiffReport
from kernelyard_debug.errors import DebugError as DebugError
from kernelyard_debug.reduce import Reduction as Reduction
from kernelyard_debug.reduce import reduce as reduce
from kernelyard_debug.result_folder import load_case as load_case
