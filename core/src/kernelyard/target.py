"""Target: the kind of device that a program is compiled for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

from kernelyard.errors import TargetError

KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Target:
    """What to compile for; compiling needs no device of that kind.

    kind: "cpu" or "cuda". arch: a GPU architecture such as "sm_90"; several, "sm_80,sm_90", get code for each.
    mcpu: the least CPU that programs must run on, such as "x86-64-v3" (default: the CPU this runs on). deterministic: a
    compiled program gives the same bits for the same feeds in every run, with any number of threads and of callers, on
    one kind of CPU; what cannot promise that runs on one thread. Raises: TargetError.

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
        if self.kind not in KINDS:
            close = difflib.get_close_matches(self.kind, KINDS, 1)
            raise TargetError(
                f"unknown target {self.kind!r}",
                expected=", ".join(KINDS),
                hint=f"did you mean {close[0]!r}?" if close else None,
            )

    @property
    def archs(self) -> tuple[str, ...]:
        """The GPU architectures; none where the target says nothing of them."""
        return tuple(name.strip() for name in self.arch.split(",")) if self.arch is not None else ()

    def __str__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return " ".join([self.kind, *given])


def as_target(target: Target | str) -> Target:
    """A Target from itself or from the name of its kind.

    Raises: TargetError.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        raise TargetError("a target is a name or a Target", found=type(target).__name__, expected=", ".join(KINDS))
    return Target(target)
