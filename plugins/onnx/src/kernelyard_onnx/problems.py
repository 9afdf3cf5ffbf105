"""The errors for nodes that cannot be converted: one for all that are not supported, one for a node that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import KernelyardError, ModelFormatError, UnsupportedOperatorError
from kernelyard.plugins.api import Expr, Problem, unsupported
from kernelyard_onnx.node import Node
from kernelyard_onnx.undecided import UndecidedInputsError, UndecidedNodeError, UndecidedProblem

SESSION_HINT = "run it by kernelyard_onnx.session.Session(model).run(feeds), which compiles it for what a call gives"


class DifferingBranchesError(UndecidedNodeError):
    """Data decides which branch of an `If` is taken, and the results have no common type. Never leaves the importer.

    node: the `If`.
    """

    def __init__(self, reason: str, node: Node) -> None:
        condition = node.input(0)
        super().__init__(reason, node.builder.inputs_of(condition), node.names_of([condition]))
        self.node = node


def create_unsupported_error(problems: Sequence[Problem]) -> UnsupportedOperatorError:
    """Return one error for all nodes that could not be converted."""
    parts = unsupported("model", problems)
    if all(problem.inputs for problem in problems):
        inputs = frozenset().union(*(problem.inputs for problem in problems))
        hint = f"give constant values for the inputs that shapes depend on (option values): {', '.join(sorted(inputs))}"
        named = [problem.tensors if isinstance(problem, UndecidedProblem) else frozenset() for problem in problems]
        tensors = frozenset().union(*named) if all(named) else frozenset()
        return UndecidedInputsError(**parts, inputs=inputs, tensors=tensors, hint=hint)
    hint = "export the model without these operators, fix sizes (option shapes) or values of inputs (option values)"
    return UnsupportedOperatorError(**parts, hint=hint)


def create_malformed_error(error: KernelyardError, node: Node) -> ModelFormatError:
    """Return the error of a node that breaks a promise of the standard."""
    types = ", ".join(repr(value.type) if isinstance(value, Expr) else "none" for value in node.inputs)
    return ModelFormatError(
        f"a node does not fit its inputs: {error.message}",
        where=node.origin,
        found=error.found or f"inputs {types}",
        expected=error.expected,
        hint=error.hint,
    )
