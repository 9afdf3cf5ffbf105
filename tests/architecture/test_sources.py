"""The shape of the sources: sizes, folders, errors, hooks."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from distributions import Distribution, core, plugins
from repository import CORE, DISTRIBUTIONS, INSTALLED, PLUGINS, ROOT, TEMPLATE, fresh, modules, sources

from kernelyard.errors import KernelyardError
from kernelyard.plugins import hookspecs
from kernelyard.plugins.hookspecs import HOOK_OF_PART
from kernelyard.plugins.interfaces.manifest import read_manifest
from kernelyard.target import Target

MAX_LINES_OF_FILE = 400
MAX_LINES_OF_FUNCTION = 60
MAX_BRANCHES_OF_FUNCTION = 15
MAX_LINES_OF_HOOKS = 40
each_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda each: each.folder.name)
each_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda each: each.folder.name)


def package_of(plugin: Distribution) -> Path:
    """Return the folder of the package that has the hooks."""
    (hooks,) = plugin.entry_points["kernelyard"].values()
    return plugin.source.joinpath(*hooks.split(".")[:-1])


# --- sizes ------------------------------------------------------------------------------------------------------------
def test_files_are_short() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES_OF_FILE} == {}


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_LINES_OF_FUNCTION
    }
    assert long == {}


def branches(function: ast.FunctionDef) -> int:
    """Return the cyclomatic complexity as radon counts it, with functions inside.

    Ruff's C901 leaves out `and`, `or`, conditional expressions and comprehensions, and these are where density is.
    """
    each_one = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.comprehension)
    nodes = list(ast.walk(function))
    operators = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    filters = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    return 1 + sum(isinstance(node, each_one) for node in nodes) + operators + filters


def test_functions_have_few_branches() -> None:
    dense = {
        f"{path.stem}.{node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and branches(node) > MAX_BRANCHES_OF_FUNCTION
    }
    assert dense == set()


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = {
        f"{path.relative_to(ROOT)}:{number}": line.strip()
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    }
    assert found == {}


def test_the_core_names_no_distribution_of_a_plugin() -> None:
    names = [package_of(plugin).name for plugin in PLUGINS if plugin != TEMPLATE]
    named = re.compile("|".join(name.replace("_", "[-_]") for name in names))
    assert [path.name for path in CORE.rglob("*.py") if named.search(path.read_text(encoding="utf-8"))] == []


def test_every_module_says_what_it_is() -> None:
    empty = [
        path for path in sources() if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert [path.relative_to(ROOT).as_posix() for path in empty if TEMPLATE.folder not in path.parents] == []


# --- errors -----------------------------------------------------------------------------------------------------------
def test_every_error_has_a_code_of_its_own() -> None:
    for name in modules():
        if not name.endswith("__main__"):
            importlib.import_module(name)
    classes = [c for c in descendants(KernelyardError) if c.__module__.startswith("kernelyard")]
    own = [c for c in classes if c.__module__ != "kernelyard.testing"]
    assert [c for c in own if "code" not in vars(c)] == []
    assert [code for code, count in Counter(c.code for c in [KernelyardError, *own]).items() if count > 1] == []
    assert [c for c in own if not re.fullmatch(r"KY\d{3}", c.code)] == []


def descendants(base: type) -> list[type]:
    return [c for child in base.__subclasses__() for c in (child, *descendants(child))]


# --- hooks ------------------------------------------------------------------------------------------------------------
def hooks() -> dict[str, object]:
    return {
        name: function
        for name, function in vars(hookspecs).items()
        if hasattr(function, f"{hookspecs.PROJECT}_spec") and callable(function)
    }


def test_every_hook_is_documented_and_belongs_to_a_part() -> None:
    assert sorted(hooks()) == sorted(HOOK_OF_PART.values())
    for function in hooks().values():
        assert inspect.getdoc(function)


def test_every_hook_is_tried() -> None:
    """Each is implemented by a plugin of ours, whose tests use it, and by a test of the plugin manager or the driver."""
    tests = "".join(
        path.read_text() for folder in ("plugins", "driver", "cli") for path in (ROOT / "tests" / folder).glob("*.py")
    )
    implemented = "".join((package_of(plugin) / "plugin.py").read_text() for plugin in PLUGINS if plugin in INSTALLED)
    for part, hook in HOOK_OF_PART.items():
        assert f"def {hook}(" in implemented
        assert hook in tests or f'"{part}"' in tests


# --- plugins ----------------------------------------------------------------------------------------------------------
def test_what_make_installs_is_there() -> None:
    assert {plugin.name for plugin in plugins() if not plugin.optional} <= {plugin.name for plugin in INSTALLED}


@each_distribution
def test_distributions_have_the_same_shape(distribution: Distribution) -> None:
    packages = [package for package in distribution.packages if package.name != "kernelyard"]  # that one is the core's
    expected = [distribution.folder / "README.md", *(package / "__init__.py" for package in packages)]
    assert [path.relative_to(ROOT).as_posix() for path in expected if not path.exists()] == []
    assert list((distribution.folder / "tests").glob("test_*.py"))
    assert any(re.match(r"kernelyard\b", requirement) for requirement in distribution.project["dependencies"])
    assert ("kernelyard" in distribution.entry_points) == (distribution.manifest is not None)


def test_pytest_loads_nothing_of_ours_unless_the_kit_for_tests_is_installed() -> None:
    registered = [each.name for each in (core(), *DISTRIBUTIONS) if "pytest11" in each.entry_points]
    assert registered == ["kernelyard-testing"]
    needed = [
        each.name for each in (core(), *DISTRIBUTIONS) for need in each.project["dependencies"] if "testing" in need
    ]
    assert needed == []


@each_plugin
def test_plugins_have_the_same_shape(plugin: Distribution) -> None:
    ((name, hooks),) = plugin.entry_points["kernelyard"].items()
    package = package_of(plugin)
    assert plugin.name == f"kernelyard-{name}"
    assert hooks in {f"{module}.plugin" for module in plugin.modules}
    assert (package / "plugin.py").exists()
    assert plugin.manifest is not None
    assert plugin.manifest["name"] == name
    runs = {"backend", "code_generator"} & set(plugin.manifest["provides"])
    assert bool(runs) == ("kernelyard.runtime" in plugin.entry_points)
    assert bool(runs) == (package / "runtime.py").exists()
    assert ("backend" in runs) <= (package / "patterns.py").exists()


@each_plugin
def test_hooks_are_a_few_lines(plugin: Distribution) -> None:
    assert len((package_of(plugin) / "plugin.py").read_text().splitlines()) < MAX_LINES_OF_HOOKS


@pytest.mark.parametrize("plugin", [each for each in PLUGINS if each in INSTALLED], ids=lambda each: each.folder.name)
def test_importing_the_hooks_is_cheap(plugin: Distribution) -> None:
    (hooks,) = plugin.entry_points["kernelyard"].values()
    fresh(f"import {hooks}, sys; assert not {{'numpy', 'onnx', 'llvmlite', 'kernelyard.ir'}} & set(sys.modules)")


class ReadOptions(dict[str, Any]):
    """Options of a compile, none of them given; `read` are those that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return default


@pytest.mark.parametrize("plugin", [each for each in PLUGINS if each in INSTALLED], ids=lambda each: each.folder.name)
def test_the_manifest_names_the_options_that_are_read(plugin: Distribution) -> None:
    """Those of backends and code generators: a name that the manifest lacks is refused before it reaches them."""
    manifest = read_manifest(f"{package_of(plugin).name}.plugin")
    module = importlib.import_module(f"{package_of(plugin).name}.plugin")
    options = ReadOptions()
    if "backend" in manifest.provides:
        module.kernelyard_backend().configured(options)
        module.kernelyard_backend().codegen([], options)
    if "code_generator" in manifest.provides:
        module.kernelyard_code_generator().generate({}, Target(manifest.targets[0]), options)
    if "frontend" not in manifest.provides:
        assert options.read == set(manifest.options)


def test_the_manifest_names_the_options_that_the_frontend_takes() -> None:
    from kernelyard_onnx.options import NAMES

    assert set(read_manifest("kernelyard_onnx.plugin").options) == set(NAMES)
