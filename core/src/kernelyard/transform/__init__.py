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
    "DumpIR": "instruments",
    "FunctionPass": "pass_base",
    "Instrument": "pass_base",
    "Pass": "pass_base",
    "PassContext": "pass_base",
    "PrintChanged": "instruments",
    "Repeat": "pass_base",
    "Sequential": "pass_base",
    "TimingInstrument": "instruments",
    "VerifyEach": "instruments",
    "WhereChanged": "pass_base",
    "function_pass": "pass_base",
    "get_pipeline": "pipelines",
    "module_pass": "pass_base",
    "register_pipeline": "pipelines",
    # from a model to what backends like to see
    "BindParams": "bind_params",
    "BindSymbolicVars": "bind_symbolic_vars",
    "Canonicalize": "canonicalize",
    "ComposeAttention": "compose_attention",
    "ComposeOps": "compose_ops",
    "ComposeQuantizedProducts": "compose_quantized_products",
    "ConvertLayout": "convert_layout",
    "DeadCodeElimination": "dead_code_elimination",
    "EliminateCommonSubexpr": "eliminate_common_subexpr",
    "FlattenEntryTuples": "flatten_entry_tuples",
    "FoldBatchNorm": "fold_batch_norm",
    "FoldConstants": "fold_constants",
    "FoldScaleAxis": "fold_scale_axis",
    "FoldWeights": "fold_constants",
    "GatherScales": "gather_scales",
    "HoistStrides": "hoist_strides",
    "InferTypes": "infer_types",
    "InlinePrivateFunctions": "inline_private_functions",
    "InvokeKnownClosures": "invoke_known_closures",
    "MultiplyBlocks": "multiply_blocks",
    "MultiplyIntegers": "multiply_integers",
    "PropagateDequantize": "propagate_dequantize",
    "QuantizeWeights": "quantize_weights",
    "ShareDequantize": "share_dequantize",
    "SimplifyAttention": "compose_attention",
    "SimplifyInference": "simplify_inference",
    "SinkReshape": "sink_reshape",
    "TabulateQuantized": "tabulate_quantized",
    "ToMixedPrecision": "to_mixed_precision",
    "WidenFloats": "widen_floats",
    # partition
    "AgreeBorderLayouts": "agree_border_layouts",
    "AttachExternModules": "attach_extern_modules",
    "CopyDequantize": "copy_dequantize",
    "FuseOpsByPattern": "fuse_ops_by_pattern",
    "MergeCompositeFunctions": "merge_composite_functions",
    "MergeParallelConvolutions": "merge_parallel_convolutions",
    "SinkConcat": "sink_concat",
    "SliceChannels": "slice_channels",
    "SplitProjections": "split_projections",
    "OptimizeRegions": "optimize_regions",
    "RunCodegen": "run_codegen",
    # to loop-level functions
    "AnnotateTIROpPattern": "annotate_tir_op_pattern",
    "DecomposeDataDependent": "decompose_data_dependent",
    "DecomposeRandom": "decompose_random",
    "FuseDequantizeMatmul": "fuse_dequantize_matmul",
    "FuseOps": "fuse_ops",
    "FuseSiblings": "fuse_siblings",
    "FuseTIR": "fuse_tir",
    "FuseTransposeMatmul": "fuse_transpose_matmul",
    "LegalizeOps": "legalize_ops",
    "OutlineContinuations": "outline_continuations",
    "PackConstants": "pack_constants",
    "SeparateResults": "separate_results",
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
