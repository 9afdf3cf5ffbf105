"""Devices: where a program runs. Naming one costs nothing; whether it is there is asked when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.errors import DeviceError, PluginContractError
from kernelyard.records import record

if TYPE_CHECKING:
    from kernelyard.runtime.device.driver import DeviceDriver

# Entry points of this group, named as a kind of device: `open(index) -> DeviceDriver`, which raises DeviceError where
# the device is not there.
GROUP = "kernelyard.device"
CPU = "cpu"  # the host's processor, which is always there and needs no driver


@record
class Device:
    """A device by kind and index.

    Example:
        >>> print(cpu(), cuda(1))
        cpu cuda:1
    """

    kind: str
    index: int | str = 0

    def __str__(self) -> str:
        return self.kind if self.kind == CPU else f"{self.kind}:{self.index}"

    def require(self) -> None:
        """Make sure that the device can be used here.

        Raises: DeviceError with the reason.
        """
        self.open()

    def open(self) -> DeviceDriver | None:
        """Open the driver, which copies data to and from the device and synchronizes; None for the CPU.

        Raises: DeviceError with the reason, and with what to install.
        """
        if self.kind == CPU:
            return None
        from kernelyard.runtime.device.driver import DeviceDriver
        from kernelyard.runtime.installed.distributions import install_line
        from kernelyard.runtime.installed.entry_points import find

        entry = next((entry for entry in find(GROUP).entries if entry.name == self.kind), None)
        if entry is None:
            raise DeviceError(
                f"the device {self} cannot be used",
                found="no installed plugin that drives such a device",
                expected=", ".join(device_kinds()),
                hint=install_line(self.kind) or "install the plugin that drives it",
            )
        driver = entry.load()(self.index)
        if not isinstance(driver, DeviceDriver):
            raise PluginContractError(
                "a plugin opens devices as something else",
                where=entry.value,
                found=repr(driver),
                expected="DeviceDriver",
            )
        return driver


def device_kinds() -> tuple[str, ...]:
    """Return the kinds of devices that can be driven here: the CPU, and those of installed plugins."""
    from kernelyard.runtime.installed.entry_points import find

    return tuple(dict.fromkeys([CPU, *(entry.name for entry in find(GROUP).entries)]))


def device(kind: str, index: int | str = 0) -> Device:
    """Return a device of any kind, by index or by what its plugin calls it.

    Example:
        >>> print(device("npu", 1))
        npu:1
    """
    return Device(kind, index)


def devices(kind: str) -> tuple[Device, ...]:
    """Return the devices of a kind that are here, as the driver of the first one says.

    Raises: DeviceError where there is none.
    """
    driver = Device(kind).open()
    return (cpu(),) if driver is None else tuple(driver.devices())


def cpu() -> Device:
    """Return the host's processor."""
    return device(CPU)


def cuda(index: int | str = 0) -> Device:
    """Return a CUDA device by index, or "emulator"."""
    return device("cuda", index)
