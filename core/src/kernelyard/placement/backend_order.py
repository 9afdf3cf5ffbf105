"""Order backends by priority. This file is the only place that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def order_backends(priorities: Mapping[str, int], wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of backends in the order in which they are offered the model; the first to accept an op keeps it.

    The user's list as it stands when there is one; otherwise by priority, highest first, then by name.

    Example:
        >>> order_backends({"cublas": 10, "cutlass": 10, "cudnn": 20})
        ('cudnn', 'cublas', 'cutlass')
        >>> order_backends({"cublas": 10, "cudnn": 20}, ["cublas", "cudnn", "cublas"])
        ('cublas', 'cudnn')
    """
    if wanted is not None:
        return tuple(dict.fromkeys(wanted))
    return tuple(sorted(priorities, key=lambda name: (-priorities[name], name)))
