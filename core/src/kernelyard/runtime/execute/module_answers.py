"""Inspect modules and their caches for people: wrong answers of a plugin name it, and end nothing."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard.errors import KernelyardError, describe
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.execute.step_errors import StepLabel, describe_step, step_error
from kernelyard.runtime.lru import CacheInfo


def show_module(module: RuntimeModule) -> str:
    """Return a module as text, or who cannot show it and why."""
    try:
        return str(module.inspect())
    except (Exception, SystemExit) as error:  # a vendor's code
        return f"{describe_step(StepLabel('a module', module.kind))}, which cannot show it: {describe(error)}"


def check_cache_info(module: RuntimeModule) -> Mapping[str, CacheInfo]:
    """Return what a module keeps. Raises: ExecutionError that names the plugin where it cannot say."""
    try:
        infos = module.cache_info()
        if not isinstance(infos, Mapping) or not all(isinstance(info, CacheInfo) for info in infos.values()):
            raise TypeError(f"it returned {type(infos).__name__}, not CacheInfo by the name of each cache")
    except KernelyardError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code
        raise step_error(
            "a module cannot say what it keeps", StepLabel("cache_info", module.kind), describe(error)
        ) from error
    return infos
