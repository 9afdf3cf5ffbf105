"""install(): have programs that import onnxruntime get this package, unchanged."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = (
    "",
    ".capi",
    ".capi._pybind_state",
    ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state",
)


def install() -> None:
    """Put this package in the place of onnxruntime, whether that is installed or not; call it before it is imported.

    What has imported onnxruntime before keeps it.

    Example:
        >>> import sys
        >>> kept = dict(sys.modules)
        >>> install()
        >>> import onnxruntime
        >>> onnxruntime.get_build_info()
        'Kernelyard'
        >>> for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        ...     _ = sys.modules.pop(name)
        >>> sys.modules.update(kept)
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        del sys.modules[name]
    for name in NAMES:
        sys.modules[f"onnxruntime{name}"] = import_module(f"kernelyard_ort_compat{name}")
