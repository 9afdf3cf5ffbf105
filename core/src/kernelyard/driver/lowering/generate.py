"""From placed IR to kernels: what no library took is legalized, fused and given to the target's code generator."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.driver.lowering.fallbacks import remove_fallbacks
from kernelyard.driver.session.session import CompileSession
from kernelyard.errors import OptionError, PluginContractError, TargetError, describe
from kernelyard.ir import Call, ExternFunc, GlobalVar, IRModule, Op
from kernelyard.legalize import CUSTOM, op_of
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.sandbox.guard import within_time
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.report_entries import Kernel
from kernelyard.runtime.report_words import EXTERN
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.compile_pipeline import OFFLOAD
from kernelyard.transform.partition.module_contract import check_module
from kernelyard.transform.pipelines import pack

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generated:
    """The module with every call compiled that could be, and the kernels' modules.

    generator: None where the reference interpreter has to run what no library took.
    """

    module: IRModule
    generator: CodeGenerator | None = None
    kernel_modules: tuple[RuntimeModule, ...] = ()
    kernels: tuple[Kernel, ...] = ()


def generate(session: CompileSession, module: IRModule) -> Generated:
    """Legalize, fuse and generate; without a code generator nothing is done.

    A generator that fails is recorded as having broken its contract, and the module stays as it is; with `strict` that
    raises. Raises: LegalizeError, PluginContractError, and TargetError or OptionError for what the generator lacks.
    """
    generator, target = session.choice
    if generator is None:
        return Generated(module)
    legal = legalize(session, module)
    functions = {name: f for name, f in legal.functions.items() if isinstance(f, PrimFunc)}
    if not functions:
        return Generated(legal, generator, kernels=kernels_of(legal, generator.name))
    try:
        legal = pack(lambda function, constants: generator.packings(function, constants, target))(legal)
        functions = {name: f for name, f in legal.functions.items() if isinstance(f, PrimFunc)}
        kernel_module = _generate(generator, functions, target, session.options.get(generator.name, {}))
    except (TargetError, OptionError):  # not the generator's fault: it was asked for what it does not have
        raise
    except Exception as error:  # a vendor's code
        broken = _contract_error(generator.name, session.manager.label_of(generator.name), error)
        if session.strict:
            raise broken from error
        log.warning("the code generator %s failed", generator.name, exc_info=True)
        session.recorder.record_violation(generator.name, tuple(functions), broken.message)
        return Generated(module)
    return Generated(legal, generator, (kernel_module,), kernels_of(legal, generator.name))


def legalize(session: CompileSession, module: IRModule) -> IRModule:
    """Run the stages after the backends: what no library took becomes loop-level functions. Raises: LegalizeError."""
    for stage in session.pipeline.between(OFFLOAD, None):
        module = stage(module)
    return module


def plan_kernels(session: CompileSession, module: IRModule) -> tuple[Kernel, ...]:
    """Return the kernels that `generate` would make of what no library took. Raises: LegalizeError."""
    generator = session.generator
    return kernels_of(legalize(session, module), generator.name) if generator is not None else ()


def kernels_of(module: IRModule, generator: str) -> tuple[Kernel, ...]:
    """Return the kernels of a module that was legalized: its PrimFuncs, and custom kernels that are called as they are.

    Calls in fallbacks do not count: they are made where a library refuses.
    """
    calls: Counter[str] = Counter()
    extern: dict[str, Kernel] = {}
    for function in remove_fallbacks(module).entry_functions().values():
        for binding in function.bindings:
            match binding.value:
                case Call(op=Op(name="call_tir"), args=[GlobalVar() as callee, *_]):
                    calls[callee.name] += 1
                case Call(op=Op(name="call_dps_packed"), args=[ExternFunc(symbol=name), *_]) if op := op_of(name):
                    calls[name] += 1
                    extern[name] = Kernel(EXTERN, name, (op,), calls[name], (name,))
    made = [
        Kernel(generator, name, tuple(f.attrs.get("ops", ())), calls[name], tuple(f.attrs.get(CUSTOM, ())))
        for name, f in module.functions.items()
        if isinstance(f, PrimFunc)
    ]
    return (*made, *extern.values())


def _generate(
    generator: CodeGenerator, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]
) -> RuntimeModule:
    what = f"the code generator {generator.name}"

    def generate_module() -> RuntimeModule:
        return check_module(generator.generate(functions, target, options), tuple(functions))

    return within_time(what, generate_module, len(functions))


def _contract_error(name: str, label: str, error: Exception) -> PluginContractError:
    """Return the error for a generator that did not take all functions; label: the plugin, for messages."""
    return PluginContractError(
        f"the code generator {name} failed: {describe(error)}",
        where=getattr(error, "where", None) or label,
        expected="code for every function: no other generator is asked, and the reference interpreter runs all of them",
        hint=f"compile without it (kernelyard -p no:{name}), and report this to the authors of {label}; in generate, "
        "print(f) shows a function as parse_primfunc reads it back (docs/writing-a-backend.md#a-code-generator)",
    )
