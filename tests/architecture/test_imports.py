"""What imports what: the front door is quick and light, the runtime stands alone, every module stands alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from repository import ROOT, fresh, imported, modules, tree_of

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule

COMPILER = (
    "ir",
    "ops",
    "tir",
    "legalize",
    "patterns",
    "transform",
    "plugins",
    "placement",
    "driver",
    "cli",
    "nn",
    "testing",
)
LIBRARIES = ("numpy", "onnx", "llvmlite", "tvm_ffi", "pluggy", "click", "rich", "safetensors")
LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules in an interpreter that ran some code."""
    return set(json.loads(fresh(f"{code}\n{LOADED}", *arguments).splitlines()[-1]))


def compiler_modules(loaded: set[str]) -> set[str]:
    parts = {f"kernelyard.{part}" for part in COMPILER}
    return {name for name in loaded if ".".join(name.split(".")[:2]) in parts}


def test_the_front_door_loads_nothing() -> None:
    loaded = loaded_by("import kernelyard")
    assert not compiler_modules(loaded)
    assert not loaded.intersection(LIBRARIES)
    assert not {name for name in loaded if name.startswith("kernelyard_")}
    assert {name for name in loaded if name.startswith("kernelyard")} == {"kernelyard"}


def test_the_front_door_loads_little_of_pythons_library() -> None:
    """It takes a few milliseconds; how long exactly is measured in benchmarks."""
    code = "import sys; before = set(sys.modules); import kernelyard; print(*sorted(set(sys.modules) - before))"
    loaded = fresh(code).split()
    assert "kernelyard" in loaded
    assert len(loaded) <= 40, loaded


def test_help_loads_no_library() -> None:
    loaded = loaded_by("from kernelyard.cli.main import main; main(['--help'], standalone_mode=False)")
    assert not loaded.intersection({"numpy", "onnx", "llvmlite", "tvm_ffi", "pluggy"})
    assert compiler_modules(loaded) <= {"kernelyard.cli", "kernelyard.cli.main"}


def test_compiling_an_onnx_file_for_a_cpu_loads_what_it_needs(tmp_path: Path) -> None:
    """Nothing of models in Python, of PyTorch, of GPUs, of tests."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n,8] x, float[8,4] w) => (float[n,4] z) '
        "{ y = MatMul(x, w) z = Relu(y) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    loaded = loaded_by("import sys, kernelyard; kernelyard.compile(sys.argv[1])", str(tmp_path / "model.onnx"))
    rooms = {".".join(name.split(".")[:2]) for name in loaded}
    assert not rooms & {"kernelyard.nn", "kernelyard.testing", "kernelyard_nn", "kernelyard_torch", "torch"}
    assert not {name for name in loaded if name.startswith("kernelyard") and re.search("cuda|nvrtc|cublas|cudnn", name)}
    asked_for_by_others = {  # families of operators, and what reads texts, interprets or rewrites attention
        *("kernelyard_onnx.converters.control", "kernelyard_onnx.converters.microsoft"),
        *("kernelyard.legalize.attention", "kernelyard.legalize.recurrent", "kernelyard.ir.parser"),
        *("kernelyard.ops.interpreter", "kernelyard.tir.printer", "kernelyard.patterns.attention_templates"),
        *("kernelyard.driver.specialize", "kernelyard_native_cpu.codegen.sorting"),
    }
    assert not loaded & asked_for_by_others


def test_listing_plugins_loads_no_compiler_of_theirs() -> None:
    """What is blocked is not imported, and the front door of plugins is cheap."""
    assert not loaded_by("import kernelyard.plugins").intersection({"numpy", "kernelyard.ir", "kernelyard.ops"})
    code = (
        "import os; os.environ['KERNELYARD_PLUGINS'] = ''; import kernelyard; "
        "assert all(i.state == 'blocked' for i in kernelyard.backends())"
    )
    assert not {name for name in loaded_by(code) if name.startswith("kernelyard_")}


def test_the_runtime_loads_nothing_of_the_compiler() -> None:
    loaded = loaded_by(
        "import kernelyard.runtime, kernelyard.runtime.artifact.kyar, kernelyard.runtime.execute.virtual_machine"
    )
    assert not compiler_modules(loaded)
    assert not loaded.intersection({"pluggy", "click", "rich", "onnx"})


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A saved model that uses oneDNN and generated kernels."""
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (dims.symbol("n"), 4)), np.eye(4, dtype=np.float32))
    exe = ky.compile(IRModule({"main": b.function(b.op("cumsum", product, axis=1))}), backends=["dnnl"])
    assert {module.kind for module in exe.modules} == {"dnnl", "native-cpu"}
    exe.save(tmp_path / "m.kyar")
    return tmp_path / "m.kyar"


# Nodes of a model, the backend that is to take it, and how many modules of ours its artifact may import when it is first
# run on a machine, which keeps what was found out, and from then on.
RUN = {
    "generated": ("h = MatMul(x, w) k = Add(h, x) y = Relu(k)", "float[n,4] x", "float[4,4] w", "native_cpu", 70, 70),
    "library": (
        "h = Conv(x, w) k = Relu(h) y = GlobalAveragePool(k)",
        "float[n,3,8,8] x",
        "float[16,3,3,3] w",
        "dnnl",
        97,
        82,
    ),
}


@pytest.mark.parametrize("name", RUN)
def test_an_artifact_of_three_nodes_loads_few_modules_of_ours(name: str, tmp_path: Path) -> None:
    nodes, x, w, backend, *most = RUN[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({x}, {w}) => (y) {{ {nodes} }}')
    inputs = {each.name: [d.dim_value or 1 for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    weight = np.linspace(-1, 1, int(np.prod(inputs["w"])), dtype=np.float32).reshape(inputs["w"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    del model.graph.input[1]
    ky.compile(model).save(tmp_path / "m.kyar")
    shape = tuple(inputs["x"])
    code = "import sys, numpy, kernelyard; exe = kernelyard.load(sys.argv[1]); "
    code += f"exe.run({{'x': numpy.ones({shape}, numpy.float32)}})"
    for limit in most:
        loaded = loaded_by(code, str(tmp_path / "m.kyar"))
        assert f"kernelyard_{backend}.runtime" in loaded
        assert not compiler_modules(loaded)
        assert not (loaded - loaded_by("import numpy")).intersection({"pathlib", "glob", "logging"})
        assert len([each for each in loaded if each.startswith("kernelyard")]) <= limit


def test_an_artifact_runs_with_the_runtime_alone(artifact: Path) -> None:
    code = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
assert np.allclose(np.asarray(exe(np.ones((2, 4), np.float32))), [[1, 2, 3, 4]] * 2)
assert "native-cpu" in exe.report.summary
"""
    loaded = loaded_by(code, str(artifact))
    assert not compiler_modules(loaded)
    assert not loaded.intersection({"pluggy", "click", "rich", "onnx"})
    halves = {name for name in loaded if name.startswith("kernelyard_")}
    assert {"kernelyard_dnnl.runtime", "kernelyard_native_cpu.runtime"} <= halves
    compile_halves = ("plugin", "patterns", "backend", "generator", "codegen", "checks", "schedule")
    assert not {name for name in halves if name.split(".")[1:2] and name.split(".")[1] in compile_halves}


def test_an_artifact_runs_without_loading_llvm(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the runtime itself compiles is in the cache after the first time; objects of kernels need no compiler."""
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KERNELYARD_CACHE_MB", raising=False)
    code = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load(sys.argv[1])
assert np.allclose(np.asarray(exe(np.ones((2, 4), np.float32))), [[1, 2, 3, 4]] * 2)
"""
    loaded_by(code, str(artifact))
    loaded = loaded_by(code, str(artifact))
    assert "kernelyard_native_cpu.runtime" in loaded
    assert not loaded.intersection(
        {"llvmlite", "kernelyard.runtime.modules.c_source", "statistics", "difflib", "subprocess"}
    )


def test_import_contracts() -> None:
    """The layers of pyproject.toml, and that no plugin imports another."""
    pytest.importorskip("importlinter", reason="import-linter is not installed")
    command = [sys.executable, ROOT / "tools/lint.py", "imports"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Libraries are imported once, in any case. Each module is imported in a process that has seen no other of ours than what it
# imports itself: one that has just imported such a module goes on in a copy, instead of all of it being imported again. A
# module that only works when another one was imported first (a forgotten import) fails here; test_circles.py has cycles.
ALONE = """
import gc, importlib, json, os, sys, traceback, warnings
import numpy, ml_dtypes, onnx, pluggy, click, rich.console, safetensors, llvmlite.binding
import tvm_ffi, packaging.specifiers, hypothesis, importlib.metadata

gc.disable()  # a process of a single import leaves nothing to collect
after = {}
for name, first in json.load(sys.stdin).items():
    after.setdefault(first, []).append(name)

def fails(name):
    try:
        importlib.import_module(name)
    except BaseException:
        traceback.print_exc()
        print("cannot be imported alone:", name, file=sys.stderr)
        return True
    return something_fails_after(name)

def something_fails_after(first):
    failed = False
    *others, last = after.get(first) or [None]
    for name in others:
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if child == 0:
            os._exit(fails(name))
        failed |= os.waitpid(child, 0)[1] != 0
    return failed if last is None else fails(last) or failed

os._exit(something_fails_after(""))
"""


def first_imports() -> dict[str, str]:
    """For each module, what it imports of ours in any case that imports the most modules itself; "" where it has none."""
    names = set(modules())
    direct = {name: (imported(tree_of(name).body) & names) - {name} for name in names}
    reached: dict[str, set[str]] = {}
    for name in TopologicalSorter(direct).static_order():
        reached[name] = {name}.union(*(reached[each] for each in direct[name]))
    return {name: max(sorted(direct[name]), key=lambda each: len(reached[each]), default="") for name in names}


def test_every_module_can_be_imported_alone() -> None:
    fresh(ALONE, stdin=json.dumps(first_imports()), timeout=600)
