"""Epilogues of generated kernels: elementwise operators that such a kernel computes in registers.

A backend that declines a convolution may still accept the bias and the activation behind it. They would read the
kernel's result from memory, and write it again.
"""

from __future__ import annotations

from kernelyard.ir import Binding, Call, Expr, Function, GlobalVar, IRModule, TupleGetItem
from kernelyard.ir.op import Op
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.patterns.composite import COMPOSITE
from kernelyard.patterns.registry import Decline, FusionPattern
from kernelyard.placement.policy import Policy
from kernelyard.placement.prune import release_composites
from kernelyard.placement.recorder import Recorder

# What computes nothing: its result is as generated as its operand.
VIEWS = ("reshape",)


def release_epilogues(
    module: IRModule, policy: Policy, patterns: dict[str, FusionPattern], recorder: Recorder
) -> IRModule:
    """Return the module in which elementwise composites that follow generated kernels are operators again.

    patterns: by name, those that the composites were made from. recorder: has their matches, and records the declined
    ones.
    """
    declined: dict[Binding, Decline] = {}
    for function in module.entry_functions().values():
        declined |= _epilogues(function, module, policy, recorder)
    return release_composites(module, declined, patterns, recorder) if declined else module


def _epilogues(function: Function, module: IRModule, policy: Policy, recorder: Recorder) -> dict[Binding, Decline]:
    """Return the bindings of composites all of whose operands of the result's shape are generated."""
    found: dict[Binding, Decline] = {}
    generated: set[Expr] = set()
    for binding in function.bindings:
        value = binding.value
        if isinstance(value, TupleGetItem):
            is_generated = value.tuple_value in generated
        elif isinstance(value, Call) and isinstance(value.op, Op):
            is_generated = value.op_name not in VIEWS or value.args[0] in generated
        elif _is_elementwise(value, module) and _continues(value, generated):
            match = recorder.matches.get(binding.var)
            decline = None if match is None else policy.decide_epilogue(match)
            is_generated = decline is not None
            if decline is not None:
                found[binding] = decline
        else:
            is_generated = False
        if is_generated:
            generated.add(binding.var)
    return found


def _is_elementwise(value: Expr, module: IRModule) -> bool:
    """Return True for a call of a composite of elementwise operators."""
    if not isinstance(value, Call) or not isinstance(value.op, GlobalVar):
        return False
    composite = module[value.op.name]
    if not isinstance(composite, Function) or COMPOSITE not in composite.attrs:
        return False
    calls = [binding.value for binding in composite.bindings]
    return all(isinstance(call, Call) and call.op_name in ELEMENTWISE for call in calls)


def _continues(value: Expr, generated: set[Expr]) -> bool:
    assert isinstance(value, Call), "a call of a composite"
    shape = value.tensor_type.shape
    whole = [arg for arg in value.args if arg.tensor_type.shape == shape]
    return bool(whole) and generated.issuperset(whole)
