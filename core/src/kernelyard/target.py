"""Target: the kind of device that a program is compiled for."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from kernelyard.errors import TargetError
from kernelyard.runtime.device.device import CPU

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Target:
    """Compilation target; compiling needs no device of that kind.

    kind: "cpu", or what plugins call their devices, such as "cuda": letters, digits, "_" and "-". `compile` asks
    whether there is such a plugin. arch: a GPU architecture such as "sm_90"; several, "sm_80,sm_90", get code for each;
    by default the code generator of the kind chooses, and the report says which. For CPUs "x86-64" or "aarch64". mcpu:
    the least CPU that programs must run on, such as "x86-64-v3" or "cortex-a72" (default: the CPU this runs on, of
    another architecture the least). deterministic: a compiled program gives the same bits for the same feeds in every
    run, with any number of threads and of callers, on one kind of CPU; what cannot promise that runs on one thread.
    Raises: TargetError.

    Example:
        >>> Target("cpu", mcpu="x86-64-v3").kind
        'cpu'
        >>> Target("cuda", arch="sm_80, sm_90").archs
        ('sm_80', 'sm_90')
    """

    kind: str
    arch: str | None = None
    mcpu: str | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.arch is not None:
            object.__setattr__(self, "arch", ",".join(self.archs))
        if not isinstance(self.kind, str) or _KIND.fullmatch(self.kind) is None:
            raise TargetError("a kind of device is an identifier", found=repr(self.kind), expected='"cuda", "my-npu"')

    @property
    def host(self) -> Target:
        """The target of what runs on the host in a program for this one."""
        return self if self.kind == CPU else replace(self, kind=CPU, arch=None)

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures; none where the target says nothing of them."""
        return tuple(name.strip() for name in self.arch.split(",")) if self.arch is not None else ()

    def __str__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return " ".join([self.kind, *given])


def as_target(target: Target | str) -> Target:
    """Return a Target from itself or from the name of its kind.

    Raises: TargetError.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise TargetError("a target is a name or a Target", found=type(target).__name__, expected='"cpu"')
    return Target(target)
