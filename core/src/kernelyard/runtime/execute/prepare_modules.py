"""Have modules do at load what would else keep the first run waiting (`RuntimeModule.prepare`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.errors import KernelyardError, NoImplementationError
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.threads import threads_of_a_run
from kernelyard.runtime.execute.step_errors import StepLabel, bind_error, describe_step

if TYPE_CHECKING:
    from kernelyard.runtime.execute.compiled_model import CompiledModel


def prepare_modules(executable: CompiledModel) -> None:
    """Prepare every function of an executable's modules for as many threads as a run uses.

    Raises: ExecutionError that names the plugin and its version; what modules raise of the tree.
    """
    threads = threads_of_a_run(executable.threads)
    for module in executable.modules:
        if type(module).prepare is RuntimeModule.prepare:
            continue
        count = 1 if executable.binds_for_one_thread(module) else threads
        for symbol in module.symbols():
            try:
                module.prepare(symbol, {}, count)
            except KernelyardError as error:
                if not isinstance(error, NoImplementationError) or symbol not in executable.fallbacks:
                    error.where = error.where or describe_step(StepLabel(symbol, module.kind))
                    raise
            except (Exception, SystemExit) as error:
                raise bind_error(symbol, StepLabel(symbol, module.kind), error) from error
