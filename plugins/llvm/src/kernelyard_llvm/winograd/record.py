"""The record of a convolution: the 64-bit numbers that its code reads, by their place."""

from __future__ import annotations

from enum import IntEnum, auto

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value

MAX_OPERANDS = 8  # post-ops that are fused, each with an operand of its own or none
AXES = 3  # image, row, pixel


class Field(IntEnum):
    """Places in the record. Sizes and strides count floats; addresses are of a tensor's first float."""

    SOURCE = 0
    WEIGHTS = auto()
    BIAS = auto()
    RESULT = auto()
    OPERANDS = auto()  # of post-ops
    SCRATCH = OPERANDS + MAX_OPERANDS
    TRANSFORM_DATA = auto()  # the addresses of functions
    TRANSFORM_RESULT = auto()
    CHANNELS = auto()
    FILTERS = auto()
    PADDED_CHANNELS = auto()  # a whole number of vectors
    REDUCED = auto()  # the channels of all planes of a window, which a product sums
    PADDED_REDUCED = auto()
    PLANES = auto()  # of a window
    DEPTH = auto()  # planes of a volume, each of which is an image; 1 of images
    RESULT_DEPTH = auto()
    PADDING_FRONT = auto()
    PADDED_FILTERS = auto()
    HEIGHT = auto()
    WIDTH = auto()
    RESULT_HEIGHT = auto()
    RESULT_WIDTH = auto()
    PADDING_TOP = auto()
    PADDING_LEFT = auto()
    TILES_DOWN = auto()
    TILES_ACROSS = auto()
    TILES = auto()  # of all images
    BLOCK = auto()  # tiles that are worked on together
    BLOCKS = auto()
    IS_SHARED = auto()  # 1: all threads work on each block; 0: each has blocks of its own
    PLACES = auto()  # of a tile
    PANELS = auto()  # of the weights of one place
    DATA_STRIDE = auto()  # from the matrix of one place to the next
    PRODUCTS_STRIDE = auto()
    PRODUCTS = auto()  # behind the data in scratch memory
    BLOCK_STRIDE = auto()  # from one thread's data and products to the next's
    COPY = auto()  # of a tile at the edge, behind all data and products
    COPY_STRIDE = auto()
    STRIDES = auto()  # of the source's axes, the result's, and each operand's
    LENGTH = STRIDES + AXES * (2 + MAX_OPERANDS)


RECORD = Value("%record", "ptr")


def number(f: FunctionEmitter, field: int, type_: str = "i64") -> Value:
    """Return a number of the record, which nobody writes to meanwhile."""
    place = f.element(RECORD, int(field), "i64")
    return f.pure(f.load_text(place, type_, 1), type_, 1, [place])


def address(f: FunctionEmitter, field: int) -> Value:
    """Return an address of the record."""
    return number(f, field, "ptr")


def strides_of(tensor: int) -> range:
    """Return the slots of a tensor's strides; 0 is the source, 1 the result, the operands follow."""
    return range(Field.STRIDES + AXES * tensor, Field.STRIDES + AXES * (tensor + 1))
