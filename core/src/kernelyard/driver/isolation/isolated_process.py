"""Main of the process that an isolated backend runs in: offers are rehearsed here, and regions compiled."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import kernelyard.ops  # noqa: F401  the vocabulary that the text is read with
from kernelyard.driver.isolation.isolated_backend import ARTIFACT, CONSTANTS, TEXT, Question
from kernelyard.driver.lowering.offload import prepare
from kernelyard.errors import KernelyardError, describe
from kernelyard.ir import IRModule, parse_module
from kernelyard.placement.partition import partition
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.sandbox.guard import heard
from kernelyard.plugins.sandbox.worker_process import ALIVE, leave_no_core_file, private_streams
from kernelyard.runtime.artifact import safetensors_format
from kernelyard.runtime.execute.executable import Executable
from kernelyard.target import Target
from kernelyard.transform.layout.agree_border_layouts import AgreeBorderLayouts
from kernelyard.transform.partition.module_contract import check_module
from kernelyard.transform.partition.optimize_regions import OptimizeRegions
from kernelyard.transform.partition.region import Region


def main() -> None:
    """Load the plugin that the first line names, then answer questions about it."""
    questions, answers = private_streams()
    leave_no_core_file()
    get_manager().get(json.loads(questions.readline()), "backend")
    print("true", file=answers, flush=True)

    for line in questions:
        question = Question(**json.loads(line))
        _limit(question)

        def live(seconds: float = question.seconds) -> None:
            _end_after(seconds)
            answers.write(ALIVE)
            answers.flush()

        print(json.dumps(heard(lambda question=question: _answer(question), live)), file=answers, flush=True)


def _limit(question: Question) -> None:
    _end_after(question.seconds)
    if question.megabytes:
        with suppress(ImportError, ValueError):  # Windows has none; a lower limit may hold already
            import resource

            nbytes = question.megabytes * 1_000_000
            resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


def _end_after(seconds: float) -> None:
    """End this process even in a loop of native code, should the one that would end it be gone."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 10)  # its default action ends native code, too


def _answer(question: Question) -> dict[str, Any]:
    try:
        options = question.options
        backend = get_manager().get(question.plugin, "backend").configured(options)
        folder, target = Path(question.folder), Target(**question.target)
        constants = safetensors_format.from_bytes(np.memmap(folder / CONSTANTS, mode="r"), CONSTANTS)
        module = parse_module((folder / TEXT).read_text(encoding="utf-8"), constants)
        if question.regions is None:
            _rehearse(module, backend, target)
            return {}
        return _compile(question, module, backend, target, folder)
    except KernelyardError as error:
        return {"error": error.to_json()}
    except Exception as error:  # a vendor's code
        return {"error": {"message": describe(error), "found": None, "expected": None}}


def _rehearse(module: IRModule, backend: Backend, target: Target) -> None:
    """Ask the backend all that it is asked before codegen. What it raises, it raises where that counts, too."""
    settings = PlacementSettings(target)
    placed = partition(module, [backend], settings)
    optimized = OptimizeRegions({backend.name: backend.optimize}, settings.recorder)(placed)
    AgreeBorderLayouts({backend.name: backend.border_layouts}, settings.recorder)(optimized)


def _compile(question: Question, module: IRModule, backend: Backend, target: Target, folder: Path) -> dict[str, Any]:
    assert question.regions is not None
    functions = module.graph_functions()
    regions = [Region(symbol, backend.name, functions[name], module) for name, symbol in question.regions]
    symbols = [region.symbol for region in regions]
    made = check_module(backend.codegen(regions, question.options), symbols)
    refusable = [region.symbol for region in regions if backend.may_refuse(region)]
    prepare(made, target, refusable)
    Executable({}, [made], made.constants(), target=str(target)).save(folder / ARTIFACT)
    return {"refusable": refusable}
