"""Checks of legal matches against what cuDNN supports; each declines with a code and a message.

The rules are those of cuDNN 9 on GPUs of 8.0 and later. A test puts them to cuDNN itself, without a device: what is
accepted here cuDNN has a plan for.

Codes: arch, dtype, attribute, dynamic-shape, operand, layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.plugins.api import Accept, Call, Constant, Decline, Expr, Match, Target
from kernelyard_cuda.driver_api import capability_of
from kernelyard_cudnn.graph import Ints
from kernelyard_cudnn.layout import channels_first, channels_last, is_same_memory, sizes_in
from kernelyard_cudnn.reading import (
    ReadAttention,
    ReadConvolution,
    Refusal,
    Stage,
    plain_convolution,
    read_attention,
    read_convolution,
    text,
)

Answer: TypeAlias = "Accept | Decline"

HALVES = ("float16", "bfloat16")
FLOATS = ("float32", *HALVES)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
LEAST_CAPABILITY, FLOAT8_CAPABILITY = (8, 0), (9, 0)
# What cuDNN's engines for `convolution + bias + activation` apply, however tensors lie; other stages need engines that
# are compiled for them, which read channels-last images alone.
PRECOMPILED = ("relu", "elu", "tanh", "sigmoid")
HEAD_MULTIPLE = 8


class Checks:
    """The checks for a target. tf32: whether matmuls of float32 may round their operands."""

    def __init__(self, target: Target, tf32: bool = False) -> None:
        self._capabilities = [_capability(arch) for arch in target.archs]
        self._tf32 = tf32

    def convolution(self, match: Match) -> Answer:
        """Check a convolution: channels and kernels must be static; batch and space may be symbolic."""
        return self._answer(lambda: self._convolution(read_convolution(match.bindings)))

    def call(self, call: Call) -> Answer:
        """Check the operator by itself, as `convolution` does: for rules of single operators."""
        return self._answer(lambda: self._convolution(plain_convolution(call)))

    def attention(self, match: Match) -> Answer:
        """Check an attention: heads and their size must be static; batch and sequences may be symbolic."""
        return self._answer(lambda: _attention(read_attention(match.bindings)))

    def norm(self, match: Match) -> Answer:
        """Check a norm over any number of last axes; any size may be symbolic."""
        return self._answer(lambda: _norm(match))

    def _answer(self, check: Callable[[], None]) -> Answer:
        try:
            for capability in self._capabilities:
                if capability < LEAST_CAPABILITY:
                    raise Refusal(
                        "arch", f"GPUs of {_arch(capability)}; cuDNN's rules here are those of sm_80 and later"
                    )
            check()
        except Refusal as refusal:
            return refusal.answer
        return Accept()

    # --- convolutions -------------------------------------------------------------------------------------------------
    def _convolution(self, read: ReadConvolution) -> None:
        dtype = self._dtype(read)
        _check_window(read)
        x, w = (
            _read_layout(name, expr, order)
            for name, expr, order in (("x", read.x, read.x_order), ("w", read.w, read.w_order))
        )
        _require_known("channels and kernel", x[1], *w)
        for stage in read.stages:
            _check_stage(stage, read)
        if dtype in FLOAT8:
            _check_float8(read, x, w)
        if read.stages and (dtype in FLOAT8 or not _is_precompiled(read)):
            self._check_compiled(read, x, w)

    def _dtype(self, read: ReadConvolution) -> str:
        dtype = read.call.tensor_type.dtype
        taken = FLOATS if read.is_transposed else (*FLOATS, *FLOAT8)
        for expr in (read.x, read.w, *(stage.operand for stage in read.stages if stage.operand is not None)):
            if expr.tensor_type.dtype != dtype or dtype not in taken:
                raise Refusal("dtype", f"{expr.type!r}; supported are {' or '.join(taken)}, one for all", expr)
        slow = [each for each in self._capabilities if each < FLOAT8_CAPABILITY]
        if dtype in FLOAT8 and (slow or not self._capabilities):
            found = ", ".join(map(_arch, slow)) or "a target without the arch of its GPU"
            raise Refusal("arch", f"{dtype} on {found}; it needs {_arch(FLOAT8_CAPABILITY)}")
        return dtype

    def _check_compiled(self, read: ReadConvolution, x: Shape, w: Shape) -> None:
        """Check a convolution with stages beyond bias and activation, which cuDNN compiles. Raises: Refusal."""
        what = f"a convolution with {', '.join(stage.call.op_name for stage in read.stages)}"
        result = sizes_in(read.y_order, read.result.tensor_type.shape)
        tensors: list[tuple[str, Ints, Shape]] = [("x", read.x_order, x), ("its result", read.y_order, result)]
        if not isinstance(read.w, Constant) and read.call.tensor_type.dtype == "float32":
            tensors.append(("w", read.w_order, w))
        for stage in read.stages:
            if stage.operand is not None:
                tensors.append((f"an operand of {stage.call.op_name}", stage.order, _stage_sizes(stage)))
        for name, order, sizes in tensors:
            if not is_same_memory(order, channels_last(len(order)), sizes):
                raise Refusal("layout", f"{what}: {name} must be channels-last, as `layout` of its options makes it")
        if read.rank == 3 and read.call.tensor_type.dtype == "float32" and not self._tf32:
            raise Refusal("attribute", f"{what} over volumes of float32; cuDNN has it for tf32 alone")


def _is_precompiled(read: ReadConvolution) -> bool:
    """Return a bias, and perhaps an activation."""
    bias, *rest = read.stages
    is_bias = bias.mode == "add" and _is_per_channel(bias)
    return is_bias and not read.is_transposed and len(rest) <= 1 and all(stage.mode in PRECOMPILED for stage in rest)


def _is_per_channel(stage: Stage) -> bool:
    return all(size == 1 for axis, size in enumerate(_stage_sizes(stage)) if axis != 1) and _stage_sizes(stage)[1] != 1


def _stage_sizes(stage: Stage) -> Shape:
    """Return the sizes of a stage's operand by cuDNN's axes."""
    assert stage.operand is not None
    shape = stage.operand.tensor_type.shape
    return sizes_in(stage.order, (1,) * (len(stage.order) - len(shape)) + shape)


def _check_stage(stage: Stage, read: ReadConvolution) -> None:
    shape = stage.call.tensor_type.shape
    if len(shape) != len(stage.order) or sizes_in(stage.order, shape) != read.call.tensor_type.shape:
        raise Refusal("operand", f"{stage.call.op_name} makes {text(shape)} of {text(read.call.tensor_type.shape)}")
    if stage.operand is None:
        return
    for mine, its in zip(_stage_sizes(stage), read.call.tensor_type.shape, strict=True):
        if mine not in (1, its):
            found = text(stage.operand.tensor_type.shape)
            raise Refusal("operand", f"an operand of {found} is not known to broadcast to {text(shape)}", stage.operand)


def _check_window(read: ReadConvolution) -> None:
    padding = read.call.attrs["padding"]
    before, after = padding[: read.rank], padding[read.rank :]
    if before != after:
        raise Refusal("attribute", f"padding {padding}; cuDNN's is the same on both sides")
    if any(amount < 0 for amount in padding):
        raise Refusal("attribute", f"padding {padding}; cuDNN does not crop")


def _read_layout(name: str, expr: Expr, order: Ints) -> Shape:
    """Return the sizes of an image or a kernel by cuDNN's axes."""
    sizes = sizes_in(order, expr.tensor_type.shape)
    if not any(is_same_memory(order, each(len(order)), sizes) for each in (channels_first, channels_last)):
        raise Refusal("layout", f"{name} has the layout {order}; supported are channels-first and channels-last", expr)
    return sizes


def _check_float8(read: ReadConvolution, x: Shape, w: Shape) -> None:
    if w[1] == 1 and x[1] != 1:
        raise Refusal("attribute", f"a depthwise convolution of {read.call.tensor_type.dtype}")


# --- attention --------------------------------------------------------------------------------------------------------
def _attention(read: ReadAttention) -> None:
    call = read.call
    queries, keys, values = (operand.tensor_type for operand in call.args[:3])
    for operand in call.args[:3]:
        if operand.tensor_type.dtype not in HALVES:
            raise Refusal("dtype", f"attention of {operand.type!r}; supported are {' and '.join(HALVES)}", operand)
    _require_known("heads and their sizes", *queries.shape[2:], *keys.shape[2:], *values.shape[2:])
    for size in (queries.shape[3], values.shape[3]):
        assert isinstance(size, int)
        if size % HEAD_MULTIPLE:
            raise Refusal("attribute", f"heads of {size} elements; a multiple of {HEAD_MULTIPLE} is needed")
    scores = (queries.shape[0], queries.shape[2], queries.shape[1], keys.shape[1])
    if read.bias is not None:
        _check_bias(read.bias, scores)
    if read.lengths is not None:
        _check_lengths(read.lengths, scores)
    if call.attrs["causal"] == "bottom_right":
        _check_bottom_right(read, scores)


def _check_bias(bias: Expr, scores: Shape) -> None:
    shape = bias.tensor_type.shape
    if any(mine not in (1, its) for mine, its in zip(reversed(shape), reversed(scores), strict=False)):
        raise Refusal("operand", f"a bias of {text(shape)} is not known to broadcast to {text(scores)}", bias)


def _check_lengths(lengths: Expr, scores: Shape) -> None:
    given = lengths.tensor_type
    if given.dtype != "int32" or given.shape != (scores[0], 1, 1, 1):
        wanted = f"int32 of {text((scores[0], 1, 1, 1))}"
        raise Refusal("operand", f"lengths that are {given!r}; {wanted} are needed", lengths)


def _check_bottom_right(read: ReadAttention, scores: Shape) -> None:
    rows, columns = scores[2:]
    if read.bias is not None or read.lengths is not None:
        raise Refusal("attribute", "a bottom-right causal mask together with a bias or with lengths")
    if rows != 1 and dims.maximum(rows, columns) != columns:
        found = f"{rows} queries and {columns} keys"
        raise Refusal("attribute", f"a bottom-right causal mask: {found}, where there may be more queries than keys")


# --- norms ------------------------------------------------------------------------------------------------------------
def _norm(match: Match) -> None:
    call = match.call_of("root")
    for operand in call.args:
        if operand.tensor_type.dtype not in FLOATS:
            raise Refusal("dtype", f"{call.op_name} of {operand.type!r}; supported are {' or '.join(FLOATS)}", operand)
    rank, axes = call.tensor_type.rank, call.attrs["axes"]
    if tuple(axes) != tuple(range(rank - len(axes), rank)):
        raise Refusal("attribute", f"{call.op_name} over axes {axes} of {rank}; cuDNN normalises the last ones")


# --- what many ask ----------------------------------------------------------------------------------------------------
def _require_known(what: str, *needed: Dim) -> None:
    unknown = [str(dim) for dim in needed if not isinstance(dim, int)]
    if unknown:
        raise Refusal("dynamic-shape", f"{what} must be known, found {', '.join(unknown)}")


def _capability(arch: str) -> tuple[int, int]:
    capability = capability_of(arch)
    if capability is None:
        raise Refusal("arch", f"the arch {arch!r} is not a GPU of NVIDIA")
    return capability


def _arch(capability: tuple[int, int]) -> str:
    return "sm_{}{}".format(*capability)
