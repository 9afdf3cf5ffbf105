"""Import from here what a plugin needs: backends and frontends, patterns, the IR. API 2: docs/compatibility.md.

Code generators also import from `kernelyard.plugins.codegen_api`, runtime halves from `kernelyard.runtime.api` alone. A
plugin may also import `kernelyard`, `kernelyard.errors`, `.dims`, `.dtypes` and `.ops`, and nothing else of the core.
Names are loaded when they are first used.

Example:
    >>> from kernelyard.plugins.api import Backend, FusionPattern, is_op, wildcard
    >>> FusionPattern("zeus.add", is_op("add")(wildcard(), wildcard())).name
    'zeus.add'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.lazy import lazy_names

if TYPE_CHECKING:
    from kernelyard.codegen.c_source_codegen import CSourceCodegen as CSourceCodegen
    from kernelyard.codegen.c_source_codegen import CTensor as CTensor
    from kernelyard.codegen.c_source_codegen import static_shape as static_shape
    from kernelyard.codegen.json_serializer import JSONSerializer as JSONSerializer
    from kernelyard.codegen.json_serializer import KernelNode as KernelNode
    from kernelyard.codegen.json_serializer import plain as plain
    from kernelyard.ir.builder import FunctionBuilder as FunctionBuilder
    from kernelyard.ir.control_flow import as_one as as_one
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
    from kernelyard.ir.module import PRIVATE as PRIVATE
    from kernelyard.ir.module import IRModule as IRModule
    from kernelyard.ir.op import Attribute as Attribute
    from kernelyard.ir.op import Op as Op
    from kernelyard.ir.op import get_op as get_op
    from kernelyard.ir.printer import to_text as to_text
    from kernelyard.ir.scopes import attribute_symbols as attribute_symbols
    from kernelyard.ir.scopes import introduces_symbols as introduces_symbols
    from kernelyard.ir.types import TensorType as TensorType
    from kernelyard.ir.types import TupleType as TupleType
    from kernelyard.ir.types import Type as Type
    from kernelyard.ir.types import symbols_of as symbols_of
    from kernelyard.ir.types import tensors_of as tensors_of
    from kernelyard.ir.verify import verify as verify
    from kernelyard.ir.visitor import ExprVisitor as ExprVisitor
    from kernelyard.ir.visitor import FunctionMutator as FunctionMutator
    from kernelyard.lazy import RegistryModules as RegistryModules
    from kernelyard.ops.image import scaled_size as scaled_size
    from kernelyard.ops.type_rules import broadcast_shapes as broadcast_shapes
    from kernelyard.ops.type_rules import is_nonnegative as is_nonnegative
    from kernelyard.patterns import templates as templates
    from kernelyard.patterns.attention_templates import ROLES as ROLES
    from kernelyard.patterns.attention_templates import are_thirds as are_thirds
    from kernelyard.patterns.attention_templates import attention as attention
    from kernelyard.patterns.attention_templates import stacked_attention as stacked_attention
    from kernelyard.patterns.checks import Gemm as Gemm
    from kernelyard.patterns.checks import check_bias as check_bias
    from kernelyard.patterns.checks import gemm_of as gemm_of
    from kernelyard.patterns.checks import gemm_of_shapes as gemm_of_shapes
    from kernelyard.patterns.composite import captured_operands as captured_operands
    from kernelyard.patterns.composite import structural_key as structural_key
    from kernelyard.patterns.cost import Cost as Cost
    from kernelyard.patterns.dequantized import is_dequantized as is_dequantized
    from kernelyard.patterns.language.constructors import is_call_dps_packed as is_call_dps_packed
    from kernelyard.patterns.language.constructors import is_call_tir as is_call_tir
    from kernelyard.patterns.language.constructors import is_const as is_const
    from kernelyard.patterns.language.constructors import is_expr as is_expr
    from kernelyard.patterns.language.constructors import is_extern as is_extern
    from kernelyard.patterns.language.constructors import is_function as is_function
    from kernelyard.patterns.language.constructors import is_op as is_op
    from kernelyard.patterns.language.constructors import is_shape as is_shape
    from kernelyard.patterns.language.constructors import is_tuple as is_tuple
    from kernelyard.patterns.language.constructors import is_tuple_get_item as is_tuple_get_item
    from kernelyard.patterns.language.constructors import is_var as is_var
    from kernelyard.patterns.language.constructors import wildcard as wildcard
    from kernelyard.patterns.language.pattern import Pattern as Pattern
    from kernelyard.patterns.matching.match_result import Match as Match
    from kernelyard.patterns.matching.matcher import match as match
    from kernelyard.patterns.registry import Accept as Accept
    from kernelyard.patterns.registry import Answer as Answer
    from kernelyard.patterns.registry import Decline as Decline
    from kernelyard.patterns.registry import FusionPattern as FusionPattern
    from kernelyard.plugins.hookspecs import hookimpl as hookimpl
    from kernelyard.plugins.interfaces.backend import Backend as Backend
    from kernelyard.plugins.interfaces.backend import Unavailable as Unavailable
    from kernelyard.plugins.interfaces.frontend import Frontend as Frontend
    from kernelyard.plugins.interfaces.frontend import ModelSpecializer as ModelSpecializer
    from kernelyard.plugins.interfaces.frontend import Specialization as Specialization
    from kernelyard.plugins.interfaces.quantization_scheme import DYNAMIC as DYNAMIC
    from kernelyard.plugins.interfaces.quantization_scheme import INT4_WEIGHTS as INT4_WEIGHTS
    from kernelyard.plugins.interfaces.quantization_scheme import INT8_WEIGHTS as INT8_WEIGHTS
    from kernelyard.plugins.interfaces.quantization_scheme import SCHEMES as SCHEMES
    from kernelyard.plugins.interfaces.quantization_scheme import STATIC as STATIC
    from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme as QuantizationScheme
    from kernelyard.plugins.sandbox.guard import progress as progress
    from kernelyard.plugins.support.elimination import Elimination as Elimination
    from kernelyard.plugins.support.op_emitter import OpEmitter as OpEmitter
    from kernelyard.plugins.support.op_emitter import Operand as Operand
    from kernelyard.plugins.support.op_emitter import Problem as Problem
    from kernelyard.plugins.support.op_emitter import RejectedError as RejectedError
    from kernelyard.plugins.support.op_emitter import unsupported as unsupported
    from kernelyard.plugins.support.op_emitter import window_table as window_table
    from kernelyard.plugins.support.recurrent_direction import RecurrentDirection as RecurrentDirection
    from kernelyard.plugins.support.roofline import bytes_of as bytes_of
    from kernelyard.plugins.support.roofline import calls_of as calls_of
    from kernelyard.plugins.support.roofline import composites_of as composites_of
    from kernelyard.plugins.support.roofline import flops_of as flops_of
    from kernelyard.plugins.support.roofline import nbytes_of as nbytes_of
    from kernelyard.plugins.support.roofline import roofline_seconds as roofline_seconds
    from kernelyard.target import Target as Target
    from kernelyard.transform.interprocedural.bind_params import BindParams as BindParams
    from kernelyard.transform.layout.agree_border_layouts import BORDER_LAYOUT as BORDER_LAYOUT
    from kernelyard.transform.layout.border_agreement import BorderLayouts as BorderLayouts
    from kernelyard.transform.layout.convert_layout import ConvertLayout as ConvertLayout
    from kernelyard.transform.layout.convert_layout import to_first as to_first
    from kernelyard.transform.layout.convert_layout import to_last as to_last
    from kernelyard.transform.partition.attach_extern_modules import AttachExternModules as AttachExternModules
    from kernelyard.transform.partition.region import Region as Region
    from kernelyard.transform.pass_infra.fresh_names import FreshNames as FreshNames
    from kernelyard.transform.pass_infra.pass_base import FunctionPass as FunctionPass
    from kernelyard.transform.pass_infra.pass_base import Pass as Pass
    from kernelyard.transform.pass_infra.pass_base import PassContext as PassContext
    from kernelyard.transform.pass_infra.pass_base import Sequential as Sequential
    from kernelyard.transform.quantization.store_unsigned import StoreUnsigned as StoreUnsigned
    from kernelyard.transform.quantization.tabulate_quantized import TabulateQuantized as TabulateQuantized
    from kernelyard.transform.simplify.canonicalize import Canonicalize as Canonicalize
    from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination as DeadCodeElimination
    from kernelyard.transform.simplify.eliminate_common_subexpr import EliminateCommonSubexpr as EliminateCommonSubexpr

_HOME = {
    "kernelyard.ir.builder": "FunctionBuilder",
    "kernelyard.ir.control_flow": "as_one",
    "kernelyard.ir.expr": "BaseFunction Binding Call Constant Expr ExternFunc "
    "Function GlobalVar Tuple TupleGetItem Var operands with_operands",
    "kernelyard.ir.module": "IRModule PRIVATE",
    "kernelyard.ir.op": "Attribute Op get_op",
    "kernelyard.ir.printer": "to_text",
    "kernelyard.ir.scopes": "attribute_symbols introduces_symbols",
    "kernelyard.ir.types": "TensorType TupleType Type symbols_of tensors_of",
    "kernelyard.ir.verify": "verify",
    "kernelyard.ir.visitor": "ExprVisitor FunctionMutator",
    "kernelyard.lazy": "RegistryModules",
    "kernelyard.ops.image": "scaled_size",
    "kernelyard.ops.type_rules": "broadcast_shapes is_nonnegative",
    "kernelyard.patterns": "templates",
    "kernelyard.patterns.attention_templates": "ROLES are_thirds attention stacked_attention",
    "kernelyard.patterns.checks": "Gemm check_bias gemm_of gemm_of_shapes",
    "kernelyard.patterns.composite": "captured_operands structural_key",
    "kernelyard.patterns.cost": "Cost",
    "kernelyard.patterns.dequantized": "is_dequantized",
    "kernelyard.patterns.language.constructors": "is_call_dps_packed is_call_tir is_const is_expr is_extern "
    "is_function is_op is_shape is_tuple is_tuple_get_item is_var wildcard",
    "kernelyard.patterns.language.pattern": "Pattern",
    "kernelyard.patterns.matching.match_result": "Match",
    "kernelyard.patterns.matching.matcher": "match",
    "kernelyard.patterns.registry": "Accept Answer Decline FusionPattern",
    "kernelyard.codegen.c_source_codegen": "CSourceCodegen CTensor static_shape",
    "kernelyard.codegen.json_serializer": "JSONSerializer KernelNode plain",
    "kernelyard.plugins.support.roofline": "bytes_of calls_of composites_of flops_of nbytes_of roofline_seconds",
    "kernelyard.plugins.interfaces.backend": "Backend Unavailable",
    "kernelyard.plugins.interfaces.frontend": "Frontend ModelSpecializer Specialization",
    "kernelyard.plugins.sandbox.guard": "progress",
    "kernelyard.plugins.hookspecs": "hookimpl",
    "kernelyard.plugins.support.elimination": "Elimination",
    "kernelyard.plugins.support.op_emitter": "OpEmitter Operand Problem RejectedError unsupported window_table",
    "kernelyard.plugins.interfaces.quantization_scheme": (
        "DYNAMIC INT4_WEIGHTS INT8_WEIGHTS SCHEMES STATIC QuantizationScheme"
    ),
    "kernelyard.plugins.support.recurrent_direction": "RecurrentDirection",
    "kernelyard.target": "Target",
    "kernelyard.transform.layout.agree_border_layouts": "BORDER_LAYOUT",
    "kernelyard.transform.layout.border_agreement": "BorderLayouts",
    "kernelyard.transform.partition.attach_extern_modules": "AttachExternModules",
    "kernelyard.transform.interprocedural.bind_params": "BindParams",
    "kernelyard.transform.simplify.canonicalize": "Canonicalize",
    "kernelyard.transform.layout.convert_layout": "ConvertLayout to_first to_last",
    "kernelyard.transform.simplify.dead_code_elimination": "DeadCodeElimination",
    "kernelyard.transform.simplify.eliminate_common_subexpr": "EliminateCommonSubexpr",
    "kernelyard.transform.pass_infra.fresh_names": "FreshNames",
    "kernelyard.transform.pass_infra.pass_base": "FunctionPass Pass PassContext Sequential",
    "kernelyard.transform.partition.region": "Region",
    "kernelyard.transform.quantization.store_unsigned": "StoreUnsigned",
    "kernelyard.transform.quantization.tabulate_quantized": "TabulateQuantized",
}

__getattr__ = lazy_names(__name__, _HOME, is_all=True)
