"""Who knows whom: imports inside functions and imports for types alone make no circles, but for those listed here."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter

from repository import files, imported, tree_of

Import = tuple[str, str]  # who imports, and what

METHOD = "a method for what is written in a file of its own"
MAKER = "it is handed what made it, and names that for its type alone"
KINDS = "it holds what these are, or makes the one that is asked for"
DECLARED = "its checks, run by the compile half alone, are handed these, and it names them for their types"
# Imports that close a circle, each inside a function or for types alone, and why it stays. The list is kept short: all
# others run one way once these are left out.
ALLOWED: dict[Import, str] = {
    ("kernelyard.ir.module", "kernelyard.ir.printer"): METHOD,
    ("kernelyard.nn.module", "kernelyard.nn.export"): METHOD,
    ("kernelyard.nn.spec", "kernelyard.nn.export"): METHOD,
    ("kernelyard.patterns.language.pattern_context", "kernelyard.patterns.language.pattern"): MAKER,
    ("kernelyard.runtime.device.device", "kernelyard.runtime.device.driver"): METHOD,
    ("kernelyard.runtime.execute.executable", "kernelyard.runtime.artifact.kyar"): METHOD,
    ("kernelyard.runtime.execute.executable", "kernelyard.runtime.export.library"): METHOD,
    ("kernelyard.runtime.profiling.trace", "kernelyard.runtime.profiling.profile"): MAKER,
    ("kernelyard.tir.buffer", "kernelyard.tir.expr"): METHOD,
    ("kernelyard_dnnl.primitive_kind", "kernelyard_dnnl.candidate"): DECLARED,
    ("kernelyard_dnnl.primitive_kind", "kernelyard_dnnl.composite"): DECLARED,
    ("kernelyard_onnx.node", "kernelyard_onnx.importer"): MAKER,
    ("kernelyard_torch.node", "kernelyard_torch.importer"): MAKER,
}


@cache
def imports() -> dict[str, frozenset[str]]:
    """What each module imports of ours, wherever in its file that stands."""
    return {name: frozenset(imported(ast.walk(tree_of(name))) - {name}) for name in files()}


def circle(without: set[Import]) -> list[str]:
    """Return the modules of one circle of the imports that are not left out; nothing where there is none."""
    graph = {name: [each for each in of if (name, each) not in without] for name, of in imports().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_file_is_read() -> None:
    assert {"kernelyard.ir.module", "kernelyard_dnnl.plugin", "kernelyard_acme.plugin"} <= set(files())
    assert "kernelyard.ir.printer" in imports()["kernelyard.ir.module"], "an import inside a function"


def test_imports_make_no_circle_but_the_listed_ones() -> None:
    assert circle(without=set(ALLOWED)) == []


def test_every_listed_import_closes_a_circle() -> None:
    idle = [pair for pair in ALLOWED if not circle(without=set(ALLOWED) - {pair})]
    assert idle == [], "these are no longer there, or make no circle any more: take them off the list"
