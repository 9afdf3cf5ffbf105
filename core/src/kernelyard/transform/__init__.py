"""Passes, each under its name: `from kernelyard.transform import FuseOpsByPattern`.

A pass is imported when its name is first used, so that one of them does not load them all. Installed distributions add
passes by entry points of the group `kernelyard.passes`.

Example:
    >>> from kernelyard.transform import DeadCodeElimination, Sequential
    >>> Sequential([DeadCodeElimination()], "mine").passes
    (<pass dead_code_elimination>,)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kernelyard.runtime.installed.entry_points import find, load_named

GROUP = "kernelyard.passes"
_HOME = {
    # what passes are, and how they are run
    "CompilePipeline": "compile_pipeline",
    "DumpIR": "pass_infra.instruments",
    "FunctionPass": "pass_infra.pass_base",
    "Instrument": "pass_infra.pass_base",
    "Pass": "pass_infra.pass_base",
    "PassContext": "pass_infra.pass_base",
    "PrintChanged": "pass_infra.instruments",
    "Repeat": "pass_infra.pass_base",
    "Sequential": "pass_infra.pass_base",
    "TimingInstrument": "pass_infra.instruments",
    "VerifyEach": "pass_infra.instruments",
    "WhereChanged": "pass_infra.pass_base",
    "function_pass": "pass_infra.pass_base",
    "get_pipeline": "pipelines",
    "module_pass": "pass_infra.pass_base",
    "register_pipeline": "pipelines",
    # from a model to what backends like to see
    "BindParams": "interprocedural.bind_params",
    "BindSymbolicVars": "interprocedural.bind_symbolic_vars",
    "Canonicalize": "simplify.canonicalize",
    "ComposeAttention": "compose.compose_attention",
    "ComposeOps": "compose.compose_ops",
    "ComposeQuantizedProducts": "quantization.compose_quantized_products",
    "ConvertLayout": "layout.convert_layout",
    "CropConvolutions": "algebraic.crop_convolutions",
    "DeadCodeElimination": "simplify.dead_code_elimination",
    "EliminateCommonSubexpr": "simplify.eliminate_common_subexpr",
    "FlattenEntryTuples": "interprocedural.flatten_entry_tuples",
    "FoldBatchNorm": "algebraic.fold_batch_norm",
    "FoldConstants": "simplify.fold_constants",
    "FoldScaleAxis": "algebraic.fold_scale_axis",
    "FoldWeights": "simplify.fold_constants",
    "CombineScales": "algebraic.combine_scales",
    "HoistPermutations": "algebraic.hoist_permutations",
    "HoistSlices": "algebraic.hoist_slices",
    "HoistStrides": "algebraic.hoist_strides",
    "InferTypes": "simplify.infer_types",
    "InlinePrivateFunctions": "interprocedural.inline_private_functions",
    "InvokeKnownClosures": "interprocedural.invoke_known_closures",
    "MultiplyBlocks": "quantization.multiply_blocks",
    "MultiplyIntegers": "quantization.multiply_integers",
    "PointwiseToMatmul": "layout.pointwise_to_matmul",
    "PropagateDequantize": "quantization.propagate_dequantize",
    "QuantizeWeights": "quantization.quantize_weights",
    "ShareDequantize": "quantization.share_dequantize",
    "SimplifyAttention": "compose.compose_attention",
    "SimplifyInference": "simplify.simplify_inference",
    "SinkReshape": "algebraic.sink_reshape",
    "StoreUnsigned": "quantization.store_unsigned",
    "TabulateQuantized": "quantization.tabulate_quantized",
    "ToMixedPrecision": "precision.to_mixed_precision",
    "WidenFloats": "precision.widen_floats",
    # partition
    "AgreeBorderLayouts": "layout.agree_border_layouts",
    "AttachExternModules": "partition.attach_extern_modules",
    "CopyDequantize": "quantization.copy_dequantize",
    "FuseOpsByPattern": "partition.fuse_ops_by_pattern",
    "MergeCompositeFunctions": "partition.merge_composite_functions",
    "MergeParallelConvolutions": "algebraic.merge_parallel_convolutions",
    "SinkConcat": "algebraic.sink_concat",
    "SliceChannels": "algebraic.slice_channels",
    "SplitProjections": "algebraic.split_projections",
    "OptimizeRegions": "partition.optimize_regions",
    "RunCodegen": "partition.run_codegen",
    # to loop-level functions
    "AnnotateTIROpPattern": "lowering.annotate_tir_op_pattern",
    "DecomposeDataDependent": "lowering.decompose_data_dependent",
    "DecomposeRandom": "lowering.decompose_random",
    "FactorReductions": "lowering.factor_reductions",
    "FuseDequantizeMatmul": "quantization.fuse_dequantize_matmul",
    "FuseDequantizeTake": "quantization.fuse_dequantize_take",
    "FuseOps": "fusion.fuse_ops",
    "FuseSiblings": "fusion.fuse_siblings",
    "FuseTIR": "fusion.fuse_tir",
    "WidenChannels": "layout.widen_channels",
    "FuseTransposeConv": "layout.fuse_transpose_conv",
    "FuseTransposeMatmul": "fusion.fuse_transpose_matmul",
    "LegalizeOps": "lowering.legalize_ops",
    "OutlineContinuations": "interprocedural.outline_continuations",
    "PackConstants": "layout.pack_constants",
    "SeparateResults": "fusion.separate_results",
}

# Names that are asked for with TVM in mind; where they are not installed, the error says what to install.
_OF_OTHER_DISTRIBUTIONS = dict.fromkeys(
    (
        "AdjustMatmulOrder",
        "AllocateWorkspace",
        "AnnotateTarget",
        "CanonicalizeBindings",
        "CombineParallelMatmul",
        "DecomposeOpsForInference",
        "ExpandMatmulOfSum",
        "MergeCompilerRegions",
        "MergeComposite",
        "PartitionGraph",
        "ReorderPermuteDimsAfterConcat",
        "ReorderTakeAfterMatmul",
    ),
    "kernelyard-tvm-compat",
)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        value = None if name.startswith("_") else load_named(GROUP, name)
        if value is None and name in _OF_OTHER_DISTRIBUTIONS:
            raise ImportError(f"{name} is not installed; pip install {_OF_OTHER_DISTRIBUTIONS[name]}", name=__name__)
        if value is None:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}, nor does an installed distribution bring it ({GROUP})"
            )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *(entry.name for entry in find(GROUP).entries)})
