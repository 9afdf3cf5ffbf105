"""Tables of the documentation that are made from the code: `pytest tests/docs --update-golden` writes them anew."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

import kernelyard as ky
from kernelyard.errors import KernelyardError
from kernelyard.ir import Op, all_ops
from kernelyard.ir.op import REQUIRED
from kernelyard.legalize import has_rule
from kernelyard.testing import op_cases
from kernelyard.transform.pipelines import get_pipeline, pipeline_names

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("kernelyard", "kernelyard_cublas", "kernelyard_cudnn", "kernelyard_cutlass", "kernelyard_dnnl"),
    *("kernelyard_native_cpu", "kernelyard_native_cuda", "kernelyard_onnx"),
)
ALIASES = ("reshape",)  # the same bytes under another shape: nothing runs


# --- errors -----------------------------------------------------------------------------------------------------------
@cache
def error_classes() -> tuple[type[KernelyardError], ...]:
    """Every class of the tree that our packages define, by code."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            importlib.import_module(module.name)
    ours = [c for c in _with_subclasses(KernelyardError) if c.__module__.partition(".")[0] in PACKAGES]
    return tuple(sorted(ours, key=lambda c: c.code))


def _with_subclasses(root: type[KernelyardError]) -> Iterator[type[KernelyardError]]:
    yield root
    for child in root.__subclasses__():
        yield from _with_subclasses(child)


def errors_table() -> str:
    """Code, class, what it means, where it lives."""
    rows = ["| code | error | what it says | module |", "|---|---|---|---|"]
    for c in error_classes():
        says = " ".join((c.__doc__ or "").split("\n\n")[0].split()).rstrip(".")
        rows.append(f"| {c.code} | `{c.__name__}` | {says} | `{c.__module__}` |")
    return "\n".join(rows)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [c.code for c in error_classes()]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    in_sources = {
        code
        for folder in (ROOT / "core", ROOT / "plugins")
        for path in folder.glob("**/src/**/*.py")
        for code in re.findall(r'code = "(KY\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert in_sources == set(codes) == set(re.findall(r"^\| (KY\d{3}) ", page, re.MULTILINE))


# --- operators --------------------------------------------------------------------------------------------------------
@cache
def taken_by_dnnl() -> dict[str, frozenset[str]]:
    """For each op of which dnnl takes at least one sample: the dtypes of the samples taken."""
    taken: dict[str, set[str]] = {}
    for case in op_cases():
        if any(row.backend == "dnnl" for row in ky.explain(case.module(), backends=["dnnl"]).placed):
            taken.setdefault(case.op.name, set()).update(type_.dtype for type_ in case.types)
    return {name: frozenset(dtypes) for name, dtypes in taken.items()}


def declared() -> list[Op]:
    """The vocabulary without the two calls that only the compiler makes."""
    return [op for op in all_ops() if not op.opaque_type]


def family(op: Op) -> str:
    """The module of `kernelyard.ops` that declares an op: that of its samples."""
    samples = op.samples.func if isinstance(op.samples, partial) else op.samples
    return samples.__module__.rpartition(".")[2]


def runner(op: Op) -> str:
    """Who runs what no library takes."""
    if op.name in ALIASES:
        return "nothing: an alias"
    return "native-cpu" if has_rule(op.name) else "reference"


def families_table() -> str:
    """By family: how many ops, and how many of them each can run."""
    rows = ["| operators | count | dnnl | native-cpu | reference |", "|---|---:|---:|---:|---:|"]
    by_family: dict[str, list[Op]] = {}
    for op in declared():
        by_family.setdefault(family(op), []).append(op)
    for name, ops in [*sorted(by_family.items()), ("all", declared())]:
        dnnl = sum(op.name in taken_by_dnnl() for op in ops)
        native = sum(has_rule(op.name) for op in ops)
        rows.append(f"| {name} | {len(ops)} | {dnnl} | {native} | {sum(op.reference is not None for op in ops)} |")
    dtypes = sorted(set.union(*(set(found) for found in taken_by_dnnl().values())))
    return "\n".join([*rows, "", f"dnnl takes {', '.join(dtypes)}; native-cpu and the reference take every dtype."])


def operators_table() -> str:
    """Every op with its operands, attributes, meaning, and what runs it."""
    rows = ["| operator | computes | attributes | dnnl | else |", "|---|---|---|---|---|"]
    for op in declared():
        attributes = ", ".join(
            f"{name}: {a.kind}" + ("" if a.default is REQUIRED else f" = {a.default!r}")
            for name, a in op.attributes.items()
        )
        summary = op.summary.replace("|", "\\|")
        dnnl = "yes" if op.name in taken_by_dnnl() else ""
        rows.append(f"| `{op.name}({', '.join(op.inputs)})` | {summary} | {attributes} | {dnnl} | {runner(op)} |")
    return "\n".join(rows)


# --- passes -----------------------------------------------------------------------------------------------------------
def pipelines_table() -> str:
    """Named pipelines and their passes in order."""
    rows = ["| pipeline | passes, in order |", "|---|---|"]
    for name in pipeline_names():
        rows.append(f"| `{name}` | {', '.join(f'`{each.name}`' for each in get_pipeline(name).passes)} |")
    return "\n".join(rows)


# --- pages ------------------------------------------------------------------------------------------------------------
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "families"): families_table,
    ("docs/architecture.md", "pipelines"): pipelines_table,
    ("docs/errors.md", "errors"): errors_table,
    ("docs/operators.md", "operators"): operators_table,
}


@pytest.mark.parametrize(("page", "name"), TABLES, ids=lambda value: value)
def test_table_is_what_the_code_says(page: str, name: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    assert len(marked.findall(text)) == 1, f"{page} needs one place for the table {name!r}"
    now = marked.sub(lambda found: f"{found[1]}\n{TABLES[page, name]()}\n{found[2]}", text)
    if request.config.getoption("--update-golden"):
        path.write_text(now, encoding="utf-8")
        return
    assert text == now, "differs from the code; pytest tests/docs --update-golden rewrites it"


# --- pages of plugins -------------------------------------------------------------------------------------------------
def words(page: str) -> set[str]:
    """The code spans of a page."""
    return set(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8")))


def test_the_dnnl_page_names_every_pattern_and_every_code() -> None:
    from kernelyard_dnnl.patterns import fusion_patterns

    source = (ROOT / "plugins/dnnl/src/kernelyard_dnnl/checks.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'Decline\(\s*"([a-z-]+)"', source))
    assert {"dtype", "reference-implementation"} <= codes
    named = words("plugins/dnnl/README.md")
    assert {pattern.name for pattern in fusion_patterns()} == {word for word in named if word.startswith("dnnl.")}
    assert codes <= named


@pytest.mark.parametrize("plugin", ["onnx", "dnnl", "native-cpu", "cublas"])
def test_a_page_names_every_option(plugin: str) -> None:
    (path,) = (ROOT / "plugins" / plugin).glob("src/*/manifest.toml")
    options = tomllib.loads(path.read_text(encoding="utf-8")).get("options", [])
    assert set(options) <= words(f"plugins/{plugin}/README.md")
