"""What could not be converted, and the one error that lists it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard.errors import UnsupportedOperatorError
from kernelyard_onnx.undecided import UndecidedInputsError

MAX_LISTED = 10


@dataclass(frozen=True)
class Problem:
    """A node that could not be converted. inputs: those of the model whose values would decide it."""

    op_type: str
    origin: str
    reason: str
    inputs: frozenset[str] = frozenset()


def unsupported(problems: Sequence[Problem]) -> UnsupportedOperatorError:
    """One error for all nodes: operators by name, and for each operator and reason the nodes."""
    op_types = sorted({problem.op_type for problem in problems})
    nodes: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        nodes.setdefault((problem.op_type, problem.reason), []).append(problem.origin)
    lines = [f"{op_type}: {reason}: {_listed(origins)}" for (op_type, reason), origins in sorted(nodes.items())]
    parts: dict[str, Any] = {
        "where": "; ".join(lines),
        "found": ", ".join(op_types),
        "hint": "export the model without these, fix sizes (option shapes), "
        "or fix an input that decides (option values)",
    }
    message = (
        f"the model uses {len(op_types)} operator{'s' if len(op_types) > 1 else ''} in a way that is not supported: "
    )
    if all(problem.inputs for problem in problems):
        inputs = frozenset().union(*(problem.inputs for problem in problems))
        parts["hint"] = f"fix the inputs that decide (option values): {', '.join(sorted(inputs))}"
        return UndecidedInputsError(message + ", ".join(op_types), inputs=inputs, **parts)
    return UnsupportedOperatorError(message + ", ".join(op_types), **parts)


def _listed(origins: Sequence[str]) -> str:
    shown = list(dict.fromkeys(origins))
    rest = len(shown) - MAX_LISTED
    return ", ".join(shown[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
