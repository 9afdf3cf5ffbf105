"""Compose attention that a model has decomposed into matmuls and a softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from kernelyard.ir import Call, IRModule
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

if TYPE_CHECKING:
    from kernelyard.patterns.rewriting.function_rewriter import Rewriter


class ComposeAttention(Pass):
    """Replace products around a softmax by `nn.attention` or `nn.attention_bias`; a mask of booleans becomes a bias.

    It expects the forms of `canonicalize`. What somebody else reads (the weights, say) is not computed twice. Rows that
    see nothing give what the model gives for them. accepts: is asked for each attention; None composes all.
    """

    name = "compose_attention"

    def __init__(self, accepts: Callable[[Call], bool] | None = None) -> None:
        self._accepts = accepts

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        bindings = (binding for function in module.graph_functions().values() for binding in function.bindings)
        if not any(isinstance(each.value, Call) and each.value.op_name == "nn.softmax" for each in bindings):
            return module
        return _composer(self._accepts)(module)


class SimplifyAttention(Pass):
    """Use what `nn.attention` has of its own: a bias that hides what comes after a query becomes the attribute
    `causal`, and repeated heads become fewer heads of keys and values.

    It expects the permutations around the operator to be gone, as `canonicalize` leaves it.
    """

    name = "simplify_attention"

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return _simplifier()(module)


@lru_cache(maxsize=4)
def _composer(accepts: Callable[[Call], bool] | None) -> Rewriter:
    # Inside, as below: most models have no attention.
    from kernelyard.patterns.attention_masks import rewriters_before_recognition
    from kernelyard.patterns.attention_templates import attention_rewriters

    return rewriters_before_recognition() | (attention_rewriters(accepts) if accepts else attention_rewriters())


@cache
def _simplifier() -> Rewriter:
    from kernelyard.patterns.attention_masks import rewriters_after_recognition

    return rewriters_after_recognition()
