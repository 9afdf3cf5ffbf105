"""The kinds of primitives, one declaration each; the schema of a kind's node is in its module's docstring.

A module is imported when it is needed: a graph that runs needs those of its own nodes, patterns need all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from kernelyard_dnnl.lowering import Lower
from kernelyard_dnnl.primitive_kind import PrimitiveKind

# The module that declares each kind of node. Most wanted first: what computes most comes before what merely follows it.
MODULES: Mapping[str, str] = {
    "conv": "convolution",
    "conv_transpose": "transposed_convolution",
    "matmul": "matmul",
    "softmax": "softmax",
    "log_softmax": "softmax",
    "layer_norm": "layer_norm",
    "batch_norm": "batch_norm",
    "instance_norm": "instance_norm",
    "lrn": "lrn",
    "pool": "pooling",
    "reduce": "reduction",
    "resample": "resampling",
    "concat": "concat",
    "eltwise": "elementwise",
    "binary": "elementwise",
    "lookup": "lookup",
    "quantize": "quantization",
    "dequantize": "quantization",
    "cast": "movement",
    "reorder": "movement",
    "reshape": "movement",
    "slice": "movement",
    "pad": "padding",
}


@cache
def kind_of(node: str) -> PrimitiveKind:
    """Return the kind of primitive that a kind of node is."""
    declared = vars(import_module(f"{__name__}.{MODULES[node]}")).values()
    return next(each for each in declared if isinstance(each, PrimitiveKind) and each.node == node)


@cache
def all_kinds() -> tuple[PrimitiveKind, ...]:
    """Return every kind, in the order of `MODULES`."""
    return tuple(map(kind_of, MODULES))


@cache
def kinds_by_operator() -> Mapping[str, PrimitiveKind]:
    """Return the kind that computes each operator."""
    return {op: kind for kind in all_kinds() for op in kind.ops}


def lowering_of(node: str) -> Lower | None:
    """Return the lowering of a kind of node; None if oneDNN has no primitive for it."""
    return kind_of(node).lower if node in MODULES else None
