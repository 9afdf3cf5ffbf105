"""partition: offer a module to backends, one after another."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kernelyard.errors import KernelyardError, PluginContractError
from kernelyard.ir import IRModule
from kernelyard.ir.verify import verify
from kernelyard.patterns.registry import FusionPattern
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.manager import get_manager
from kernelyard.target import Target, as_target
from kernelyard.transform.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.merge_composite_functions import MergeCompositeFunctions

log = logging.getLogger(__name__)


def partition(
    module: IRModule,
    backends: Sequence[Backend],
    target: Target | None = None,
    recorder: Recorder | None = None,
    strict: bool = False,
) -> IRModule:
    """The module with regions for each backend in turn; an op belongs to the first that accepts it.

    A backend whose own code fails is recorded as having broken its contract and left out; with `strict` that raises.
    Raises: PluginContractError.
    """
    recorder = recorder or Recorder()
    target = target or Target("cpu")
    for backend in backends:
        try:
            module = _offer(module, backend, target, recorder)
        except Exception as error:  # a vendor's code
            if strict:
                raise _broken(backend, error) from error
            log.warning("the backend %s failed while it was offered the model", backend.name, exc_info=True)
            recorder.violated(backend.name, (), str(_broken(backend, error)))
    return module


def partition_for(
    backend: str, module: IRModule, target: Target | str = "cpu", recorder: Recorder | None = None
) -> IRModule:
    """The module with regions for one installed backend, for scripts that put the stages together themselves.

    Call it once for each backend, most wanted first. `kernelyard.placement.partition_for_<name>(module)` is the same.
    Raises: UnknownBackendError, BackendUnavailableError.
    """
    target = as_target(target)
    return partition(module, [get_manager().get(backend, "backend", target.kind)], target, recorder)


def _offer(module: IRModule, backend: Backend, target: Target, recorder: Recorder) -> IRModule:
    patterns = backend.patterns(target)
    _check_owner(backend, patterns)
    fuse = FuseOpsByPattern(patterns, annotate_codegen=not backend.merge_composites, recorder=recorder)
    module = fuse(_prepare(backend, module))
    return MergeCompositeFunctions([backend.name])(module) if backend.merge_composites else module


def _prepare(backend: Backend, module: IRModule) -> IRModule:
    """What the backend makes of the module, checked: a malformed one must not reach anybody else."""
    prepared = backend.prepare(module)
    if prepared is not module:
        verify(prepared)
    return prepared


def _check_owner(backend: Backend, patterns: Sequence[FusionPattern]) -> None:
    foreign = [pattern.name for pattern in patterns if pattern.backend != backend.name]
    if foreign:
        raise PluginContractError(
            f"{backend.name} offers patterns of another backend",
            found=", ".join(foreign),
            expected=f"names that start with '{backend.name}.'",
        )


def _broken(backend: Backend, error: Exception) -> PluginContractError:
    message = error.message if isinstance(error, KernelyardError) else repr(error)
    return PluginContractError(
        f"the backend {backend.name} failed while it was offered the model: {message}",
        hint="report this to the plugin's authors; leave the backend out to go on",
    )
