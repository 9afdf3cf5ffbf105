"""What is installed is found as `importlib.metadata` finds it, without importing it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from kernelyard.errors import DeviceError
from kernelyard.runtime.device.device import Device
from kernelyard.runtime.installed import distributions
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of, find


def installed_as(folder: Path, name: str, version: str = "1.0", **files: str) -> Path:
    """Metadata in a folder on `sys.path`, as pip writes it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n\nText")
    for file, text in files.items():
        (info / file).write_text(text)
    return info


def test_all_that_is_installed_here_is_found_with_name_and_version() -> None:
    expected = {
        distributions.normalize_name(d.name): (d.name, d.version) for d in reversed(list(metadata.distributions()))
    }
    assert {each.key: (each.name, each.version) for each in distributions.iterate_distributions()} == expected


@pytest.mark.parametrize("group", ["kernelyard", "kernelyard.runtime", "console_scripts", "pytest11"])
def test_entry_points_are_those_of_the_standard_library(group: str) -> None:
    expected = sorted(
        (e.name, e.value, e.dist.name, e.dist.version) for e in metadata.entry_points(group=group) if e.dist
    )
    assert sorted((e.name, e.value, *distribution_of(e)) for e in find(group).entries) == expected


def test_the_first_of_two_on_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("a", "2.0"), ("b", "1.0")):
        entries = f"[some.group]\nname = package_{folder}\n"
        installed_as(tmp_path / folder, "twice_there", version, **{"entry_points.txt": entries})
        monkeypatch.syspath_prepend(tmp_path / folder)
    (entry,) = find("some.group").entries
    assert (entry.value, distribution_of(entry)) == ("package_b", ("twice-there", "1.0"))


def test_sections_comments_and_lines_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# words\n[other]\nno entry\n[wanted]\n a = m.n : o [extra]\n# b = c\n\n[last]\nd = e\n"
    installed_as(tmp_path, "good_one", **{"entry_points.txt": text})
    installed_as(tmp_path, "bad_one", **{"entry_points.txt": "[wanted]\nthis is none\n"})
    monkeypatch.syspath_prepend(tmp_path)
    found = find("wanted")
    assert [(each.name, each.module) for each in found.entries] == [("a", "m.n")]
    assert found.unreadable == (("bad-one", "its entry_points.txt cannot be read: 'this is none' is no entry point"),)


def test_metadata_that_cannot_be_read_takes_nothing_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = installed_as(tmp_path, "odd_one")
    (info / "entry_points.txt").mkdir()
    (info / "METADATA").write_bytes(b"\xff\xfe\x00")
    monkeypatch.syspath_prepend(tmp_path)
    odd = distributions.find_distribution("odd.one")
    assert odd is not None
    assert (odd.name, odd.version, odd.files("library.so")) == ("unknown", "", [])
    assert find("kernelyard.runtime").entries


def test_files_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = '../../lib/libx.so.3,sha256=a,1\n"x, y/libx.so.3",,\nx/libx.so.31,sha256=b,1\n'
    installed_as(tmp_path / "lib" / "site", "with_library", RECORD=record)
    monkeypatch.syspath_prepend(tmp_path / "lib" / "site")
    found = distributions.find_distribution("With-Library")
    assert found is not None
    assert found.files("libx.so.3") == [str(tmp_path / "lib/libx.so.3"), str(tmp_path / "lib/site/x, y/libx.so.3")]


def test_the_line_that_installs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = installed_as(tmp_path, "kernelyard", "9.9")
    header = (info / "METADATA").read_text().partition("\n\n")[0]
    (info / "METADATA").write_text(f"{header}\nProvides-Extra: cpu\nProvides-Extra: npu\n\nProvides-Extra: vpu")
    monkeypatch.syspath_prepend(tmp_path)
    lines = [distributions.install_line(kind) for kind in ("npu", "vpu")]
    assert lines == ["pip install 'kernelyard[npu]'", None]
    with pytest.raises(DeviceError, match=r"pip install 'kernelyard\[npu\]'"):
        Device("npu").open()


def test_an_archive_on_the_path_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_archive-3.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: in-archive\nVersion: 3.0\n\n")
        file.writestr("in_archive-3.0.dist-info/entry_points.txt", "[some.group]\nname = package\n")
    monkeypatch.syspath_prepend(archive)
    (entry,) = find("some.group").entries
    assert (entry.value, distribution_of(entry)) == ("package", ("in-archive", "3.0"))


@pytest.mark.parametrize(
    "value", ["os", "os.path", "os.path:join", "collections : abc.Mapping", "os.path:join [extra]"]
)
def test_an_entry_point_loads_what_the_standard_library_loads(value: str) -> None:
    assert EntryPoint("name", value).load() is metadata.EntryPoint("name", value, "group").load()


def test_finding_entry_points_does_not_import_the_standard_library_s() -> None:
    code = "import sys; from kernelyard.runtime.installed.entry_points import find; assert find('kernelyard.runtime').entries"
    check = "; assert 'importlib.metadata' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
