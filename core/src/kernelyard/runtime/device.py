"""Devices: where a program runs. Naming one costs nothing; whether it is there is asked when it is used."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard.errors import DeviceError

# Why a kind of device cannot be used by this release; "cpu" is always there.
_NO_DRIVER = {"cuda": "this release has no CUDA runtime: programs run on the CPU"}


@dataclass(frozen=True)
class Device:
    """A device by kind and index.

    Example:
        >>> print(cpu(), cuda(1))
        cpu cuda:1
    """

    kind: str
    index: int | str = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def require(self) -> None:
        """Make sure that the device can be used here.

        Raises: DeviceError with the reason.
        """
        if self.kind != "cpu":
            raise DeviceError(
                f"the device {self} cannot be used",
                found=_NO_DRIVER.get(self.kind, f"unknown kind of device {self.kind!r}"),
                expected="cpu",
                hint="use kernelyard.cpu()",
            )


def cpu() -> Device:
    """The host's processor."""
    return Device("cpu")


def cuda(index: int | str = 0) -> Device:
    """A CUDA device by index, or "emulator"."""
    return Device("cuda", index)
