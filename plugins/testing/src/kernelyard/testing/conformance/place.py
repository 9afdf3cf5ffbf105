"""Target and plugins of a conformance run: the device of the backend's manifest, and the plugins that programs need."""

from __future__ import annotations

from collections.abc import Sequence

import kernelyard as ky
from kernelyard.errors import PluginError
from kernelyard.plugins.hookspecs import PROJECT
from kernelyard.plugins.interfaces.manifest import Manifest, read_manifest
from kernelyard.runtime.device.device import CPU, Device
from kernelyard.runtime.installed.entry_points import find

FIRST = {"cuda": "emulator"}  # the device of a kind to try things on, where it is not number 0


def device_of(backend: str, index: str = "") -> Device:
    """Return the CPU, where the backend is for it; otherwise the first device, CUDA's emulator, or one named by its
    number.
    """
    manifest = _manifests().get(backend)
    return device_for(manifest.targets if manifest else (), index)


def device_for(targets: Sequence[str], index: str = "") -> Device:
    """Return the device of a manifest's targets; see `device_of`.

    Example:
        >>> print(device_for(("cpu",)), device_for(("cuda",)), device_for(("cuda",), "0"), device_for(("npu",)))
        cpu cuda:emulator cuda:0 npu:0
    """
    if CPU in targets or not targets:
        return ky.cpu()
    return ky.device(targets[0], int(index) if index.isdigit() else index or FIRST.get(targets[0], 0))


def plugins_for(backend: str) -> tuple[str, ...]:
    """Return the plugins of the process that tries a backend: itself, and for another device than the CPU its code
    generators, or those of the host where it has none.

    Programs for the CPU run without one; those for others do not.
    """
    kind = device_of(backend).kind
    return (backend, *(_generators(kind) or _generators(CPU) if kind != CPU else ()))


def _generators(kind: str) -> list[str]:
    manifests = _manifests().items()
    return sorted(name for name, m in manifests if "code_generator" in m.provides and kind in m.targets)


def _manifests() -> dict[str, Manifest]:
    """Return the manifests of installed plugins; nothing of them is imported."""
    found: dict[str, Manifest] = {}
    for entry in find(PROJECT).entries:
        try:
            found[entry.name] = read_manifest(entry.module)
        except PluginError:
            continue  # another plugin's fault, which `kernelyard backends` shows
    return found
