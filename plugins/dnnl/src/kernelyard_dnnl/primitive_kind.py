"""PrimitiveKind: all that makes up one kind of primitive, from the operators that it computes to its lowering.

An instance is one file of the folder `primitives`. Both halves read it: patterns, checks and the writer of JSON graphs
on the one side, the lowering on the other. An artifact is run without the compiler, so that these files import none of
it: their functions are handed what they need (`kernelyard_dnnl.candidate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl.lowering import Lower

if TYPE_CHECKING:
    from kernelyard.plugins.api import Call, Expr, KernelNode, Pattern
    from kernelyard_dnnl.candidate import Candidate
    from kernelyard_dnnl.composite import Composite

FLOAT, NARROW = "float32", "bfloat16"
INTEGERS = ("int8", "uint8")


class Refusal(NamedTuple):
    """A reason why oneDNN declines a group: the fields of `kernelyard.patterns.Decline`."""

    code: str
    message: str
    at: Expr | None = None


Check: TypeAlias = "Callable[[Candidate], Refusal | None]"


class Follows(Enum):
    """The kinds of operators that may follow the anchor in its group."""

    NOTHING = ""
    CAST = "a cast"
    POST_OPS = "post-ops"
    POST_OPS_AND_CASTS = "bias, post-ops, casts"


class MemoryOrder(Enum):
    """In which order the dims of the result lie in memory: what checks know of the layouts that lowerings choose."""

    ROW_MAJOR = "row-major"
    CHANNELS_LAST = "N, spatial..., C"
    FIRST_OPERAND = "that of the first operand"
    WHOLE_OPERAND = "that of an operand of the result's shape"
    RENAMED = "that of the operand, whose dims are renamed"
    OPEN = "row-major where the operand is, else unknown"


def _no_objection(candidate: Candidate) -> Refusal | None:
    return None


class PrimitiveKind(NamedTuple):
    """A kind of primitive.

    node: its name in JSON graphs. summary: for the plugin's page. ops: the operators that it computes. operands: the
    roles of their operands; none: any number, x0, x1, ... lower: from a node to operations. attributes: what `lower`
    reads of a group, beside shapes. check: asked of groups of known dtypes whose post-ops fit. check_surroundings:
    asked before all else. follows: what the group goes on with. order: of the result's dims. pattern: the pattern's
    name, which several kinds may share; none: each operator has its own. reader: an operator that the primitive does
    while it reads its operands (`patterns.READERS`). bias_axis: of the result, along which a first sum is the
    primitive's bias. dtypes: those taken. is_light: a generated kernel does it on its way.
    computes: whether a call of one of the operators may be the primitive's, by its attributes alone: asked of the
    neighbours of others, too. has_one_dtype: operands and result have the same one of these. enumerators: of the C API,
    which `tests/test_native.py` compares with the headers. on_integers: the operators that oneDNN computes on
    operands of 8 bits which are dequantized, and whose result it may quantize. anchor, write: the pattern and the node,
    where they are not those of a call with these operands and attributes.
    """

    node: str
    summary: str
    ops: tuple[str, ...]
    operands: tuple[str, ...]
    lower: Lower
    attributes: Callable[[Composite], Mapping[str, Any]] = lambda _: {}
    computes: Callable[[Call], bool] = lambda _: True
    check: Check = _no_objection
    check_surroundings: Check = _no_objection
    follows: Follows = Follows.NOTHING
    order: MemoryOrder = MemoryOrder.OPEN
    pattern: str = ""
    reader: str = ""
    bias_axis: int | None = None
    dtypes: tuple[str, ...] = (FLOAT, NARROW)
    is_light: bool = False
    has_one_dtype: bool = True
    enumerators: Mapping[str, int] = {}
    on_integers: tuple[str, ...] = ()
    anchor: Callable[[], Pattern] | None = None
    write: Callable[[Composite], KernelNode] | None = None
