"""Make a Python for 64-bit ARM that runs on this machine, in an emulator: `.aarch64/python`.

Debian's packages of Python and of its libraries are unpacked into a folder, wheels for aarch64 beside them, and the
distributions of this checkout. Nothing of the system changes: apt works with an architecture and lists of its own. It
needs Debian, its package qemu-user, and a network for apt and pip.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from distributions import ROOT, distributions
from packaging.requirements import Requirement
from wheels import build_wheels

FOLDER = ROOT / ".aarch64"
EMULATOR = "qemu-aarch64"
PACKAGES = ["python3", "libstdc++6", "libgomp1"]
OURS = ("kernelyard", "kernelyard-llvm", "kernelyard-native-cpu", "kernelyard-onnx")
FOR_TESTS = ("pillow",)
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28, 31, 34)))
APT = """\
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "{0}/state";
Dir::State::status "{0}/state/status";
Dir::Cache "{0}/cache";
"""
# A process that starts `sys.executable` must start the emulator, too.
SITE = "import os\nimport sys\n\nsys.executable = os.environ['KERNELYARD_AARCH64_PYTHON']\n"
WRAPPER = """\
#!/bin/sh
export KERNELYARD_AARCH64_PYTHON={folder}/python PYTHONPATH={folder}/site:$PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
exec {emulator} -cpu ${{KERNELYARD_AARCH64_CPU:-max}} -L {folder}/root {program} "$@"
"""


def main() -> int:
    """Make it, or install the distributions of this checkout in the one that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if shutil.which(EMULATOR) is None:
        print("there is no emulator of aarch64: apt-get install qemu-user", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / "python").exists():
        make_root(FOLDER)
        install(FOLDER)
        write_wrapper(FOLDER)
    update(FOLDER)
    return 0


def make_root(folder: Path) -> None:
    """Unpack Python and its libraries into `folder`/root."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "state/status").touch()
    (folder / "apt.conf").write_text(APT.format(folder), encoding="utf-8")
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
    _run(["apt-get", "update", "-qq"], environment)
    _run(["apt-get", "install", "-y", "-qq", "--download-only", *PACKAGES], environment)
    for package in sorted(folder.glob("cache/archives/*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder / "root")])


def install(folder: Path) -> None:
    """Install wheels for aarch64 into `folder`/site: what the distributions require, and what their tests do."""
    ours = [each for each in distributions() if each.name in OURS]
    asked = [text for each in ours for text in each.project["dependencies"] if Requirement(text).name not in OURS]
    # As here: releases of Pillow differ in the last digit of a resized image, and tests compare with this machine.
    for_tests = [f"{name}=={version(name)}" for name in FOR_TESTS]
    chosen = [argument for platform in PLATFORMS for argument in ("--platform", platform)]
    chosen += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", _python(folder).name[6:]]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
    _run([*pip, "--target", str(folder / "site"), *chosen, *asked, *for_tests])


def update(folder: Path) -> None:
    """Put the distributions of this checkout into `folder`/site in place of those that are there."""
    for old in folder.glob("site/kernelyard*"):
        shutil.rmtree(old)
    wheels = build_wheels(folder / "dist")
    for name in OURS:
        shutil.unpack_archive(wheels[name], folder / "site", "zip")


def write_wrapper(folder: Path) -> None:
    """Write the program that starts Python in the emulator."""
    (folder / "site/sitecustomize.py").write_text(SITE, encoding="utf-8")
    text = WRAPPER.format(folder=folder, emulator=EMULATOR, program=_python(folder))
    (folder / "python").write_text(text, encoding="utf-8")
    (folder / "python").chmod(0o755)


def _python(folder: Path) -> Path:
    (program,) = folder.glob("root/usr/bin/python3.[0-9]*[0-9]")
    return program


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
