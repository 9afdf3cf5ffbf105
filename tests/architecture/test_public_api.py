"""The public names, as the documentation gives them: they exist, with these parameters."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.ir import FunctionBuilder, IRModule

SIGNATURES = {
    "compile": [
        "model",
        "target='cpu'",
        "backends='auto'",
        "options=None",
        "require=None",
        "strict=False",
        "exclude_patterns=()",
        "precision='float32'",
        "pipeline=None",
        "instruments=()",
        "tune=None",
        "placement=None",
        "bounds=None",
    ],
    "explain": [
        "model",
        "target='cpu'",
        "backends='auto'",
        "options=None",
        "require=None",
        "strict=False",
        "exclude_patterns=()",
        "precision='float32'",
        "pipeline=None",
        "instruments=()",
        "placement=None",
        "bounds=None",
    ],
    "get_default_pipeline": ["target='cpu'"],
    "load": ["path", "threads=None"],
    "backends": [],
    "cpu": [],
    "cuda": ["index=0"],
    "VirtualMachine": ["executable", "device=None", "threads=None", "contexts=None"],
    "Cancellation.cancel": ["self"],
    "Executable.run": ["self", "feeds", "out=None", "timeout=None", "cancellation=None"],
    "Executable.run_async": ["self", "feeds", "out=None", "timeout=None"],
    "Executable.__call__": ["self", "*args", "**feeds"],
    "Executable.profile": ["self", "feeds", "calls=10", "device=None"],
    "Executable.save": ["self", "path", "variants=()"],
    "Target": ["kind", "arch=None", "mcpu=None", "deterministic=False"],
    "VirtualMachine.__getitem__": ["self", "name"],
    "VirtualMachine.set_instrument": ["self", "instrument"],
    "VirtualMachine.save_function": ["self", "name", "saved_name", "*args", "**feeds"],
    "VirtualMachine.time_evaluator": ["self", "name", "number=10", "repeat=1"],
    "Tensor.numpy": ["self"],
    "Report.to_json": ["self"],
}
FIELDS = {
    "region": ("backend", "pattern", "ops", "function"),
    "declined": ("backend", "pattern", "node", "op", "code", "message"),
    "info": ("name", "dist", "version", "api", "state", "reason"),
    "input": ("name", "shape", "dtype"),
}


def attribute(path: str) -> object:
    value: object = ky
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    found = inspect.signature(attribute(name)).parameters.values()
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [f"{stars.get(p.kind, '')}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}") for p in found]
    assert shown == SIGNATURES[name]


def test_every_public_name_exists_and_is_listed() -> None:
    for name in ky.__all__:
        assert getattr(ky, name) is not None
        assert name in dir(ky)
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        getattr(ky, "compil")  # noqa: B009


@pytest.mark.parametrize("name", ["nn", "testing"])
def test_a_package_of_another_distribution_names_its_pip_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(ky, name).__name__ == f"kernelyard.{name}"
    monkeypatch.delattr(ky, name)
    monkeypatch.setitem(sys.modules, f"kernelyard.{name}", None)  # as where nothing of that name is installed
    with pytest.raises(ModuleNotFoundError, match=f"pip install kernelyard-{name}"):
        getattr(ky, name)


def test_errors_have_a_base_with_a_code() -> None:
    assert ky.errors.KernelyardError.code == "KY000"


def test_an_executable_and_its_report(tmp_path) -> None:
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (2, 4)), np.eye(4, dtype=np.float32))
    exe = ky.compile(IRModule({"main": b.function(b.op("cumsum", product, axis=1))}), backends=["dnnl"])
    x = np.ones((2, 4), np.float32)
    tensor = exe(x)
    assert isinstance(tensor, ky.Tensor)
    assert np.array_equal(np.asarray(tensor), tensor.numpy())
    assert np.array_equal(exe.run({"x": x})["output_0"], tensor)
    assert all(hasattr(info, field) for info in (*exe.inputs, *exe.outputs) for field in FIELDS["input"])
    assert exe.metadata == {}
    assert isinstance(exe.report, ky.Report)
    assert all(hasattr(region, field) for region in exe.report.regions for field in FIELDS["region"])
    assert all(hasattr(entry, field) for entry in exe.report.declined for field in FIELDS["declined"])
    assert set(exe.report.coverage["dnnl"]) == {
        "ops", "flops", "bytes", "ops_fraction", "flops_fraction", "bytes_fraction",
    }  # fmt: skip
    exe.save(tmp_path / "m.kyar")
    machine = ky.VirtualMachine(ky.load(tmp_path / "m.kyar"), ky.cpu())
    assert np.array_equal(machine["main"](x), tensor)


def test_backends_have_their_facts() -> None:
    for info in ky.backends():
        assert all(isinstance(getattr(info, field), str) for field in FIELDS["info"])


def test_devices_and_targets() -> None:
    assert str(ky.Target("cuda", arch="sm_90")) == "cuda arch=sm_90"
    assert (ky.cpu().kind, ky.cuda(1).index, ky.cuda("emulator").index) == ("cpu", 1, "emulator")


def test_partition_functions_exist_for_every_backend() -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
    assert len(ky.partition_for_dnnl(module).functions) > 1
    with pytest.raises(ky.errors.UnknownBackendError):
        ky.partition_for_acme(module)
