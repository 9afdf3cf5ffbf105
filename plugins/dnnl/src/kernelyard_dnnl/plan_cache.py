"""Plans of saved modules, kept on disk: a program that starts again lowers nothing.

A plan belongs to the module, the sizes and the number of threads, and to what made it: the code of this plugin, and the
library with the instructions that it uses. Who starts with other ones lowers anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import numpy as np

from kernelyard.runtime.api import DiskCache, list_source_files
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.plan import Plan
from kernelyard_dnnl.plan_record import read_plan, write_plan

CACHE = DiskCache("dnnl-plans")


def recall_plan(key: str, packed: PackedConstants, constants: Mapping[str, np.ndarray], threads: int) -> Plan | None:
    """Return the plan that was remembered, with its constants packed; None where there is none.

    Raises: StatusError where the library refuses a primitive today.
    """
    maker = _maker()
    text = None if maker is None else CACHE.get(f"{maker} {key}")
    if text is None:
        return None
    try:
        return read_plan(text, packed, constants, threads)
    finally:
        packed.preparation.finish()


def remember_plan(key: str, plan: Plan, constants: Mapping[str, np.ndarray], threads: int) -> None:
    """Keep a plan, where it can be written."""
    maker = _maker()
    text = None if maker is None else write_plan(plan, constants, threads)
    if text is not None:
        CACHE.put(f"{maker} {key}", text)


@cache
def _maker() -> str | None:
    """Return what plans depend on beside their module; None where that cannot be told."""
    library = load_library()
    try:
        code = list_source_files(os.path.dirname(__file__))
    except OSError:
        return None
    if not code:  # it lies in an archive, say
        return None
    return f"{code} {library.path} {library.version} {library.call('dnnl_get_effective_cpu_isa')}"
