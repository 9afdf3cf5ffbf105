"""What the tests of the documentation share: the pages, and an installation of the template."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def template_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the template, as a vendor's users would."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(site), str(ROOT / "plugins" / "_template")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return site


@pytest.fixture
def environment(template_site: Path) -> dict[str, str]:
    """Variables of a process that has the template installed."""
    return environment_with(template_site)


def environment_with(site: Path) -> dict[str, str]:
    """Variables of a process that finds what a folder has installed, and none of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path}
