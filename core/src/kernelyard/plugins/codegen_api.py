"""Import from here what a code generator needs: loop-level IR, its analysis, stages and schedules.

API 2: docs/compatibility.md. Names are loaded when they are first used.

Example:
    >>> from kernelyard.plugins.codegen_api import PrimFunc, make_stages
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.lazy import lazy_names

if TYPE_CHECKING:
    from kernelyard.dims.c_text import C_FUNCTIONS as C_FUNCTIONS
    from kernelyard.dims.c_text import to_c as to_c
    from kernelyard.plugins.interfaces.code_generator import CodeGenerator as CodeGenerator
    from kernelyard.tir.analysis import Affine as Affine
    from kernelyard.tir.analysis import affine_of as affine_of
    from kernelyard.tir.analysis import axes_of as axes_of
    from kernelyard.tir.analysis import offset_of as offset_of
    from kernelyard.tir.analysis import step_along as step_along
    from kernelyard.tir.analysis import unconditional_loads as unconditional_loads
    from kernelyard.tir.analysis import used_as_values as used_as_values
    from kernelyard.tir.buffer import Buffer as Buffer
    from kernelyard.tir.byte_products import PER_WORD as PER_WORD
    from kernelyard.tir.byte_products import ByteProduct as ByteProduct
    from kernelyard.tir.byte_products import byte_product as byte_product
    from kernelyard.tir.common_loops import with_common_axes as with_common_axes
    from kernelyard.tir.expr import BINARY as BINARY
    from kernelyard.tir.expr import UNARY as UNARY
    from kernelyard.tir.expr import Axis as Axis
    from kernelyard.tir.expr import Binary as Binary
    from kernelyard.tir.expr import Cast as Cast
    from kernelyard.tir.expr import Const as Const
    from kernelyard.tir.expr import DimValue as DimValue
    from kernelyard.tir.expr import Expr as Expr
    from kernelyard.tir.expr import Load as Load
    from kernelyard.tir.expr import Scalar as Scalar
    from kernelyard.tir.expr import Select as Select
    from kernelyard.tir.expr import Unary as Unary
    from kernelyard.tir.expr import index as index
    from kernelyard.tir.index_algebra import IndexAlgebra as IndexAlgebra
    from kernelyard.tir.index_algebra import is_index as is_index
    from kernelyard.tir.iterate import Iterate as Iterate
    from kernelyard.tir.iterate import State as State
    from kernelyard.tir.op_pattern import cost as cost
    from kernelyard.tir.packing import Packing as Packing
    from kernelyard.tir.packing import pack_inputs as pack_inputs
    from kernelyard.tir.padding import paddable_axis as paddable_axis
    from kernelyard.tir.parser import parse_primfunc as parse_primfunc
    from kernelyard.tir.primfunc import REDUCE as REDUCE
    from kernelyard.tir.primfunc import REDUCERS as REDUCERS
    from kernelyard.tir.primfunc import SPATIAL as SPATIAL
    from kernelyard.tir.primfunc import STEP as STEP
    from kernelyard.tir.primfunc import ComputeBlock as ComputeBlock
    from kernelyard.tir.primfunc import IterVar as IterVar
    from kernelyard.tir.primfunc import PrimFunc as PrimFunc
    from kernelyard.tir.primfunc import neutral_element as neutral_element
    from kernelyard.tir.primfunc import walk as walk
    from kernelyard.tir.printer import print_primfunc as print_primfunc
    from kernelyard.tir.scans import Recurrence as Recurrence
    from kernelyard.tir.scans import recurrence_of as recurrence_of
    from kernelyard.tir.schedule import Declined as Declined
    from kernelyard.tir.schedule import Reasons as Reasons
    from kernelyard.tir.schedule import first_that_applies as first_that_applies
    from kernelyard.tir.simplify import Simplifier as Simplifier
    from kernelyard.tir.simplify import simplify_block as simplify_block
    from kernelyard.tir.sorting import position_axis as position_axis
    from kernelyard.tir.sorting import positions_used as positions_used
    from kernelyard.tir.sorting import rows_of as rows_of
    from kernelyard.tir.sorting import sorts as sorts
    from kernelyard.tir.sorting import work_of as work_of
    from kernelyard.tir.stages import Stage as Stage
    from kernelyard.tir.stages import element_at_zeros as element_at_zeros
    from kernelyard.tir.stages import extent_of as extent_of
    from kernelyard.tir.stages import extents_of as extents_of
    from kernelyard.tir.stages import make_stages as make_stages
    from kernelyard.tir.stages import with_zeros as with_zeros
    from kernelyard.tir.stages import without_single_steps as without_single_steps
    from kernelyard.tir.visitor import ExprRewriter as ExprRewriter
    from kernelyard.tir.visitor import rewrite_block as rewrite_block
    from kernelyard.tir.visitor import substitute_axes as substitute_axes

_HOME = {
    "kernelyard.dims.c_text": "C_FUNCTIONS to_c",
    "kernelyard.plugins.interfaces.code_generator": "CodeGenerator",
    "kernelyard.tir.analysis": "Affine affine_of axes_of offset_of step_along unconditional_loads used_as_values",
    "kernelyard.tir.buffer": "Buffer",
    "kernelyard.tir.byte_products": "ByteProduct PER_WORD byte_product",
    "kernelyard.tir.common_loops": "with_common_axes",
    "kernelyard.tir.expr": "BINARY UNARY Axis Binary Cast Const DimValue Expr Load Scalar Select Unary index",
    "kernelyard.tir.index_algebra": "IndexAlgebra is_index",
    "kernelyard.tir.iterate": "Iterate State",
    "kernelyard.tir.op_pattern": "cost",
    "kernelyard.tir.packing": "Packing pack_inputs",
    "kernelyard.tir.padding": "paddable_axis",
    "kernelyard.tir.parser": "parse_primfunc",
    "kernelyard.tir.primfunc": "ComputeBlock IterVar PrimFunc REDUCE REDUCERS SPATIAL STEP neutral_element walk",
    "kernelyard.tir.printer": "print_primfunc",
    "kernelyard.tir.scans": "Recurrence recurrence_of",
    "kernelyard.tir.schedule": "Declined Reasons first_that_applies",
    "kernelyard.tir.simplify": "Simplifier simplify_block",
    "kernelyard.tir.sorting": "position_axis positions_used rows_of sorts work_of",
    "kernelyard.tir.stages": "Stage element_at_zeros extent_of extents_of make_stages with_zeros without_single_steps",
    "kernelyard.tir.visitor": "ExprRewriter rewrite_block substitute_axes",
}

__getattr__ = lazy_names(__name__, _HOME, is_all=True)
