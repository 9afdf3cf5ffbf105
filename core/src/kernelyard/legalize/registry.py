"""Legalization rules: how an op becomes a loop-level function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernelyard.dims import Shape
from kernelyard.errors import LegalizeError
from kernelyard.ir.op import Attributes
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.lazy import RegistryModules
from kernelyard.legalize.without_rule import WITHOUT_RULE
from kernelyard.records import record
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder, conversion_block
from kernelyard.tir.expr import Expr, ExprLike, cast
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.simplify import simplify
from kernelyard.tir.verify import verify
from kernelyard.tir.visitor import rename_buffers

NARROW_FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@record
class Operand:
    """An input of a rule: loads come in the dtype that the rule computes in."""

    buffer: Buffer
    dtype: str

    @property
    def shape(self) -> Shape:
        return self.buffer.shape

    @property
    def rank(self) -> int:
        return self.buffer.rank

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Expr:
        return cast(self.buffer[indices], self.dtype)


class RuleBuilder(PrimFuncBuilder):
    """The builder that rules write with; `results` are the types that the call must return."""

    def __init__(self, results: tuple[TensorType, ...]) -> None:
        super().__init__()
        self.results = results

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]


RuleResult = Buffer | tuple[Buffer, ...]
RuleFunction = Callable[..., RuleResult]


@record
class Rule:
    """A rule: `function(builder, *operands, **attributes)` returns what it wrote.

    widen: floats narrower than float32 are computed in float32 and rounded once, at the end.
    """

    function: RuleFunction
    widen: bool


_RULES: dict[str, Rule] = {}
FAMILIES = RegistryModules(
    "kernelyard.legalize",
    (
        "elementwise",
        "activation",
        "shape",
        "linear",
        "indexing",
        "reduction",
        "normalization",
        "convolution",
        "pooling",
        "creation",
        "quantization",
        "attention",
        "recurrent",
        "image",
        "random",
        "trees",
        "detection",
    ),
)


def legalize(*names: str, widen: bool = False) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for the ops of these names.

    Raises: LegalizeError for a second rule.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for name in names:
            if name in _RULES:
                raise LegalizeError(f"{name} has two legalization rules")
            _RULES[name] = Rule(function, widen)
        return function

    return register


def has_rule(name: str) -> bool:
    """Return True when an op of that name can be legalized."""
    return find_rule(name) is not None


def find_rule(name: str) -> Rule | None:
    """Return the rule of an op; the family of rules that has it is imported."""
    if name not in WITHOUT_RULE:
        FAMILIES.import_until(lambda: name in _RULES)
    return _RULES.get(name)


def legalize_call(
    name: str, operands: Sequence[TensorType], attrs: Attributes, result: Type, rule: Rule | None = None
) -> PrimFunc:
    """Return the loop-level function of one op call: simplified, verified, tagged with the op's name.

    rule: used instead of the registered one. Raises: LegalizeError when there is no rule, or when the rule's results
    are not of the call's type.
    """
    rule = rule or find_rule(name)
    if rule is None:
        raise LegalizeError(f"{name} has no legalization rule", where=name)
    builder = RuleBuilder(tensors_of(result))
    inputs = [builder.input(f"in{n}", type_) for n, type_ in enumerate(operands)]
    computed = rule.function(builder, *(_operand(buffer, rule.widen) for buffer in inputs), **attrs)
    results = computed if isinstance(computed, tuple) else (computed,)
    function = builder.finish(results, {"ops": (name,)})
    if rule.widen:
        function = _narrow_outputs(function, builder.results)
    if tensors_of(function.result_type) != builder.results:
        raise LegalizeError(
            "a rule returns another type than the op", where=name, found=function.result_type, expected=result
        )
    function = simplify(function)
    verify(function, name)
    return function


def _operand(buffer: Buffer, widen: bool) -> Operand:
    return Operand(buffer, "float32" if widen and buffer.dtype in NARROW_FLOATS else buffer.dtype)


def _narrow_outputs(function: PrimFunc, results: Sequence[TensorType]) -> PrimFunc:
    """Convert outputs to the wanted dtypes, in the last block that writes each."""
    for buffer, type_ in zip(function.outputs, results, strict=True):
        if buffer.dtype != type_.dtype and type_.dtype in NARROW_FLOATS:
            function = _narrow_output(function, buffer, type_.dtype)
    return function


def _narrow_output(function: PrimFunc, wide: Buffer, dtype: str) -> PrimFunc:
    narrow = replace(wide, dtype=dtype)
    params = tuple(narrow if buffer == wide else buffer for buffer in function.params)
    writers = [block for block in function.blocks if block.output == wide]
    is_read = any(wide in block.reads for block in function.blocks)
    if len(writers) == 1 and not is_read and writers[0].reducer is None:
        converted = replace(writers[0], output=narrow, body=cast(writers[0].body, dtype))
        blocks = tuple(converted if block is writers[0] else block for block in function.blocks)
        return PrimFunc(params, blocks, function.num_outputs, function.locals, function.attrs)
    return _with_conversion(function, params, wide, narrow)


def _with_conversion(function: PrimFunc, params: tuple[Buffer, ...], wide: Buffer, narrow: Buffer) -> PrimFunc:
    kept = replace(wide, name=f"{wide.name}_wide", scope="local")
    blocks = tuple(rename_buffers(block, {wide: kept}) for block in function.blocks)
    blocks += (conversion_block(f"{wide.name}_convert", kept, narrow),)
    return PrimFunc(params, blocks, function.num_outputs, (*function.locals, kept), function.attrs)
