"""Checks of legal matches against what oneDNN supports; each returns a decline code and a message.

Codes: dtype, rank, attribute, dynamic-shape, operand, neighbours, numbers, slow, reference-implementation, light;
codegen and dynamic-shape where C is generated.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.dims import Shape
from kernelyard.plugins.api import Accept, Answer, Decline, Expr, Match, Region, TensorType
from kernelyard_dnnl.candidate import Candidate
from kernelyard_dnnl.composite import DECODER, ENCODER, Composite, read_composite
from kernelyard_dnnl.costs import cost_of
from kernelyard_dnnl.integer_checks import check_integers
from kernelyard_dnnl.post_ops import POWERS, PRELU, Binary
from kernelyard_dnnl.primitive_kind import INTEGERS, Refusal
from kernelyard_dnnl.probe import objection
from kernelyard_dnnl.stages import exponent_of

MAX_RANK = 6  # beyond it oneDNN has reference implementations for most primitives


def check(match: Match) -> Answer:
    """Return the first objection, or acceptance when oneDNN also has a real implementation for it."""
    refusal = next(_refusals(Candidate(match)), None)
    return Accept(cost_of(match)) if refusal is None else Decline(*refusal)


def _refusals(candidate: Candidate) -> Iterator[Refusal]:
    """Yield the reasons to decline, those that are quick to find first."""
    composite = candidate.composite
    kind = composite.kind
    rules = (
        lambda: kind.check_surroundings(candidate),
        lambda: _inner_operands(candidate),
        lambda: _decoding(candidate),
        lambda: _dtypes(composite),
        lambda: check_integers(candidate),
        lambda: _stages(composite),
        lambda: _powers(composite),
        lambda: _ranges(composite),
        lambda: kind.check(candidate),
        lambda: objection(composite),
    )
    return filter(None, (rule() for rule in rules))


# --- what holds for every primitive -----------------------------------------------------------------------------------
def _inner_operands(candidate: Candidate) -> Refusal | None:
    composite = candidate.composite
    operands = [stage.operand for stage in composite.stages if isinstance(stage, Binary)]
    for operand in operands if composite.bias is None else (composite.bias, *operands):
        if operand in candidate.match.members:
            return Refusal("operand", "a post-op reads a value from inside its own group", at=operand)
    return None


def _decoding(candidate: Candidate) -> Refusal | None:
    if candidate.is_dequantized(candidate.match.root):
        return Refusal("slow", "it dequantizes weights, which a generated kernel fuses into its loads")
    return None


def _dtypes(composite: Composite) -> Refusal | None:
    """Check for one dtype in the whole group up to a cast; sums are float32 in between, whatever it is."""
    taken = composite.kind.dtypes
    first = composite.anchor.tensor_type.dtype
    for call in composite.calls:
        if call.op_name in (DECODER, ENCODER):
            continue
        is_cast = call.op_name == "astype"
        first = call.tensor_type.dtype if is_cast else first
        for operand in (call,) if is_cast else (*call.args, call):
            dtype = operand.type.dtype if isinstance(operand.type, TensorType) else None
            if dtype not in taken or (dtype != first and composite.kind.has_one_dtype):
                return Refusal(
                    "dtype", f"{call.op_name} of {operand.type!r}; supported are {' or '.join(taken)}", at=operand
                )
            if dtype in INTEGERS and composite.stages:
                return Refusal(
                    "dtype", f"{call.op_name} of {operand!r} with post-ops, which are of float32", at=operand
                )
            if operand.tensor_type.rank > MAX_RANK:
                return Refusal("rank", f"rank {operand.tensor_type.rank} is above {MAX_RANK}", at=operand)
    return None


def _stages(composite: Composite) -> Refusal | None:
    """Check that post-ops keep the shape of the primitive's result, and that their operands broadcast to it."""
    shape = composite.anchor.tensor_type.shape
    for call in composite.following:
        if call.tensor_type.shape != shape:
            return Refusal(
                "operand", f"{call.op_name} changes the shape from {_text(shape)} to {_text(call.tensor_type.shape)}"
            )
    for stage in composite.stages:
        if isinstance(stage, Binary) and not _can_broadcast(stage.operand, shape):
            found = _text(stage.operand.tensor_type.shape)
            return Refusal(
                "operand", f"an operand of shape {found} is not known to broadcast to {_text(shape)}", at=stage.operand
            )
        if isinstance(stage, Binary) and stage.algorithm == PRELU and not _is_vector(stage.operand):
            found = _text(stage.operand.tensor_type.shape)
            return Refusal("operand", f"slopes of shape {found}, which lie along several axes", at=stage.operand)
    return None


def _powers(composite: Composite) -> Refusal | None:
    for call in composite.calls:
        if call.op_name == "power" and exponent_of(call) not in POWERS:
            return Refusal("slow", f"oneDNN computes powers of {exponent_of(call):g} one element at a time")
    return None


def _ranges(composite: Composite) -> Refusal | None:
    for call in composite.calls:
        ends = (call.attrs["min"], call.attrs["max"]) if call.op_name == "clip" else ()
        if ends and None not in ends and ends[0] > ends[1]:
            return Refusal("attribute", "oneDNN has no clip to nothing")
    return None


def _can_broadcast(operand: Expr, shape: Shape) -> bool:
    own = operand.tensor_type.shape
    return len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))


def _is_vector(operand: Expr) -> bool:
    return sum(size != 1 for size in operand.tensor_type.shape) <= 1


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


# --- whole regions ----------------------------------------------------------------------------------------------------
def prune(region: Region) -> Answer:
    """Decline regions of nothing but elementwise operators and data movement."""
    anchors = [read_composite(composite.bindings) for _, composite in region.composites()]
    if not all(anchor.kind.is_light for anchor in anchors):
        return Accept()
    names = dict.fromkeys(each.anchor.op_name for each in anchors)
    return Decline("light", f"a region of {', '.join(names)}, which generated kernels fuse into their loops")
