"""compile(): a model becomes an Executable, in phases that read like the list in `docs/architecture.md`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before a model is read
from kernelyard.driver.choose_backends import choose_backends, choose_code_generator
from kernelyard.driver.generate import Generated, generate
from kernelyard.driver.import_model import import_model
from kernelyard.driver.lower import lower
from kernelyard.driver.options import check_options, is_strict
from kernelyard.ir import Call, IRModule
from kernelyard.ops.reference_runtime import ReferenceModule
from kernelyard.ops.size_checks import size_checks
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.manager import get_manager
from kernelyard.runtime.executable import Executable
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.program import SizeCheck
from kernelyard.runtime.report import Report
from kernelyard.target import Target, as_target
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.run_codegen import EXTERNAL_MODULES, RunCodegen

log = logging.getLogger("kernelyard")

REFERENCE = "reference"
Options = Mapping[str, Mapping[str, Any]]


def compile(  # noqa: A001  the public name, as `re.compile`
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
    checked = check_options(options)
    chosen = choose_backends(get_manager(), target, backends)
    generator = choose_code_generator(get_manager(), target)
    recorder = Recorder()

    module = simplify(import_model(model, checked))
    placed = partition(module, chosen, target, recorder, strict=is_strict(checked))
    offloaded = run_codegens(placed, chosen, checked, recorder)
    generated = generate(offloaded, generator, target, checked.get(generator.name, {}) if generator else {})
    checks = {name: size_checks(module, name) for name in module.entry_functions()}
    linked = link(generated, target, checks)

    def runs_rest(call: Call) -> str:
        return generator.name if generator and call.op_name not in linked.reference_ops else REFERENCE

    linked.executable.report = build_report(placed, recorder, str(target), runs_rest, generated.kernels)
    log.info("%s", linked.executable.report.summary)
    return linked.executable


def explain(model: object, target: Target | str = "cpu", backends: Sequence[str] | str = "auto") -> Report:
    """What `compile` would offload and what not, with reasons; no code is generated.

    Raises: as `compile`.
    """
    target = as_target(target)
    chosen = choose_backends(get_manager(), target, backends)
    generator = choose_code_generator(get_manager(), target)
    recorder = Recorder()
    placed = partition(simplify(import_model(model, {})), chosen, target, recorder)
    return build_report(placed, recorder, str(target), generator.name if generator else REFERENCE)


def simplify(module: IRModule) -> IRModule:
    """Canonical forms, types, constants folded, norms folded, duplicates and dead code removed."""
    return get_pipeline("simplify")(module)


def run_codegens(module: IRModule, chosen: Sequence[Backend], options: Options, recorder: Recorder) -> IRModule:
    """Each backend compiles its regions."""
    codegens = {backend.name: backend.codegen for backend in chosen}
    return RunCodegen(codegens, options, recorder=recorder, strict=is_strict(options))(module)


@dataclass(frozen=True)
class Linked:
    """The executable, and the ops in it that run on the reference interpreter."""

    executable: Executable
    reference_ops: frozenset[str]


def link(generated: Generated, target: Target, checks: Mapping[str, tuple[SizeCheck, ...]]) -> Linked:
    """Put programs, kernels, external modules and constants together; `checks` are those of each entry function."""
    module = generated.module
    modules: list[RuntimeModule] = [*module.attrs.get(EXTERNAL_MODULES, ()), *generated.kernel_modules]
    home = {symbol: number for number, each in enumerate(modules) for symbol in each.symbols()}
    lowered = [
        lower(name, function, home, len(modules), checks.get(name, ()))
        for name, function in module.entry_functions().items()
    ]
    reference_calls = {symbol: call for each in lowered for symbol, call in each.reference_calls.items()}
    reference_ops = frozenset(call.op_name for call in reference_calls.values())
    if reference_calls:
        modules.append(ReferenceModule.from_calls(reference_calls))
        message = f"these ops run on the slow reference interpreter: {', '.join(sorted(reference_ops))}"
        warnings.warn(message, PerformanceWarning, stacklevel=3)
    constants = {digest: array for each in lowered for digest, array in each.constants.items()}
    for each in modules:
        constants.update(each.constants())
    programs = {each.program.name: each.program for each in lowered}
    exe = Executable(programs, modules, constants, module.attrs.get("metadata", {}), target=str(target))
    return Linked(exe, reference_ops)


class PerformanceWarning(UserWarning):
    """Something runs far slower than it could."""
