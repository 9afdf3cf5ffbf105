"""Named pipelines: every pass of a compile stands in one, in the order of a compile.

Those of a driver's phases that need to be told something are functions (`pack(choose)`); by its name each is there for
scripts, too (`get_pipeline("simplify")`). Passes that few compiles run are imported by their pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec

from kernelyard.errors import PassError, did_you_mean
from kernelyard.ir import Call
from kernelyard.ops.quantization import STORED_BITS
from kernelyard.patterns.registry import MatchRecorder, PatternLike
from kernelyard.transform.algebraic.combine_scales import CombineScales
from kernelyard.transform.algebraic.crop_convolutions import CropConvolutions
from kernelyard.transform.algebraic.fold_batch_norm import FoldBatchNorm
from kernelyard.transform.algebraic.fold_scale_axis import FoldScaleAxis
from kernelyard.transform.algebraic.hoist_permutations import HoistPermutations
from kernelyard.transform.algebraic.hoist_slices import HoistSlices
from kernelyard.transform.algebraic.hoist_strides import HoistStrides
from kernelyard.transform.algebraic.merge_parallel_convolutions import MergeParallelConvolutions
from kernelyard.transform.algebraic.sink_concat import SinkConcat
from kernelyard.transform.algebraic.sink_reshape import SinkReshape
from kernelyard.transform.algebraic.slice_channels import SliceChannels
from kernelyard.transform.algebraic.split_projections import SplitProjections
from kernelyard.transform.compose.compose_ops import ComposeOps
from kernelyard.transform.fusion.fuse_ops import FuseOps
from kernelyard.transform.fusion.fuse_siblings import FuseSiblings
from kernelyard.transform.fusion.fuse_tir import FuseTIR
from kernelyard.transform.fusion.fuse_transpose_matmul import FuseTransposeMatmul
from kernelyard.transform.fusion.separate_results import SeparateResults
from kernelyard.transform.interprocedural.flatten_entry_tuples import FlattenEntryTuples
from kernelyard.transform.interprocedural.inline_private_functions import InlinePrivateFunctions
from kernelyard.transform.interprocedural.invoke_known_closures import InvokeKnownClosures
from kernelyard.transform.interprocedural.outline_continuations import OutlineContinuations
from kernelyard.transform.layout.agree_border_layouts import AgreeBorderLayouts, PreferredLayouts
from kernelyard.transform.layout.pack_constants import ChoosePackings, PackConstants, keep_all_constants
from kernelyard.transform.layout.pointwise_to_matmul import PointwiseToMatmul
from kernelyard.transform.lowering.annotate_tir_op_pattern import AnnotateTIROpPattern
from kernelyard.transform.lowering.decompose_data_dependent import DecomposeDataDependent
from kernelyard.transform.lowering.decompose_random import DecomposeRandom
from kernelyard.transform.lowering.factor_reductions import FactorReductions
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.merge_composite_functions import MergeCompositeFunctions
from kernelyard.transform.partition.optimize_regions import Optimize, OptimizeRegions
from kernelyard.transform.partition.region import Codegen, ViolationRecorder
from kernelyard.transform.partition.region_merging import RegionFilter
from kernelyard.transform.partition.run_codegen import Caller, RunCodegen, call_directly
from kernelyard.transform.pass_infra.pass_base import Pass, Repeat, Sequential, WhereChanged
from kernelyard.transform.precision.widen_floats import NARROW, WidenFloats
from kernelyard.transform.quantization.compose_quantized_products import ComposeQuantizedProducts
from kernelyard.transform.quantization.copy_dequantize import CopyDequantize
from kernelyard.transform.quantization.fuse_dequantize_matmul import FuseDequantizeMatmul
from kernelyard.transform.quantization.fuse_dequantize_take import FuseDequantizeTake
from kernelyard.transform.quantization.propagate_dequantize import PropagateDequantize
from kernelyard.transform.quantization.share_dequantize import ShareDequantize
from kernelyard.transform.simplify.canonicalize import Canonicalize
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from kernelyard.transform.simplify.fold_constants import FoldConstants, FoldWeights
from kernelyard.transform.simplify.infer_types import InferTypes
from kernelyard.transform.simplify.simplify_inference import SimplifyInference

P = ParamSpec("P")

LEAST_CHANNELS = 4  # of channels-last images: 8 bytes of 16-bit floats
NONE: Mapping[str, Any] = MappingProxyType({})

_PIPELINES: dict[str, Callable[[], Sequence[Pass]]] = {}


def register_pipeline(name: str, passes: Callable[[], Sequence[Pass]]) -> None:
    """Give a name to a sequence of passes; a second one of the same name is an error.

    The first line of the function's docstring says what the pipeline is for.
    """
    if name in _PIPELINES:
        raise PassError(f"a pipeline is already called {name!r}")
    _PIPELINES[name] = passes


def pipeline(name: str) -> Callable[[Callable[P, Sequence[Pass]]], Callable[P, Sequential]]:
    """Register a function that lists passes, and have it return them as one; its parameters need defaults."""

    def register(passes: Callable[P, Sequence[Pass]]) -> Callable[P, Sequential]:
        @wraps(passes)
        def build(*args: P.args, **kwargs: P.kwargs) -> Sequential:
            return Sequential(passes(*args, **kwargs), name)

        register_pipeline(name, passes)
        return build

    return register


def get_pipeline(name: str) -> Sequential:
    """Return the pipeline of that name; what it is to be told is left at its defaults.

    Raises: PassError with the nearest name.

    Example:
        >>> get_pipeline("clean").passes
        (<pass canonicalize>, <pass fold_constants>, <pass eliminate_common_subexpr>, <pass dead_code_elimination>)
    """
    if name not in _PIPELINES:
        raise PassError(
            f"no pipeline is called {name!r}",
            expected=", ".join(_PIPELINES),
            hint=did_you_mean(name, _PIPELINES),
        )
    return Sequential(_PIPELINES[name](), name)


def pipeline_names() -> tuple[str, ...]:
    """Return the names of all pipelines, those of a compile in its order."""
    return tuple(_PIPELINES)


def purpose_of(name: str) -> str:
    """Return the one-line summary of a pipeline. Raises: PassError as `get_pipeline`."""
    get_pipeline(name)
    return (_PIPELINES[name].__doc__ or "").partition("\n")[0]


@pipeline("clean")
def clean() -> Sequence[Pass]:
    """Remove what is redundant; cheap, and safe between any two passes."""
    return [Canonicalize(), FoldConstants(), EliminateCommonSubexpr(), DeadCodeElimination()]


@pipeline("import")
def settle_calls() -> Sequence[Pass]:
    """Inline private functions, flatten entry functions, and outline what depends on sizes that come with a value.

    Operators that decide sizes become such as code generators have, and a size, before functions end there.
    A call that is inlined may tell which function a closure is, and that one may be inlined next.
    """
    inline_calls = Repeat([InvokeKnownClosures(), InlinePrivateFunctions()], "inline_calls")
    return [inline_calls, FlattenEntryTuples(), DecomposeDataDependent(), OutlineContinuations()]


@pipeline("simplify")
def simplify() -> Sequence[Pass]:
    """Turn what a frontend imported into what backends like to see.

    Constants come first, because rules look at their values. Decomposed operators are composed before scales are
    folded into weights: the products inside a decomposed gelu must not be taken for scales. What they leave over must
    not be taken for readers.
    """
    return [
        InferTypes(),
        *clean().passes,
        ComposeOps(),
        DeadCodeElimination(),
        SinkReshape(),
        SinkConcat(),
        CropConvolutions(),
        FoldBatchNorm(),
        DeadCodeElimination(),
        FoldScaleAxis(),
        DeadCodeElimination(),
        MergeParallelConvolutions(),
        SliceChannels(),
        DeadCodeElimination(),
        CombineScales(),
        SimplifyInference(),
        HoistStrides(),
        HoistSlices(),
        HoistPermutations(),
        PointwiseToMatmul(),
        *clean().passes,
    ]


@pipeline("widen_floats")
def widen_floats(dtypes: Sequence[str] = NARROW) -> Sequence[Pass]:
    """Compute in float32 what a model states in narrower floats, where the target's arithmetic is wider anyway.

    Casts that stood between the parts of a decomposed operator are gone then, so that it is composed now.
    """
    composed = [*clean().passes, ComposeOps(), DeadCodeElimination(), *clean().passes]
    return [WhereChanged([WidenFloats(dtypes), *composed], "widen_and_clean")]


@pipeline("bf16")
def bf16() -> Sequence[Pass]:
    """Compute products and convolutions, and what follows them cheaply, in bfloat16."""
    from kernelyard.transform.precision.to_mixed_precision import ToMixedPrecision

    return [ToMixedPrecision("bfloat16"), *clean().passes]


@pipeline("int8_weights")
def int8_weights() -> Sequence[Pass]:
    """Keep weights of matrix products in 8 bits, with a scale for each column; all is computed in float32."""
    return _quantize_weights(8)


@pipeline("int4_weights")
def int4_weights() -> Sequence[Pass]:
    """Keep weights of matrix products in 4 bits, with a scale for every 32; all is computed in float32."""
    return _quantize_weights(4)


def _quantize_weights(bits: int) -> Sequence[Pass]:
    from kernelyard.transform.quantization.quantize_weights import QuantizeWeights

    return [QuantizeWeights(bits), *clean().passes]


@pipeline("compose_attention")
def compose_attention() -> Sequence[Pass]:
    """Compose attention into one operator, for targets whose code generator computes it in one kernel."""
    from kernelyard.transform.compose.compose_attention import ComposeAttention, SimplifyAttention

    return [ComposeAttention(), *clean().passes, SimplifyAttention(), *clean().passes]


@pipeline("quantized")
def quantized() -> Sequence[Pass]:
    """Bring quantized products to the form that backends take: products of what dequantize makes of integers."""
    return [
        ComposeQuantizedProducts(),
        PropagateDequantize(),
        Canonicalize(),
        FoldConstants(),
        DeadCodeElimination(),
    ]


@pipeline("match")
def match(
    patterns: Sequence[PatternLike] = (),
    annotate_codegen: bool = False,
    recorder: MatchRecorder | None = None,
    bind_constants: bool = True,
) -> Sequence[Pass]:
    """Lift what a backend's patterns match, and its checks accept, into composites."""
    return [CopyDequantize(), FuseOpsByPattern(patterns, bind_constants, annotate_codegen, recorder=recorder)]


@pipeline("merge")
def merge(backend: str | None = None, is_wanted: RegionFilter | None = None) -> Sequence[Pass]:
    """Put neighbouring composites of a backend into one region, where it wants that region."""
    return [MergeCompositeFunctions([backend] if backend is not None else None, is_wanted)]


@pipeline("codegen")
def codegen(
    optimizers: Mapping[str, Optimize] = NONE,
    codegens: Mapping[str, Codegen] = NONE,
    options: Mapping[str, Mapping[str, Any]] = NONE,
    recorder: ViolationRecorder | None = None,
    strict: bool = False,
    call: Caller = call_directly,
    layouts: Mapping[str, PreferredLayouts] = NONE,
) -> Sequence[Pass]:
    """Have backends rewrite their regions, agree on what these hand each other, and make RuntimeModules of them."""
    return [
        OptimizeRegions(optimizers, recorder, strict),
        AgreeBorderLayouts(layouts, recorder, strict),
        RunCodegen(codegens, options, recorder=recorder, strict=strict, call=call),
    ]


@pipeline("fuse_attention")
def fuse_attention(accepts: Callable[[Call], bool] | None = None) -> Sequence[Pass]:
    """Compose attention that backends have left, for code generators that are faster with one kernel of it."""
    from kernelyard.transform.compose.compose_attention import ComposeAttention, SimplifyAttention

    others = [*clean().passes, SimplifyAttention(), *clean().passes]
    return [
        WhereChanged([ComposeAttention(accepts), *others], "compose_and_clean"),
        WhereChanged([SplitProjections(), *clean().passes], "split_and_clean"),
    ]


@pipeline("integer_products")
def integer_products(digits: Collection[int] = STORED_BITS, sums_in_16_bits: bool = False) -> Sequence[Pass]:
    """Multiply the integers of quantized products, for targets that sum such products by an instruction.

    digits: those of 16 bits, too, as two digits of 8, with weights of so many bits. sums_in_16_bits: see
    `CodeGenerator`.
    """
    from kernelyard.transform.quantization.multiply_blocks import MultiplyBlocks
    from kernelyard.transform.quantization.multiply_integers import MultiplyIntegers

    return [MultiplyIntegers(sums_in_16_bits), MultiplyBlocks(digits), DeadCodeElimination()]


@pipeline("channels_last")
def channels_last(dtypes: Sequence[str] = NARROW) -> Sequence[Pass]:
    """Convert convolutions that backends have left, and what lies between them, to channels-last tensors."""
    from kernelyard.transform.layout.convert_layout import CONVOLUTIONS, POOLS, ConvertLayout
    from kernelyard.transform.layout.fuse_transpose_conv import FuseTransposeConv
    from kernelyard.transform.layout.widen_channels import WidenChannels

    convert = ConvertLayout(CONVOLUTIONS, dtypes, following=POOLS)
    converted = WhereChanged([convert, FuseTransposeConv(), *clean().passes], "convert_and_fuse")
    return [WidenChannels(LEAST_CHANNELS, dtypes), converted]


@pipeline("legalize")
def legalize() -> Sequence[Pass]:
    """Turn the ops that no library took into loop-level functions, fused vertically, then horizontally.

    A matmul reads a transposed operand as it lies in memory, and quantized weights as they are stored: kernels
    transpose and dequantize in registers.
    """
    return [
        CopyDequantize(),
        ShareDequantize(),
        FoldWeights(),
        DecomposeRandom(),
        FuseDequantizeMatmul(),
        FuseDequantizeTake(),
        FuseTransposeMatmul(),
        DeadCodeElimination(),
        FactorReductions(),
        LegalizeOps(),
        SeparateResults(),
        AnnotateTIROpPattern(),
        FuseOps(),
        FuseTIR(),
        FuseSiblings(),
        FuseTIR(),
    ]


@pipeline("pack")
def pack(choose: ChoosePackings = keep_all_constants) -> Sequence[Pass]:
    """Lay constants out as the target's kernels read them."""
    return [PackConstants(choose)]
