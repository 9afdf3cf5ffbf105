"""Named pipelines: sequences of passes by name, for the driver, for scripts and for the command line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from kernelyard.errors import PassError
from kernelyard.transform.annotate_tir_op_pattern import AnnotateTIROpPattern
from kernelyard.transform.canonicalize import Canonicalize
from kernelyard.transform.compose_attention import ComposeAttention, SimplifyAttention
from kernelyard.transform.compose_ops import ComposeOps
from kernelyard.transform.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.eliminate_common_subexpr import EliminateCommonSubexpr
from kernelyard.transform.fold_batch_norm import FoldBatchNorm
from kernelyard.transform.fold_constants import FoldConstants
from kernelyard.transform.fuse_decoded_matmul import FuseDecodedMatmul
from kernelyard.transform.fuse_ops import FuseOps
from kernelyard.transform.fuse_siblings import FuseSiblings
from kernelyard.transform.fuse_tir import FuseTIR
from kernelyard.transform.fuse_transpose_matmul import FuseTransposeMatmul
from kernelyard.transform.gather_scales import GatherScales
from kernelyard.transform.hoist_strides import HoistStrides
from kernelyard.transform.infer_types import InferTypes
from kernelyard.transform.legalize_ops import LegalizeOps
from kernelyard.transform.pass_base import Pass, Sequential
from kernelyard.transform.separate_results import SeparateResults
from kernelyard.transform.simplify_inference import SimplifyInference
from kernelyard.transform.sink_reshape import SinkReshape

_PIPELINES: dict[str, Callable[[], Sequence[Pass]]] = {}


def register_pipeline(name: str, passes: Callable[[], Sequence[Pass]]) -> None:
    """Give a name to a sequence of passes; a second one of the same name is an error."""
    if name in _PIPELINES:
        raise PassError(f"a pipeline is already called {name!r}")
    _PIPELINES[name] = passes


def get_pipeline(name: str) -> Sequential:
    """The pipeline of that name.

    Raises: PassError with the nearest name.

    Example:
        >>> get_pipeline("clean").passes
        (<pass canonicalize>, <pass fold_constants>, <pass eliminate_common_subexpr>, <pass dead_code_elimination>)
    """
    if name not in _PIPELINES:
        close = difflib.get_close_matches(name, _PIPELINES, 1)
        raise PassError(
            f"no pipeline is called {name!r}",
            expected=", ".join(sorted(_PIPELINES)),
            hint=f"did you mean {close[0]!r}?" if close else None,
        )
    return Sequential(_PIPELINES[name](), name)


def pipeline_names() -> tuple[str, ...]:
    """Names of all pipelines, sorted."""
    return tuple(sorted(_PIPELINES))


def _clean() -> list[Pass]:
    """Remove what is redundant; cheap, and safe between any two passes."""
    return [Canonicalize(), FoldConstants(), EliminateCommonSubexpr(), DeadCodeElimination()]


def _simplify() -> list[Pass]:
    """From what a frontend imported to what backends like to see.

    Constants come first, because rules look at their values. Spelled-out operators are composed before scales are
    folded into weights: the products inside a spelled-out gelu must not be taken for scales. What they leave over must
    not be taken for readers.
    """
    return [
        InferTypes(),
        *_clean(),
        ComposeOps(),
        DeadCodeElimination(),
        SinkReshape(),
        FoldBatchNorm(),
        GatherScales(),
        SimplifyInference(),
        HoistStrides(),
        *_clean(),
    ]


def _simplify_cuda() -> list[Pass]:
    """What GPUs do in one kernel, beyond `simplify`: on CPUs products and softmax by themselves are quicker."""
    return [ComposeAttention(), *_clean(), SimplifyAttention(), *_clean()]


def _legalize() -> list[Pass]:
    """From the ops that no library took to fused loop-level functions: first along what is handed on, then across.

    Products read a transposed operand as it lies, and weights of few bits as they are stored: kernels turn and decode
    what they need of it, in registers.
    """
    return [
        FuseDecodedMatmul(),
        FuseTransposeMatmul(),
        DeadCodeElimination(),
        LegalizeOps(),
        SeparateResults(),
        AnnotateTIROpPattern(),
        FuseOps(),
        FuseTIR(),
        FuseSiblings(),
        FuseTIR(),
    ]


register_pipeline("clean", _clean)
register_pipeline("legalize", _legalize)
register_pipeline("simplify", _simplify)
register_pipeline("simplify_cuda", _simplify_cuda)
