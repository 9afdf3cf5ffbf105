"""The recipes of CONTRIBUTING.md: their diffs apply to the sources as they are, and what they add works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = "tests/docs/test_generated.py"
DIFF_BLOCK = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECK_OP = """
import kernelyard as ky
from kernelyard.testing import assert_conforms, op_cases
from kernelyard_onnx.registry import operators
assert "SquaredRelu" in operators()
for case in op_cases(["nn.squared_relu"]):
    assert_conforms(case, lambda module, inputs: [ky.compile(module, backends=["native-cpu"])(*inputs)])
"""
CONFIGS = """
import json, sys
sys.path.insert(0, "tools")
import lint
print(json.dumps({"types": lint.types_config(), "imports": lint.imports_config()}))
"""


@dataclass(frozen=True)
class Hunk:
    """Lines of a file and what takes their place; a new file has no old lines."""

    path: str
    old: str
    new: str


def hunks(page: str, title: str) -> Iterator[Hunk]:
    """The changes that a section of the page asks for."""
    section = page.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    for block in DIFF_BLOCK.findall(section):
        for change in re.split(r"^--- .*\n", block, flags=re.MULTILINE)[1:]:
            path, _, body = change.partition("\n")
            for hunk in re.split(r"^@@\n", body, flags=re.MULTILINE)[1:]:
                lines = hunk.splitlines(keepends=True)
                old = "".join(line[1:] or "\n" for line in lines if line[0] in " -")
                new = "".join(line[1:] or "\n" for line in lines if line[0] in " +")
                yield Hunk(path.removeprefix("+++ b/"), old, new)


def apply(folder: Path, changes: Iterator[Hunk]) -> set[str]:
    """Make the changes; the old lines must be there, once. Returns the paths."""
    touched = set()
    for hunk in changes:
        path = folder / hunk.path
        before = path.read_text(encoding="utf-8") if hunk.old else ""
        assert bool(hunk.old) == path.exists(), hunk.path
        assert not hunk.old or before.count(hunk.old) == 1, f"{hunk.path} has no single\n{hunk.old}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before.replace(hunk.old, hunk.new) if hunk.old else hunk.new, encoding="utf-8")
        touched.add(hunk.path)
    return touched


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    tests = (f"tests/{folder}" for folder in ("docs", "helpers", "legalize", "ops", "transform"))
    for folder in ("core", "docs", "plugins", "tools", *tests):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    for file in ("CONTRIBUTING.md", "Makefile", "README.md", "conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def run(tree: Path, *arguments: str, site: Path | None = None) -> str:
    """What Python prints with the copy in front of what is installed; it must succeed."""
    sources = [tree / "core/src", *tree.glob("plugins/[a-z]*/src"), *([site] if site else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def page() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_an_operator(page: str, tree: Path) -> None:
    assert len(apply(tree, hunks(page, "An operator"))) == 3
    run(tree, "-c", CHECK_OP)
    tests = ("tests/ops/test_declarations.py", "tests/legalize/test_rules.py")
    shown = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "squared_relu", *tests)
    assert " passed" in shown


def test_a_pass(page: str, tree: Path) -> None:
    assert len(apply(tree, hunks(page, "A pass"))) == 3
    test = "tests/transform/simplify/test_remove_repeated_rounding.py"
    assert "5 passed" in run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", test)
    names = "from kernelyard.transform.pipelines import get_pipeline; print(get_pipeline('simplify').passes)"
    assert "remove_repeated_rounding" in run(tree, "-c", names)


def test_a_pattern(page: str, tree: Path, template_site: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert len(apply(tree, hunks(page, "A pattern"))) == 3
    site = tmp_path_factory.mktemp("changed")
    shutil.copytree(template_site, site, dirs_exist_ok=True)
    shutil.copytree(tree / "plugins/_template/src", site, dirs_exist_ok=True)
    shown = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "plugins/_template/tests/test_acme.py", site=site)
    assert "4 passed" in shown


def test_a_primitive(page: str, tree: Path) -> None:
    assert len(apply(tree, hunks(page, "A primitive of oneDNN"))) == 3
    tests = ("plugins/dnnl/tests/test_prelu.py", "plugins/dnnl/tests/test_coverage.py")
    shown = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "prelu or every_pattern", *tests)
    assert "3 passed" in shown
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", GENERATED, "-k", "primitives", "--update-golden")
    assert "| `dnnl.prelu` |" in (tree / "plugins/dnnl/README.md").read_text(encoding="utf-8")


ERROR = """

class LayerError(Exception):
    \"\"\"A layer that ACME refuses.\"\"\"

    code = "KY999"
"""
TABLES_OF_PLUGINS = (
    ("README.md", "[`kernelyard-acme`](plugins/acme/README.md)"),
    ("docs/architecture.md", "| `plugins/acme/` | `kernelyard_acme` | backend | cpu |"),
    ("docs/errors.md", "</a>KY999 | `LayerError` | A layer that ACME refuses | `kernelyard_acme.codegen` |"),
)


def test_a_backend(tree: Path) -> None:
    """A folder is enough: it is installed, type-checked, held to the import contracts, and in the documentation."""
    shutil.copytree(tree / "plugins/_template", tree / "plugins/acme")
    with (tree / "plugins/acme/src/kernelyard_acme/codegen.py").open("a", encoding="utf-8") as file:
        file.write(ERROR)
    command = ["make", "--dry-run", "install", f"PYTHON={sys.executable}"]
    shown = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    (everything,) = [line for line in shown.splitlines() if "./plugins/torch" in line]
    (tested,) = [line for line in shown.splitlines() if "./plugins/acme" in line and line != everything]
    assert "./plugins/acme" in everything.split()
    assert "_template" not in shown
    projects = {
        f"./plugins/{path.parent.name}": path.read_text() for path in tree.glob("plugins/[a-z]*/pyproject.toml")
    }
    assert projects.keys() - tested.split() == {name for name, text in projects.items() if "optional = true" in text}
    configs = json.loads(run(tree, "-c", CONFIGS))
    assert "plugins/acme/src" in configs["types"]["include"]
    assert "plugins/acme/src" in configs["types"]["extraPaths"]
    assert "kernelyard_acme" in configs["imports"]["root_packages"]
    contracts = {each["name"]: each for each in configs["imports"]["contracts"]}
    assert "kernelyard_acme" in contracts["plugins do not know each other"]["modules"]
    libraries = [each for name, each in contracts.items() if name.endswith("imports only the plugins that it requires")]
    assert libraries
    assert all("kernelyard_acme" in each["forbidden_modules"] for each in libraries)
    arguments = ("-q", "-p", "no:cacheprovider", GENERATED, "-k", "packages or plugins or errors")
    run(tree, "-m", "pytest", *arguments, "--update-golden")
    for page, row in TABLES_OF_PLUGINS:
        assert row in (tree / page).read_text(encoding="utf-8")
