"""The loop-level IR: buffers, scalar expressions, compute blocks and PrimFuncs."""

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
from kernelyard.tir.parser import parse_primfunc as parse_primfunc
from kernelyard.tir.primfunc import ComputeBlock as ComputeBlock
from kernelyard.tir.primfunc import IterVar as IterVar
from kernelyard.tir.primfunc import PrimFunc as PrimFunc
from kernelyard.tir.printer import print_primfunc as print_primfunc
