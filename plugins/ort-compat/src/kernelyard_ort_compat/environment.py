"""Answer what programs ask of an onnxruntime: providers, device, version; accept settings without effect."""

from __future__ import annotations

from typing import Any

from kernelyard_ort_compat.session import PROVIDER

VERSION = "1.32.0"
"""Of the onnxruntime whose names these are, for programs that ask for it."""


def get_available_providers() -> list[str]:
    """Return the one provider."""
    return [PROVIDER]


get_all_providers = get_available_providers


def get_device() -> str:
    """Return the device that sessions run on."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of onnxruntime whose names these are."""
    return VERSION


def get_build_info() -> str:
    """Return the name of the engine behind the names."""
    return "Kernelyard"


def ignore_setting(*arguments: Any, **options: Any) -> None:
    """Accept a setting of random numbers, libraries, telemetry or the logger, and change nothing."""


set_seed = preload_dlls = ignore_setting
enable_telemetry_events = disable_telemetry_events = ignore_setting
set_default_logger_severity = set_default_logger_verbosity = ignore_setting
