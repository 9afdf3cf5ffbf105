"""compile(): a model becomes an Executable, in phases that read like the list in `docs/architecture.md`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before a model is read
from kernelyard.driver import options as compile_options
from kernelyard.driver.generate import Generated, generate
from kernelyard.driver.import_model import import_model
from kernelyard.driver.lower import lower
from kernelyard.ir import IRModule
from kernelyard.ops.reference_runtime import ReferenceModule
from kernelyard.placement.partition import partition
from kernelyard.placement.policy import choose_backends
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.manager import get_manager
from kernelyard.runtime.executable import Executable
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.report import Report
from kernelyard.target import Target, as_target
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.run_codegen import EXTERNAL_MODULES, RunCodegen

log = logging.getLogger("kernelyard")

Options = Mapping[str, Mapping[str, Any]]


def compile(
    model: object,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Options | None = None,
) -> Executable:
    """Compile a model.

    model: a path, bytes, a model object that an installed frontend knows, or an IRModule. target: "cpu", "cuda" or a
    Target. backends: names in order of preference, "auto" for all that can be used, [] for none but the target's own
    code generator. options: {backend: {option: value}}; {"core": {"strict": True}} raises where a backend breaks its
    word.
    Raises: FrontendError, UnknownBackendError, BackendUnavailableError, TargetError, and what passes raise.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
        >>> exe = compile(module, backends=[])
        >>> exe(np.array([-1, 2], np.float32)).numpy().tolist()
        [0.0, 2.0]
    """
    target = as_target(target)
    checked = compile_options.check(options)
    chosen = choose_backends(get_manager(), target, backends)
    module = import_model(model, checked)
    recorder = Recorder()
    module = place(simplify(module), target, chosen, checked, recorder)
    generated = generate(module, target, checked)
    exe = link(generated, target)
    exe.report = report_of(generated, recorder)
    log.info("%s", exe.report.summary)
    return exe


def explain(model: object, target: Target | str = "cpu", backends: Sequence[str] | str = "auto") -> Report:
    """What `compile` would offload and what not, with reasons; no code is generated.

    Raises: as `compile`.
    """
    target = as_target(target)
    chosen = choose_backends(get_manager(), target, backends)
    recorder = Recorder()
    partition(simplify(import_model(model, {})), chosen, target, recorder)
    return recorder.report()


def simplify(module: IRModule) -> IRModule:
    """Canonical forms, types, constants folded, norms folded, duplicates and dead code removed."""
    return get_pipeline("simplify")(module)


def place(module: IRModule, target: Target, chosen: Sequence[Any], options: Options, recorder: Recorder) -> IRModule:
    """Give regions to backends and compile them there."""
    module = partition(module, chosen, target, recorder)
    codegens = {backend.name: backend.codegen for backend in chosen}
    strict = bool(options.get("core", {}).get("strict", False))
    return RunCodegen(codegens, options, recorder=recorder, strict=strict)(module)


def link(generated: Generated, target: Target) -> Executable:
    """Put programs, kernels, external modules and constants together."""
    module = generated.module
    modules: list[RuntimeModule] = [*module.attrs.get(EXTERNAL_MODULES, ()), *generated.kernel_modules]
    home = {symbol: number for number, each in enumerate(modules) for symbol in each.symbols()}
    lowered = [lower(name, function, home, len(modules)) for name, function in module.entry_functions().items()]
    reference_calls = {symbol: call for each in lowered for symbol, call in each.reference_calls.items()}
    if reference_calls:
        modules.append(ReferenceModule.from_calls(reference_calls))
        names = sorted({call.op_name for call in reference_calls.values()})
        warnings.warn(f"these ops run on the slow reference interpreter: {', '.join(names)}", stacklevel=4)
    constants = {digest: array for each in lowered for digest, array in each.constants.items()}
    for each in modules:
        constants.update(each.constants())
    programs = {each.program.name: each.program for each in lowered}
    return Executable(programs, modules, constants, module.attrs.get("metadata", {}), target=str(target))
