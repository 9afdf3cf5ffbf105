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

from kernelyard.runtime.entry_points import find, load_named

GROUP = "kernelyard.passes"
_HOME = {
    # what passes are, and how they are run
    "FunctionPass": "pass_base",
    "Pass": "pass_base",
    "PassContext": "pass_base",
    "Sequential": "pass_base",
    "function_pass": "pass_base",
    "get_pipeline": "pipelines",
    "module_pass": "pass_base",
    "register_pipeline": "pipelines",
    # from a model to what backends like to see
    "AdjustMatmulOrder": "adjust_matmul_order",
    "BindParams": "bind_params",
    "BindSymbolicVars": "bind_symbolic_vars",
    "Canonicalize": "canonicalize",
    "CanonicalizeBindings": "canonicalize_bindings",
    "CombineParallelMatmul": "combine_parallel_matmul",
    "ComposeAttention": "compose_attention",
    "ComposeOps": "compose_ops",
    "ConvertLayout": "convert_layout",
    "DeadCodeElimination": "dead_code_elimination",
    "DecomposeOpsForInference": "decompose_ops_for_inference",
    "EliminateCommonSubexpr": "eliminate_common_subexpr",
    "FlattenEntryTuples": "flatten_entry_tuples",
    "ExpandMatmulOfSum": "expand_matmul_of_sum",
    "FoldBatchNorm": "fold_batch_norm",
    "FoldConstants": "fold_constants",
    "GatherScales": "gather_scales",
    "HoistStrides": "hoist_strides",
    "InferTypes": "infer_types",
    "InlinePrivateFunctions": "inline_private_functions",
    "InvokeKnownClosures": "invoke_known_closures",
    "QuantizeWeights": "quantize_weights",
    "ReorderPermuteDimsAfterConcat": "reorder_permute_dims_after_concat",
    "ReorderTakeAfterMatmul": "reorder_take_after_matmul",
    "SimplifyAttention": "compose_attention",
    "SimplifyInference": "simplify_inference",
    "SinkReshape": "sink_reshape",
    "ToMixedPrecision": "to_mixed_precision",
    # partition
    "AllocateWorkspace": "allocate_workspace",
    "AttachExternModules": "attach_extern_modules",
    "FuseOpsByPattern": "fuse_ops_by_pattern",
    "MergeCompositeFunctions": "merge_composite_functions",
    "OptimizeRegions": "optimize_regions",
    "RunCodegen": "run_codegen",
    # partition, the Relay-era flow
    "AnnotateTarget": "annotate_target",
    "MergeCompilerRegions": "merge_compiler_regions",
    "MergeComposite": "merge_composite",
    "PartitionGraph": "partition_graph",
    "register_op_rule": "single_op_rules",
    # to loop-level functions
    "AnnotateTIROpPattern": "annotate_tir_op_pattern",
    "FuseDecodedMatmul": "fuse_decoded_matmul",
    "FuseOps": "fuse_ops",
    "FuseSiblings": "fuse_siblings",
    "FuseTIR": "fuse_tir",
    "FuseTransposeMatmul": "fuse_transpose_matmul",
    "LegalizeOps": "legalize_ops",
    "OutlineContinuations": "outline_continuations",
    "PackConstants": "pack_constants",
    "SeparateResults": "separate_results",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    else:
        value = None if name.startswith("_") else load_named(GROUP, name)
        if value is None:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}, nor does an installed distribution bring it ({GROUP})"
            )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *(entry.name for entry in find(GROUP).entries)})
