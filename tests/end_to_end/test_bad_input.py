"""Bad input gets a typed error that says what, where and how to go on, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard import errors
from kernelyard.runtime.artifact import container


def model(op_type: str = "Relu", domain: str = "", **attributes: object) -> onnx.ModelProto:
    """x (n, 3) float32 -> y, through one node called "the_node"."""
    node = helper.make_node(op_type, ["x"], ["y"], "the_node", domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=8)


@pytest.fixture(scope="module")
def exe() -> ky.Executable:
    return ky.compile(model(), backends=["dnnl"])


@pytest.fixture
def artifact(exe: ky.Executable, tmp_path: Path) -> Path:
    exe.save(tmp_path / "m.kyar")
    return tmp_path / "m.kyar"


def refused(error: type[errors.KernelyardError], action: Callable[[], object], *facts: str) -> None:
    """Assert that `action` raises `error` and that its text holds all `facts`."""
    with pytest.raises(error) as caught:
        action()
    for fact in (error.code, *facts):
        assert fact in str(caught.value)


# --- models -----------------------------------------------------------------------------------------------------------
def test_not_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is no model at all, only a sentence")
    refused(errors.ModelFormatError, lambda: ky.compile(path), "text.onnx")


@pytest.mark.parametrize("keep", [0, 1, 10, 60, 0.5, 0.9])
def test_truncated_file(tmp_path: Path, keep: float) -> None:
    data = model().SerializeToString()
    path = tmp_path / "half.onnx"
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    refused(errors.ModelFormatError, lambda: ky.compile(path), "half.onnx")


def test_no_such_file(tmp_path: Path) -> None:
    refused(errors.FrontendError, lambda: ky.compile(tmp_path / "absent.onnx"), "absent.onnx")


def test_unknown_kind_of_model(tmp_path: Path) -> None:
    for name, hint in (("m.acme", "give a path"), ("m.kyar", "compiled already")):
        path = tmp_path / name
        path.write_bytes(b"????")
        refused(errors.UnknownModelError, lambda path=path: ky.compile(path), name, hint)
    refused(errors.UnknownModelError, lambda: ky.compile(object()), "object")


def test_unsupported_operators_are_listed_at_once() -> None:
    bad = model("Frobnicate", domain="com.acme")
    bad.graph.node.append(helper.make_node("Grumble", ["y"], ["z"], "second_node", domain="com.acme"))
    bad.graph.output[0].name = "z"
    refused(
        errors.UnsupportedOperatorError, lambda: ky.compile(bad), "Frobnicate", "the_node", "Grumble", "second_node"
    )


# --- feeds ------------------------------------------------------------------------------------------------------------
def test_wrong_feed_name(exe: ky.Executable) -> None:
    x = np.zeros((2, 3), np.float32)
    refused(errors.InputNameError, lambda: exe.run({"X": x}), "'X'", "x")
    refused(errors.InputNameError, lambda: exe.run({"x": x, "extra": x}), "extra")
    refused(errors.InputNameError, lambda: exe.run({}), "x")


def test_wrong_dtype(exe: ky.Executable) -> None:
    refused(errors.InputTypeError, lambda: exe.run({"x": np.zeros((2, 3))}), "float64", "float32", "x")
    refused(errors.InputTypeError, lambda: exe.run({"x": "words"}), "x")


def test_wrong_rank_and_wrong_fixed_dim(exe: ky.Executable) -> None:
    refused(errors.InputShapeError, lambda: exe.run({"x": np.zeros(3, np.float32)}), "x", "(3,)")
    refused(errors.InputShapeError, lambda: exe.run({"x": np.zeros((2, 4), np.float32)}), "x", "4", "3")


def test_an_executable_works_after_refusing(exe: ky.Executable) -> None:
    with pytest.raises(errors.InputShapeError):
        exe.run({"x": np.zeros((2, 4), np.float32)})
    assert np.asarray(exe.run({"x": np.full((2, 3), -1, np.float32)})["y"]).tolist() == [[0, 0, 0]] * 2


# --- backends ---------------------------------------------------------------------------------------------------------
def test_unknown_backend() -> None:
    refused(
        errors.UnknownBackendError,
        lambda: ky.compile(model(), backends=["dnl"]),
        "did you mean 'dnnl'",
        "install the package that brings it",
    )
    refused(errors.UnknownBackendError, lambda: ky.compile(model(), backends="dnnl"), "list")


def test_unknown_option_target_and_option_owner() -> None:
    refused(errors.TargetError, lambda: ky.compile(model(), target="cpuu"), "did you mean 'cpu'")
    refused(errors.OptionError, lambda: ky.compile(model(), options={"dnl": {}}), "did you mean 'dnnl'")
    refused(errors.OptionError, lambda: ky.compile(model(), options={"dnnl": {"speed": 9}}), "dnnl", "'speed'")
    refused(errors.OptionError, lambda: ky.compile(model(), options={"onnx": {"shape": {}}}), "did you mean 'shapes'")


MISSING_LIBRARY = """
import kernelyard as ky
info = next(info for info in ky.backends() if info.name == "dnnl")
print(info.state, info.reason)
try:
    ky.compile("m.onnx", backends=["dnnl"])
except ky.errors.BackendUnavailableError as error:
    print(error)
exe = ky.compile("m.onnx", backends="auto")
print("auto runs", exe([[-1.0, 2.0, 0.5]] and __import__("numpy").float32([[-1, 2, 0]])).numpy().tolist())
"""


def test_missing_library(tmp_path: Path) -> None:
    """A library that is not there makes its backend unavailable, with the reason and the pip line; the rest runs."""
    onnx.save(model(), tmp_path / "m.onnx")
    environment = {"KERNELYARD_DNNL_LIBRARY": str(tmp_path / "libdnnl.so.3"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", MISSING_LIBRARY]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unavailable")
    assert "KY302" in done.stdout
    assert "pip install" in done.stdout
    assert "auto runs [[0.0, 2.0, 0.0]]" in done.stdout


# --- artifacts --------------------------------------------------------------------------------------------------------
def test_artifact_of_a_newer_schema(artifact: Path) -> None:
    _rewrite_manifest(artifact, lambda manifest: manifest.update(schema=manifest["schema"] + 1))
    refused(errors.ArtifactVersionError, lambda: ky.load(artifact), "m.kyar")


def test_artifact_that_names_a_plugin_not_installed(artifact: Path) -> None:
    def rename(manifest: dict) -> None:
        for module in manifest["modules"]:
            module["kind"] = "acme"

    _rewrite_manifest(artifact, rename)
    refused(errors.MissingRuntimeError, lambda: ky.load(artifact), "acme", "pip install")


def _rewrite_manifest(artifact: Path, change: Callable[[dict], None]) -> None:
    """Change the manifest of an artifact as a later writer would have written it: all checks still hold."""
    contents = container.read_container(artifact)
    manifest = dict(contents.manifest.value)
    change(manifest)
    members = [container.Member(name, [data.data]) for name, data in contents.members.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "SCHEMA", manifest["schema"])
        container.write_container(artifact, manifest, members)


def test_every_byte_region_is_covered(artifact: Path) -> None:
    data = artifact.read_bytes()
    for position in range(0, len(data), max(1, len(data) // 200)):
        artifact.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        with pytest.raises(errors.ArtifactError):
            ky.load(artifact)
    artifact.write_bytes(data)
    assert ky.load(artifact).inputs[0].name == "x"


@pytest.mark.parametrize("content", [b"", b"PK", b"no artifact", b"\x00" * 1000])
def test_not_an_artifact(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.kyar"
    path.write_bytes(content)
    refused(errors.ArtifactCorruptedError, lambda: ky.load(path), "m.kyar")


def test_a_zip_that_is_no_artifact(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.kyar", "w") as file:
        file.writestr("evil.py", "raise SystemExit")
    refused(errors.ArtifactCorruptedError, lambda: ky.load(tmp_path / "m.kyar"), "m.kyar")


def test_failed_save_leaves_nothing_behind(exe: ky.Executable, tmp_path: Path) -> None:
    with pytest.raises((OSError, errors.ArtifactError)):
        exe.save(tmp_path / "no" / "such" / "folder" / "m.kyar")
    (tmp_path / "taken.kyar").mkdir()
    with pytest.raises((OSError, errors.ArtifactError)):
        exe.save(tmp_path / "taken.kyar")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.kyar"]
