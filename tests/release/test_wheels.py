"""Wheels of all distributions: the same bytes from the same sources, and what stands beside them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from distributions import ROOT, core, distributions
from packaging.requirements import Requirement
from release import ReleaseError, prepare_release, start_next
from wheels import BILL, DIGESTS, build_wheels

KEPT = ROOT / "tests" / "plugins" / "kept_2_0"


def copy_of_the_sources(folder: Path, plugins: tuple[str, ...] = ("*",)) -> Path:
    """Return a copy of what wheels are built from: the core and the plugins of these names."""
    unwanted = shutil.ignore_patterns("__pycache__", "tests", "*.egg-info")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "core", folder / "core", ignore=unwanted)
    for path in {each for name in (*plugins, "_template") for each in ROOT.glob(f"plugins/{name}")}:
        shutil.copytree(path, folder / "plugins" / path.name, ignore=None if path.name == "_template" else unwanted)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        build_wheels(folder)
    return folder


def test_each_distribution_has_a_wheel_for_every_python_and_cpu(built: Path) -> None:
    found = {path.name for path in built.glob("*.whl")}
    assert found == {
        f"{each.name.replace('-', '_')}-{each.project['version']}-py3-none-any.whl" for each in distributions()
    }


def test_other_folder_user_and_day_give_the_same_bytes(built: Path, tmp_path: Path, monkeypatch) -> None:
    """The copy has other dates of files, other permissions, and lies elsewhere."""
    copied = copy_of_the_sources(tmp_path, ("llvm", "native-cpu", "serve"))
    for path in copied.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (0, 0))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name, wheel in build_wheels(tmp_path / "dist", copied).items():
        assert wheel.read_bytes() == (built / wheel.name).read_bytes(), name


def test_the_digests_are_those_of_the_files(built: Path) -> None:
    lines = (built / DIGESTS).read_text().splitlines()
    assert len(lines) == len(distributions()) + 1
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == digest


def test_the_bill_of_materials_names_each_part_once_with_licence_and_digest(built: Path) -> None:
    bill = json.loads((built / BILL).read_text())
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    for each in distributions():
        part = parts[each.name]
        wheel = built / f"{each.name.replace('-', '_')}-{part['version']}-py3-none-any.whl"
        assert part["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
        assert part["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    needed = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert "numpy" in needed["kernelyard"]
    assert parts["numpy"]["scope"] == "required"
    assert {name for names in needed.values() for name in names} <= set(parts)


def test_the_extra_for_cpus_brings_all_that_a_model_needs() -> None:
    names = {Requirement(each).name for each in core().project["optional-dependencies"]["cpu"]}
    assert names == {"kernelyard-dnnl", "kernelyard-native-cpu", "kernelyard-onnx"}


# --- a release --------------------------------------------------------------------------------------------------------
def test_a_release_sets_all_versions_and_dates_the_changelog(tmp_path: Path) -> None:
    root = copy_of_the_sources(tmp_path)
    prepare_release("0.7.0", "2030-01-02", root)
    assert {each.project["version"] for each in distributions(root)} == {"0.7.0"}
    assert '__version__ = "0.7.0"' in (root / "core/src/kernelyard/__init__.py").read_text()
    assert "## 0.7.0, 2030-01-02\n" in (root / "CHANGELOG.md").read_text()
    asked = {Requirement(text) for each in distributions(root) for text in each.project.get("dependencies", ())}
    ours = {str(each.specifier) for each in asked if each.name == "kernelyard"}
    assert ours == {"<1,>=0.7"}


def test_after_a_release_the_next_begins(tmp_path: Path) -> None:
    root = copy_of_the_sources(tmp_path, ("llvm",))
    prepare_release("0.7.0", "2030-01-02", root)
    with pytest.raises(ReleaseError, match="nothing to release"):
        prepare_release("0.8.0", "2030-01-03", root)
    start_next("0.8.0", root)
    with pytest.raises(ReleaseError, match=r"0\.6\.9 is not newer than 0\.7\.0"):
        prepare_release("0.6.9", "2030-01-03", root)
    assert prepare_release("0.8.0", "2030-01-03", root)


def test_a_version_that_is_none_changes_nothing(tmp_path: Path) -> None:
    root = copy_of_the_sources(tmp_path, ("llvm",))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(ReleaseError, match="'next' is no version"):
        prepare_release("next", "2030-01-02", root)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


UPGRADED = """
import numpy as np
import kernelyard as ky
from importlib.metadata import version

assert (ky.__version__, version("kernelyard"), version("kernelyard-native-cpu")) == ("0.7.0", "0.7.0", "0.7.0")
(kept,) = (info for info in ky.backends() if info.name == "kept")
assert kept.state == "active", kept.reason
exe = ky.load({artifact!r})
print(np.asarray(exe(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))).tolist())
"""


def test_the_next_release_runs_a_plugin_and_an_artifact_of_before(tmp_path: Path) -> None:
    """The wheels of the next minor version, installed; the plugin and the artifact are kept as they were."""
    root = copy_of_the_sources(tmp_path, ("llvm", "native-cpu"))
    prepare_release("0.7.0", "2030-01-02", root)
    installed = tmp_path / "installed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        for wheel in build_wheels(tmp_path / "dist", root).values():
            zipfile.ZipFile(wheel).extractall(installed)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (installed, KEPT)))}
    artifact = str(KEPT / "network.kyar")
    command = [sys.executable, "-W", "error", "-c", UPGRADED.format(artifact=artifact)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    random = np.random.default_rng(0)  # the weights of tests/plugins/test_compatibility.py
    w, bias, v = (random.standard_normal(shape, dtype=np.float32) for shape in ((4, 8), (8,), (8, 2)))
    feed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(json.loads(done.stdout), np.tanh(np.maximum(feed @ w + bias, 0)) @ v, rtol=1e-5)
