"""Tables of the documentation that are made from the code: `pytest tests/docs --update-golden` writes them anew."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pkgutil import resolve_name
from typing import NamedTuple

import pytest
from distributions import ROOT, Distribution, core, distributions, plugins
from packaging.requirements import Requirement

import kernelyard as ky
from kernelyard.ir import Op, all_ops
from kernelyard.ir.op import REQUIRED
from kernelyard.legalize import has_rule
from kernelyard.testing import op_cases
from kernelyard.transform.pass_infra.pass_base import Pass, Repeat, Sequential, WhereChanged
from kernelyard.transform.pipelines import get_pipeline, pipeline_names, purpose_of

ALIASES = ("reshape",)  # the same bytes under another shape: nothing runs


# --- errors -----------------------------------------------------------------------------------------------------------
CODE = re.compile(r"^\s+code\b.*KY\d{3}", re.MULTILINE)


class ErrorClass(NamedTuple):
    """A class with a code, as its source has it: what it needs to be imported need not be installed."""

    code: str
    name: str
    says: str
    module: str


@cache
def error_classes() -> tuple[ErrorClass, ...]:
    """Return every error class that core and plugins define, by code."""
    return tuple(sorted(_error_classes()))


def _error_classes() -> Iterator[ErrorClass]:
    for each in distributions():
        for path in each.source.rglob("*.py"):
            module = ".".join(path.relative_to(each.source).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text(encoding="utf-8")
            # To parse all files takes seconds.
            for node in ast.walk(ast.parse(text)) if CODE.search(text) else ():
                if isinstance(node, ast.ClassDef) and (code := _code_of(node)):
                    says = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).rstrip(".")
                    yield ErrorClass(code, node.name, says, module)


def _code_of(node: ast.ClassDef) -> str | None:
    """Return the value of `code = "KY123"` in a class."""
    for statement in node.body:
        found = re.fullmatch(r"code(?:: .*)? = '(KY\d{3})'", ast.unparse(statement))
        if found:
            return found[1]
    return None


def errors_table() -> str:
    """Code, class, what it means, where it lives."""
    rows = ["| code | error | what it says | module |", "|---|---|---|---|"]
    rows += [
        f'| <a id="{each.code.lower()}"></a>{each.code} | `{each.name}` | {each.says} | `{each.module}` |'
        for each in error_classes()
    ]
    return "\n".join(rows)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [each.code for each in error_classes()]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert set(codes) == set(re.findall(r"^\| <a id=\"ky\d{3}\"></a>(KY\d{3}) ", page, re.MULTILINE))


# --- environment variables --------------------------------------------------------------------------------------------
DECLARATION = "EnvironmentVariable"
READERS = re.compile(r"(environ\.get\(|environ\[|getenv\()[^\n]*KERNELYARD_")


@cache
def variables() -> list[tuple[str, str, str, str]]:
    """Return name, effect, default and distribution of every declared variable, the core's first."""
    found: list[tuple[str, str, str, str]] = []
    for each in distributions():
        rows: list[tuple[str, str, str, str]] = []
        for path in each.source.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if DECLARATION in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) == DECLARATION:
                    name, effect, default = (ast.literal_eval(argument) for argument in node.args)
                    rows.append((name, effect, default, each.name))
        found += sorted(rows)
    return found


def variables_table() -> str:
    """Every variable, what it does, what holds without it, and the package that reads it."""
    rows = ["| variable | effect | default | read by |", "|---|---|---|---|"]
    rows += [f"| `{name}` | {effect} | {default} | {owner} |" for name, effect, default, owner in variables()]
    return "\n".join(rows)


def test_every_variable_is_declared_once_and_read_by_its_declaration() -> None:
    names = [name for name, *_ in variables()]
    assert len(set(names)) == len(names) > 12
    texts = {path: path.read_text(encoding="utf-8") for each in distributions() for path in each.source.rglob("*.py")}
    assert {str(path) for path, text in texts.items() if READERS.search(text)} == set()
    spoken = {name for text in texts.values() for name in re.findall(r"\bKERNELYARD_[A-Z_]+\b", text)}
    macros = {"KERNELYARD_H", "KERNELYARD_EMULATION", "KERNELYARD_EXAMPLE"}
    assert {name for name in spoken if not name.endswith("_")} <= {*names, *macros}


# --- operators --------------------------------------------------------------------------------------------------------
@cache
def taken_by_dnnl() -> dict[str, frozenset[str]]:
    """For each op of which dnnl takes at least one sample: the dtypes of the samples taken.

    Casts at the borders of a narrow sample that is computed in float32, as on CPUs without AVX-512, do not count.
    """
    taken: dict[str, set[str]] = {}
    for case in op_cases():
        placed = ky.explain(case.module(), backends=["dnnl"]).placed
        if any(row.backend == "dnnl" and (row.op != "astype" or case.op.name == "astype") for row in placed):
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
    """Return who runs an operator that no library accepts."""
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


def _operands(op: Op) -> list[str]:
    """The names of an operator's operands, those that may be left out with a question mark."""
    required = len(op.inputs) - op.optional_inputs
    return [*op.inputs[:required], *(f"{name}?" for name in op.inputs[required:])]


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
        rows.append(f"| `{op.name}({', '.join(_operands(op))})` | {summary} | {attributes} | {dnnl} | {runner(op)} |")
    return "\n".join(rows)


# --- passes -----------------------------------------------------------------------------------------------------------
def pipelines_table() -> str:
    """Named pipelines, what each is for, and their passes in order."""
    rows = ["| pipeline | what for | passes, in order |", "|---|---|---|"]
    rows += [f"| `{name}` | {purpose_of(name)} | {_passes_of(get_pipeline(name))} |" for name in pipeline_names()]
    return "\n".join(rows)


def _passes_of(sequence: Sequential) -> str:
    """Name the passes of a sequence, those in sequences of their own in brackets; `clean` by its name."""
    cleaning = _names_of(get_pipeline("clean"))
    text = ", ".join(map(_text_of, sequence.passes))
    return text if sequence.name == "clean" else text.replace(cleaning, "*clean*")


def _text_of(each: Pass) -> str:
    if isinstance(each, Repeat):
        return f"({_passes_of(each)}) until nothing changes"
    if isinstance(each, WhereChanged):
        first, *others = each.passes
        return f"`{first.name}`, and where it changed something {_passes_of(Sequential(others, each.name))}"
    return f"`{each.name}`"


def _names_of(sequence: Sequential) -> str:
    return ", ".join(f"`{each.name}`" for each in sequence.passes)


# --- distributions ----------------------------------------------------------------------------------------------------
def packages_table() -> str:
    """Each distribution, what it brings, what pip installs with it, what the machine has to have."""
    rows = ["| package | brings | with it come | needs |", "|---|---|---|---|"]
    rows.append(f"| `{core().name}` | {core().summary} | {_requirements(core())} | |")
    for each in plugins():
        page = (each.folder / "README.md").relative_to(ROOT).as_posix()
        needs = "; ".join((each.manifest or {}).get("needs", []))
        rows.append(f"| [`{each.name}`]({page}) | {each.summary} | {_requirements(each)} | {needs} |")
    return "\n".join(rows)


def _requirements(distribution: Distribution) -> str:
    """Name what pip installs beside the core."""
    found = [Requirement(text) for text in distribution.project["dependencies"]]
    return ", ".join(
        each.name + (" (on some platforms)" if each.marker else "") for each in found if each.name != core().name
    )


def plugins_table() -> str:
    """Each folder of `plugins/`: the packages in it, and what it is."""
    rows = ["| folder | package | provides | for | what |", "|---|---|---|---|---|"]
    for each in plugins():
        manifest = each.manifest or {}
        added = [group.partition(".")[2] for group in each.entry_points] or ["library"]
        provides = ", ".join(part.replace("_", " ") for part in manifest.get("provides", added))
        packages = ", ".join(f"`{module}`" for module in each.modules)
        targets = ", ".join(manifest.get("targets", []))
        rows.append(f"| `plugins/{each.folder.name}/` | {packages} | {provides} | {targets} | {each.summary} |")
    return "\n".join(rows)


def primitives_table() -> str:
    """Each kind of primitive of oneDNN that is offered: its patterns, and what may follow in a group."""
    from kernelyard_dnnl.patterns import names_of
    from kernelyard_dnnl.primitives import all_kinds

    rows = ["| pattern | what | followed by |", "|---|---|---|"]
    named: set[str] = set()
    for kind in all_kinds():
        names = [name for name in names_of(kind) if name not in named]
        if names:  # a pattern that two kinds share is the first one's
            rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {kind.summary} | {kind.follows.value} |")
        named.update(names)
    return "\n".join(rows)


# --- TVM ---------------------------------------------------------------------------------------------------------------
class TvmRow(NamedTuple):
    """A row of the table of TVM's APIs and their counterparts here.

    name: a dotted name that `here` leads to, "" for what has none. differs: a line, where the difference is on purpose.
    """

    area: str
    tvm: str
    here: str
    test: str
    name: str = ""
    differs: str = ""


def tvm_rows() -> list[TvmRow]:
    """Return the rows of the page, in order."""
    data = tomllib.loads((ROOT / "tests/docs/coming_from_tvm.toml").read_text(encoding="utf-8"))
    return [TvmRow(**row) for row in data["row"]]


def tvm_apis() -> str:
    """A table for each area."""
    parts: list[str] = []
    for area in dict.fromkeys(row.area for row in tvm_rows()):
        table = ["| TVM | here | shown by |", "|---|---|---|"]
        table += [f"| {row.tvm} | {row.here} | {_link(row.test)} |" for row in tvm_rows() if row.area == area]
        parts.append("\n".join([f"### {area}", "", *table]))
    return "\n\n".join(parts)


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[`{name}`](../{path})"


def tvm_differences() -> str:
    """A line for each difference on purpose."""
    return "\n".join(f"- {row.tvm}: {row.differs}" for row in tvm_rows() if row.differs)


@pytest.mark.parametrize("row", tvm_rows(), ids=lambda row: row.tvm)
def test_a_row_about_tvm_names_what_exists(row: TvmRow) -> None:
    path, _, name = row.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), row.test
    if row.name:
        resolve_name(row.name)


# --- pages ------------------------------------------------------------------------------------------------------------
TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "families"): families_table,
    ("README.md", "packages"): packages_table,
    ("docs/architecture.md", "pipelines"): pipelines_table,
    ("docs/architecture.md", "plugins"): plugins_table,
    ("docs/coming-from-tvm.md", "apis"): tvm_apis,
    ("docs/coming-from-tvm.md", "differences"): tvm_differences,
    ("docs/errors.md", "errors"): errors_table,
    ("docs/variables.md", "variables"): variables_table,
    ("docs/operators.md", "operators"): operators_table,
    ("plugins/dnnl/README.md", "primitives"): primitives_table,
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
REFUSED = re.compile(r'(?:Refusal|Decline)\(\s*"([a-z-]+)"')


def words(page: str) -> set[str]:
    """The code spans of a page."""
    return set(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8")))


def test_the_dnnl_page_names_every_code() -> None:
    sources = (ROOT / "plugins/dnnl/src/kernelyard_dnnl").rglob("*.py")
    codes = {code for path in sources for code in REFUSED.findall(path.read_text(encoding="utf-8"))}
    assert {"dtype", "light", "numbers", "reference-implementation"} <= codes
    assert codes <= words("plugins/dnnl/README.md")


@pytest.mark.parametrize("plugin", plugins(), ids=lambda each: each.folder.name)
def test_a_page_names_every_option(plugin: Distribution) -> None:
    options = (plugin.manifest or {}).get("options", [])
    assert set(options) <= words((plugin.folder / "README.md").relative_to(ROOT).as_posix())
