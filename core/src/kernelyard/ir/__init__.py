"""The graph-level IR: types, symbolic dims, expressions, modules and how to build, print, parse and check them."""

from typing import TYPE_CHECKING

from kernelyard.ir.builder import FunctionBuilder as FunctionBuilder
from kernelyard.ir.expr import BaseFunction as BaseFunction
from kernelyard.ir.expr import Binding as Binding
from kernelyard.ir.expr import Call as Call
from kernelyard.ir.expr import Constant as Constant
from kernelyard.ir.expr import Expr as Expr
from kernelyard.ir.expr import ExternFunc as ExternFunc
from kernelyard.ir.expr import Function as Function
from kernelyard.ir.expr import GlobalVar as GlobalVar
from kernelyard.ir.expr import Tuple as Tuple
from kernelyard.ir.expr import TupleGetItem as TupleGetItem
from kernelyard.ir.expr import Var as Var
from kernelyard.ir.expr import operands as operands
from kernelyard.ir.expr import with_operands as with_operands
from kernelyard.ir.module import IRModule as IRModule
from kernelyard.ir.op import Attribute as Attribute
from kernelyard.ir.op import Op as Op
from kernelyard.ir.op import Sample as Sample
from kernelyard.ir.op import all_ops as all_ops
from kernelyard.ir.op import get_op as get_op
from kernelyard.ir.op import register_op as register_op
from kernelyard.ir.printer import register_function_syntax as register_function_syntax
from kernelyard.ir.printer import to_text as to_text
from kernelyard.ir.types import FunctionType as FunctionType
from kernelyard.ir.types import TensorType as TensorType
from kernelyard.ir.types import TupleType as TupleType
from kernelyard.ir.types import Type as Type
from kernelyard.ir.verify import verify as verify
from kernelyard.ir.visitor import ExprVisitor as ExprVisitor
from kernelyard.ir.visitor import FunctionMutator as FunctionMutator
from kernelyard.ir.visitor import uses as uses
from kernelyard.lazy import lazy_names

if TYPE_CHECKING:
    from kernelyard.ir.parser import parse_module as parse_module

__getattr__ = lazy_names(__name__, {"kernelyard.ir.parser": "parse_module"})
