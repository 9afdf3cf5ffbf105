"""Programs in `.pt2` files, and modules with example inputs."""

from __future__ import annotations

import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.errors import FrontendError, KernelyardError, ModelFormatError, UnsupportedOperatorError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from kernelyard_torch.model_sources import read_pt2  # noqa: E402


@pytest.fixture
def net() -> Any:
    layers = torch.nn.Linear(6, 5), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(5, 2)
    return torch.nn.Sequential(*layers)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def pt2(net: Any, tmp_path: Path) -> Path:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.randn(3, 6),)), path)
    return path


def expected(net: Any, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net.eval()(torch.from_numpy(x)).numpy()


# --- .pt2 files -------------------------------------------------------------------------------------------------------
def test_a_pt2_file_compiles(net: Any, pt2: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6), np.float32)
    exe = ky.compile(pt2)
    assert set(exe.report.coverage) <= {"dnnl", "native-cpu", "view"}
    np.testing.assert_allclose(exe(x).numpy(), expected(net, x), rtol=1e-5, atol=1e-6)


def test_the_command_line_takes_a_pt2_file(net: Any, pt2: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6), np.float32)
    artifact = pt2.with_suffix(".kyar")
    done = CliRunner().invoke(main, ["compile", str(pt2), "-o", str(artifact)])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(ky.load(artifact)(x).numpy(), expected(net, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 nearly"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"no \.pt2 archive"):
        ky.compile(path)


class _Touch:
    """Create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def with_member(source: Path, name: str, content: bytes) -> Path:
    """Copy an archive, with one member replaced or added; `name` is the end of a member's name."""
    result = source.with_name("changed.pt2")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        for each in names:
            if not each.endswith(name):
                new.writestr(each, old.read(each))
        root = names[0].partition("/")[0]
        new.writestr(next((each for each in names if each.endswith(name)), f"{root}/{name}"), content)
    return result


@pytest.mark.parametrize("member", ["data/constants/opaque_obj_0", "data/aotinductor/model/model.so"])
def test_members_that_run_code_are_refused(member: str, pt2: Path) -> None:
    with pytest.raises(ModelFormatError, match="runs code"):
        read_pt2(str(with_member(pt2, member, b"x")))


def test_a_pickle_of_weights_runs_no_code(pt2: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was_run"
    with zipfile.ZipFile(pt2) as archive:
        configs = [name for name in archive.namelist() if name.endswith("weights_config.json")]
        text = archive.read(configs[0])
        weight = next(name for name in archive.namelist() if "/weights/weight_" in name)
    pickled = with_member(pt2, configs[0], text.replace(b'"use_pickle": false', b'"use_pickle": true', 1))
    assert pickled.read_bytes() != pt2.read_bytes()
    evil = with_member(pickled.rename(pickled.with_name("pickled.pt2")), weight, pickle.dumps(_Touch(mark)))
    with pytest.raises(ModelFormatError, match="cannot load"):
        read_pt2(str(evil))
    assert not mark.exists()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_archives_are_refused_in_words(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),)), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with suppress(KernelyardError):  # a byte of a weight or of padding may change nothing that can be seen
        ky.compile(path, backends=[])


# --- modules ----------------------------------------------------------------------------------------------------------
def test_a_module_compiles_for_example_inputs(net: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 6), np.float32)
    exe = ky.compile(net.train(), options={"torch": {"example_inputs": torch.ones(3, 6)}})
    assert all(part.training for part in net.modules()), "its mode was changed"
    assert set(exe.report.coverage) <= {"dnnl", "native-cpu", "view"}
    np.testing.assert_allclose(exe(x).numpy(), expected(net, x), rtol=1e-5, atol=1e-6)


def test_sizes_stay_open(net: Any, rng: np.random.Generator) -> None:
    settings = {"example_inputs": (torch.ones(3, 6),), "dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    exe = ky.compile(net, options={"torch": settings})
    assert exe.inputs[0].shape == ("batch", 6)
    x = rng.standard_normal((7, 6), np.float32)
    np.testing.assert_allclose(exe(x).numpy(), expected(net, x), rtol=1e-5, atol=1e-6)


def test_inputs_by_name() -> None:
    class Model(torch.nn.Module):
        def forward(self, left: Any, *, right: Any) -> Any:
            return left - right

    ones = torch.ones(2)
    exe = ky.compile(Model(), backends=[], options={"torch": {"example_inputs": {"left": ones, "right": ones}}})
    assert [info.name for info in exe.inputs] == ["left", "right"]
    assert exe(right=np.float32([1, 1]), left=np.float32([3, 4])).numpy().tolist() == [2, 3]


def test_a_module_alone_is_refused_with_the_way_out(net: Any) -> None:
    with pytest.raises(FrontendError, match="example_inputs"):
        ky.compile(net)


def test_what_cannot_be_exported_is_said() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x * 2

    with pytest.raises(UnsupportedOperatorError, match=r"cannot export the module(.|\n)*Branches"):
        ky.compile(Branches(), options={"torch": {"example_inputs": torch.ones(2)}})


def test_example_inputs_are_for_modules_alone(pt2: Path) -> None:
    with pytest.raises(FrontendError, match=r"for an nn\.Module"):
        ky.compile(pt2, options={"torch": {"example_inputs": torch.ones(3, 6)}})
