"""Backends that write C and C++: the vendor's own headers and libraries, compiler options, symbolic sizes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import Model

import kernelyard as ky
from kernelyard import dims
from kernelyard.codegen.c_source_codegen import CSourceCodegen
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.errors import ArtifactCorruptedError, ToolchainError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.abi.native_unit import Header, NativeUnit, SharedLibrary
from kernelyard.runtime.jit import c_compiler
from kernelyard.runtime.modules import c_source
from kernelyard.testing import assert_offloaded

pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, c_compiler.COMPILERS)), reason="no C compiler is installed here"),
    pytest.mark.skipif(not any(map(shutil.which, c_compiler.CPP.names)), reason="no C++ compiler is installed here"),
]

N = dims.symbol("n")
HEADER = """
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C"
#endif
void acme_relu(const float* x, float* y, int64_t n);
"""
LIBRARY = """
#include "acme.h"
void acme_relu(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = x[i] > 0 ? x[i] : 0; }
"""


class Serializer(JSONSerializer):
    def visit_composite(self, composite: Any, call: Any) -> KernelNode:
        return KernelNode(composite.bindings[0].value.op_name, [("x", composite.params[0])])


class AcmeC(CSourceCodegen):
    """relu is the vendor's, exp a loop of ours."""

    headers = (Header("acme/acme.h", variable="ACME_INCLUDE", hint="pip install acme-headers"),)
    libraries = (SharedLibrary("libacme.so.3", variable="ACME_LIBRARY"),)
    preamble = "#include <acme/acme.h>\n#include <math.h>"
    symbolic_sizes = True

    def statement(self, node: Any, operands: Mapping[str, Any], outputs: Any) -> str:
        (y,) = outputs
        x = operands["x"].name
        if node.op == "nn.relu":
            return f"acme_relu({x}, {y.name}, {y.size});"
        return f"for (int64_t i = 0; i < {y.size}; i++) {y.name}[i] = expf({x}[i]) * SCALE;"


class AcmeCpp(AcmeC):
    language = "c++"
    preamble = """#include <acme/acme.h>
#include <cmath>
template <typename T> static void each(const T* x, T* y, int64_t n) {
  auto scaled = [](T value) { return std::exp(value) * SCALE; };
  for (int64_t i = 0; i < n; i++) y[i] = scaled(x[i]);
}"""

    def statement(self, node: Any, operands: Mapping[str, Any], outputs: Any) -> str:
        if node.op == "nn.relu":
            return super().statement(node, operands, outputs)
        return f"each({operands['x'].name}, {outputs[0].name}, {outputs[0].size});"


class Acme(Backend):
    name = "acme"
    merge_composites = True

    def __init__(self, writer: CSourceCodegen) -> None:
        self.writer = writer

    def patterns(self, target: Any) -> list[FusionPattern]:
        return [FusionPattern(f"acme.{op}", is_op(op)(wildcard())) for op in ("nn.relu", "exp")]

    def codegen(self, regions: Any, options: Mapping[str, Any]) -> Any:
        return self.writer.generate(regions, Serializer())


@pytest.fixture(autouse=True)
def _acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor's library is here, with its header in a folder that no compiler knows of."""
    (tmp_path / "include/acme").mkdir(parents=True)
    (tmp_path / "include/acme/acme.h").write_text(HEADER)
    (tmp_path / "acme.c").write_text(LIBRARY)
    library = tmp_path / "libacme.so.3"
    command = ["cc", "-shared", "-fPIC", f"-I{tmp_path}/include/acme", tmp_path / "acme.c", "-o", library]
    subprocess.run([*command, "-Wl,-soname,libacme.so.3"], check=True)
    monkeypatch.setenv("ACME_INCLUDE", str(tmp_path / "include"))
    monkeypatch.setenv("ACME_LIBRARY", str(library))
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(params=[AcmeC, AcmeCpp], ids=["c", "c++"])
def exe(request: pytest.FixtureRequest, install: Any) -> ky.Executable:
    """exp(relu(exp(x))) of any number of rows, in one region with two intermediates."""
    writer = request.param()
    writer.options = ("-O2", "-DSCALE=2.0f", *(["-std=c++14"] if writer.language == "c++" else []))
    install(Acme(writer))
    b = FunctionBuilder()
    result = b.op("exp", b.op("nn.relu", b.op("exp", b.input("x", (N, 3)))))
    return ky.compile(IRModule({"main": b.function(result)}), backends=["acme"], strict=True)


def feed(rows: int) -> np.ndarray:
    return np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)


def wanted(x: np.ndarray) -> np.ndarray:
    return 2 * np.exp(np.maximum(2 * np.exp(x), 0))


def test_one_text_serves_every_size(exe: ky.Executable, tmp_path: Path) -> None:
    assert_offloaded(exe, "acme", at_least=3)
    (module,) = exe.modules
    assert module.kind == "c_source"
    assert len(module.symbols()) == 1
    exe.save(tmp_path / "m.kyar")
    for each in (exe, ky.load(tmp_path / "m.kyar")):
        for rows in (1, 70, 2):
            np.testing.assert_allclose(each(feed(rows)), wanted(feed(rows)), rtol=1e-5)


def test_c_programs_call_it(exe: ky.Executable, tmp_path: Path) -> None:
    exe.export_library(tmp_path / "libmodel.so", standalone=True)
    model = Model(tmp_path / "libmodel.so")
    for rows in (5, 1):
        np.testing.assert_allclose(model.run([feed(rows)])[0], wanted(feed(rows)), rtol=1e-5)


def test_the_users_options_come_last(exe: ky.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `export_library(path, options=["-O2", "-std=c++14", "-I" + path])` is written elsewhere."""
    monkeypatch.delenv("ACME_INCLUDE")
    monkeypatch.chdir(tmp_path)
    options = ["-O2", "-std=c++14", "-Iinclude", "-USCALE", "-DSCALE=3.0f"]
    exe.export_library(tmp_path / "libmodel.so", standalone=True, options=options)
    expected = 3 * np.exp(3 * np.exp(feed(2)))
    np.testing.assert_allclose(Model(tmp_path / "libmodel.so").run([feed(2)])[0], expected, rtol=1e-5)


def test_a_header_that_is_missing_is_named_with_what_brings_it(
    exe: ky.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACME_INCLUDE")
    with pytest.raises(ToolchainError, match=r"acme/acme\.h") as caught:
        exe(feed(1))
    assert caught.value.hint == "pip install acme-headers"


def test_without_symbolic_sizes_such_a_region_goes_elsewhere(install: Any) -> None:
    class Static(AcmeC):
        symbolic_sizes = False
        options = ("-DSCALE=1",)

    install(Acme(Static()))
    for shape, takers in (((N, 3), {"native-cpu"}), ((2, 3), {"acme"})):
        b = FunctionBuilder()
        exe = ky.compile(IRModule({"main": b.function(b.op("exp", b.input("x", shape)))}), backends=["acme"])
        assert {node.backend for node in exe.report.nodes} == takers
        np.testing.assert_allclose(exe(feed(2)), np.exp(feed(2)), rtol=1e-5)


@pytest.mark.parametrize(
    "option", ["-I/usr/include", "-fplugin=evil.so", "-o", "@file", "-Wl,-z,now", "-Wa,x", "file.c"]
)
def test_an_artifact_names_no_file_to_its_compiler(option: str) -> None:
    with pytest.raises(ArtifactCorruptedError, match="compiler option"):
        NativeUnit("", (), options=(option,))


def test_what_an_artifact_says_of_compilers_is_checked(exe: ky.Executable) -> None:
    (module,) = exe.modules
    good = json.loads(module.save_to_bytes())
    for change in (
        {"language": "fortran"},
        {"options": ["-I/tmp"]},
        {"headers": [{**good["compiler"]["headers"][0], "name": "../x.h"}]},
        {"headers": [{**good["compiler"]["headers"][0], "variable": "A=B"}]},
    ):
        bad = {**good, "compiler": {**good["compiler"], **change}}
        with pytest.raises(ArtifactCorruptedError):
            c_source.load(json.dumps(bad).encode(), module.constants())
    assert c_source.load(module.save_to_bytes(), module.constants()).save_to_bytes() == module.save_to_bytes()
