"""The loop-level IR: buffers, scalar expressions, compute blocks and PrimFuncs."""

from typing import TYPE_CHECKING

from kernelyard.ir.printer import register_function_syntax
from kernelyard.lazy import lazy_names
from kernelyard.tir.buffer import Buffer as Buffer
from kernelyard.tir.expr import Axis as Axis
from kernelyard.tir.expr import Binary as Binary
from kernelyard.tir.expr import Cast as Cast
from kernelyard.tir.expr import Const as Const
from kernelyard.tir.expr import DimValue as DimValue
from kernelyard.tir.expr import Expr as Expr
from kernelyard.tir.expr import Load as Load
from kernelyard.tir.expr import Select as Select
from kernelyard.tir.expr import Unary as Unary
from kernelyard.tir.iterate import Iterate as Iterate
from kernelyard.tir.iterate import State as State
from kernelyard.tir.primfunc import ComputeBlock as ComputeBlock
from kernelyard.tir.primfunc import IterVar as IterVar
from kernelyard.tir.primfunc import PrimFunc as PrimFunc

if TYPE_CHECKING:
    from kernelyard.tir.parser import parse_primfunc as parse_primfunc
    from kernelyard.tir.printer import print_primfunc as print_primfunc

__getattr__ = lazy_names(
    __name__, {"kernelyard.tir.parser": "parse_primfunc", "kernelyard.tir.printer": "print_primfunc"}
)
register_function_syntax(
    "primfunc",
    PrimFunc,
    lambda function: __getattr__("print_primfunc")(function),  # imported when a module with one is printed
    lambda text: __getattr__("parse_primfunc")(text),
)
