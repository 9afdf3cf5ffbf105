"""Alignment (domain com.microsoft): DynamicTimeWarping, by which Whisper assigns words to audio.

The cheapest path through a matrix is a function of the standard's operators, in ONNX's text form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import onnx
from onnx import parser

from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter
from kernelyard_onnx.values import Value

# Costs are summed diagonal by diagonal, since those of one do not depend on each other. Row d of `diagonals` has the
# cost of each row of the matrix on diagonal d, infinity where there is none. `before` and `last` are the sums of the
# two diagonals before, behind an infinite one for what lies above the matrix. Moves: 0 along both axes, 1 down,
# 2 right.
_CHEAPEST_PATH = """
<opset_import: ["" : 18], domain: "com.microsoft">
cheapest_path (cost) => (path)
{
    infinity = Constant <value = float {inf}> ()
    above_all = Constant <value = float[1] {inf}> ()
    begin = Constant <value = float[1] {0}> ()
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    at_0 = Constant <value = int64[1] {0}> ()
    at_1 = Constant <value = int64[1] {1}> ()
    end = Constant <value = int64[1] {9223372036854775807}> ()
    minus_1 = Constant <value = int64[1] {-1}> ()
    front = Constant <value = int64[1] {-9223372036854775807}> ()
    before_all = Constant <value = int64[3] {0, 0, 0}> ()
    changes = Constant <value = int64[3, 2] {1, 1, 1, 0, 0, 1}> ()
    going = Constant <value = bool {1}> ()

    shape = Shape (cost)
    rows = Shape <end = 1> (cost)
    pads = Concat <axis = 0> (before_all, rows)
    padded = Pad (cost, pads, infinity)
    flat = Reshape (padded, minus_1)
    cut_off = Neg (rows)
    cut = Slice (flat, at_0, cut_off)
    skewed = Concat <axis = 0> (rows, minus_1)
    by_row = Reshape (cut, skewed)
    diagonals = Transpose <perm = [1, 0]> (by_row)

    nowhere = Expand (infinity, rows)
    before_0 = Concat <axis = 0> (begin, nowhere)
    last_0 = Concat <axis = 0> (above_all, nowhere)
    before_n, last_n, moves = Scan <num_scan_inputs = 1, body = sum_of_diagonal
        (before, last, diagonal) => (before_next, last_next, move)
        {
            both = Slice (before, at_0, minus_1)
            down = Slice (last, at_0, minus_1)
            right = Slice (last, at_1, end)
            both_below_down = Less (both, down)
            both_below_right = Less (both, right)
            is_both = And (both_below_down, both_below_right)
            down_below_both = Less (down, both)
            down_below_right = Less (down, right)
            is_down = And (down_below_both, down_below_right)
            one_axis = Where (is_down, one, two)
            move = Where (is_both, zero, one_axis)
            of_one_axis = Where (is_down, down, right)
            least = Where (is_both, both, of_one_axis)
            sum = Add (diagonal, least)
            last_next = Concat <axis = 0> (above_all, sum)
            before_next = Identity (last)
        }> (before_0, last_0, diagonals)

    corner = Sub (shape, one)
    origin, places = Loop <body = back
        (turn, is_going, place) => (goes_on, place_next, passed)
        {
            row = Gather (place, zero)
            diagonal_of_place = ReduceSum <keepdims = 0> (place)
            moves_of_diagonal = Gather (moves, diagonal_of_place)
            move_back = Gather (moves_of_diagonal, row)
            change = Gather (changes, move_back)
            place_next = Sub (place, change)
            goes_on = Greater (diagonal_of_place, zero)
            passed = Identity (place)
        }> ("", going, corner)
    forwards = Slice (places, minus_1, front, at_0, minus_1)
    path_of_int64 = Transpose <perm = [1, 0]> (forwards)
    path = Cast <to = 6> (path_of_int64)
}
"""


@cache
def _cheapest_path() -> onnx.FunctionProto:
    return parser.parse_function(_CHEAPEST_PATH)


@converter("DynamicTimeWarping", domain=MICROSOFT)
def dynamic_time_warping(node: Node) -> Sequence[Value | None]:
    cost = node.input(0)
    cost = node.reshape(cost, node.shape(cost)[1:]) if node.rank(cost) == 3 else cost
    return node.importer.run_function(_cheapest_path(), node.proto, [cost], node.scope)
