"""Kernelyard: a deep-learning compiler whose backends are pip packages.

This front door is lazy (PEP 562): a name is imported when it is first used, so that `import kernelyard` is quick and
running a saved artifact imports nothing of the compiler.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Other distributions put packages into this one (kernelyard.nn). pip installs these side by side; where they are
# installed in place they lie in folders of their own, which are added to the package's `__path__`.
__path__ += [
    folder
    for folder in (os.path.join(entry, "kernelyard") for entry in sys.path)
    if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "__init__.py"))
]

_HOME = {
    "compile": "kernelyard.driver.compile",
    "explain": "kernelyard.driver.compile",
    "get_default_pipeline": "kernelyard.driver.session.choose_pipeline",
    "load": "kernelyard.runtime.artifact.kyar",
    "IRModule": "kernelyard.ir",
    "Cancellation": "kernelyard.runtime.execute.call_limit",
    "VirtualMachine": "kernelyard.runtime.execute.virtual_machine",
    "Executable": "kernelyard.runtime.execute.executable",
    "Report": "kernelyard.runtime.report",
    "Tensor": "kernelyard.runtime.device.tensor",
    "Tuning": "kernelyard.driver.measured_placement",
    "Target": "kernelyard.target",
    "backends": "kernelyard.plugins.discovery.manager",
    "cpu": "kernelyard.runtime.device.device",
    "cuda": "kernelyard.runtime.device.device",
    "device": "kernelyard.runtime.device.device",
    "devices": "kernelyard.runtime.device.device",
}
_SUBPACKAGES = (
    "dims",
    "dtypes",
    "errors",
    "ir",
    "ops",
    "patterns",
    "plugins",
    "runtime",
    "tir",
    "transform",
)

_OF_OTHER_DISTRIBUTIONS = ("nn", "testing")  # each comes with a distribution named after it
_FUNCTIONS_OF_OTHER_DISTRIBUTIONS = {  # each in a package kernelyard_<value>
    "bisect": "debug",
    "diff": "debug",
    "quantize": "quantize",
    "reduce": "debug",
    "spark_predict_fn": "deploy",
    "view": "view",
}

__all__ = [
    "Cancellation",
    "Executable",
    "IRModule",
    "Report",
    "Target",
    "Tensor",
    "Tuning",
    "VirtualMachine",
    "backends",
    "compile",
    "cpu",
    "cuda",
    "device",
    "devices",
    "errors",
    "explain",
    "get_default_pipeline",
    "load",
]

if TYPE_CHECKING:
    from types import ModuleType

    from kernelyard import errors as errors
    from kernelyard.driver.compile import compile as compile
    from kernelyard.driver.compile import explain as explain
    from kernelyard.driver.measured_placement import Tuning as Tuning
    from kernelyard.driver.session.choose_pipeline import get_default_pipeline as get_default_pipeline
    from kernelyard.ir import IRModule as IRModule
    from kernelyard.plugins.discovery.manager import backends as backends
    from kernelyard.runtime.artifact.kyar import load as load
    from kernelyard.runtime.device.device import cpu as cpu
    from kernelyard.runtime.device.device import cuda as cuda
    from kernelyard.runtime.device.device import device as device
    from kernelyard.runtime.device.device import devices as devices
    from kernelyard.runtime.device.tensor import Tensor as Tensor
    from kernelyard.runtime.execute.call_limit import Cancellation as Cancellation
    from kernelyard.runtime.execute.executable import Executable as Executable
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine as VirtualMachine
    from kernelyard.runtime.report import Report as Report
    from kernelyard.target import Target as Target


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    if name in _SUBPACKAGES:
        return import_module(f"kernelyard.{name}")
    if name in _OF_OTHER_DISTRIBUTIONS:
        return _from_distribution(f"kernelyard.{name}", name)
    if name in _FUNCTIONS_OF_OTHER_DISTRIBUTIONS:
        home = _FUNCTIONS_OF_OTHER_DISTRIBUTIONS[name]
        return getattr(_from_distribution(f"kernelyard_{home}", home), name)
    if name.startswith("partition_for_"):  # one function per installed backend
        return getattr(import_module("kernelyard.placement"), name)
    raise AttributeError(f"module 'kernelyard' has no attribute {name!r}")


def _from_distribution(module: str, name: str) -> ModuleType:
    """Import a module of another distribution. Raises: ModuleNotFoundError with the pip line."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(f"{error}; pip install kernelyard-{name}", name=error.name) from None


def __dir__() -> list[str]:
    elsewhere = (*_OF_OTHER_DISTRIBUTIONS, *_FUNCTIONS_OF_OTHER_DISTRIBUTIONS)
    return sorted({*globals(), *_HOME, *_SUBPACKAGES, *elsewhere})
