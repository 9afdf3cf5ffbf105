"""What the pages say is true: their Python runs, their links lead somewhere, their commands and paths exist."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.parser
import pytest
from distributions import ROOT, plugins
from gguf_writer import write_gguf
from small_llama import llama_metadata, llama_tensors

from kernelyard import transform
from kernelyard.cli import main as cli
from kernelyard.cli.main import COMMANDS, main

from .conftest import environment_with

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("examples/**/README.md"),
    ]
)
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
# Runs pages, each in a copy of a process that has only imported what most of them need: the request is a page and a
# folder, where what the page prints lies afterwards, and the answer its exit status. A page's Python runs in one
# namespace, block after block: `python` as a script, `pycon` as a doctest.
RUNNER = """
import doctest, json, os, re, sys, warnings
import numpy, onnx, llvmlite.binding
import kernelyard.driver.compile, kernelyard_dnnl.backend, kernelyard_native_cpu.generator, kernelyard_onnx.plugin

for request in sys.stdin:
    page, folder = json.loads(request)
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

os.chdir(folder)
for number, name in enumerate((os.devnull, "printed", "errors")):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
with open(page, encoding="utf-8") as file:
    text = file.read()
names = {"__name__": "__main__"}
for block in re.finditer(r"^```(python|pycon)\\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
    line = text.count("\\n", 0, block.start(2))
    if block[1] == "python":
        exec(compile("\\n" * line + block[2], page, "exec"), names)
        continue
    test = doctest.DocTestParser().get_doctest(block[2], names, page, page, line)
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    names.update(test.globs)
    if failed:
        raise SystemExit(1)
"""

# What a page's code needs that `make test` does not install: the torch plugin's is run by `make test-torch`.
NEEDS = {each.folder / "README.md": each.modules[0] for each in plugins() if each.optional}
SPOKEN_FROM = ("core/src", "core/src/kernelyard", "plugins/_template")  # folders that paths in the text start in
MADE = ("demo-output/page.png", "dist/")  # what commands make

# The model that pages call "model.onnx".
MODEL = """<ir_version: 8, opset_import: ["": 17]>
net (float[n, 3, 32, 32] image) => (float[n, 8] probability) {
    scores = Conv <kernel_shape = [3, 3]> (image, weight)
    kept = Relu(scores)
    pooled = GlobalAveragePool(kept)
    flat = Flatten(pooled)
    probability = Softmax(flat)
}"""


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def blocks(page: Path, *languages: str) -> list[str]:
    """The code blocks of a page in some languages."""
    found = CODE_BLOCK.findall(page.read_text(encoding="utf-8"))
    return [block for language, block in found if language in languages]


def prose(page: Path) -> str:
    """The text without its code blocks."""
    return CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that headings have on the web."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a page's code runs: a folder with "model.onnx" in it."""
    model = onnx.parser.parse_model(MODEL)
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, tmp_path / "model.onnx")
    write_gguf(tmp_path / "model.gguf", llama_metadata(), llama_tensors("Q4_1"))
    return tmp_path


@pytest.fixture(scope="module")
def runner(template_site: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that runs pages."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", RUNNER]
    environment = environment_with(template_site)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def run_page(page: Path, folder: Path, runner: subprocess.Popen[str]) -> str:
    """What the Python of a page prints."""
    assert runner.stdin
    assert runner.stdout
    print(json.dumps([str(page), str(folder)]), file=runner.stdin, flush=True)
    status, printed = runner.stdout.readline().strip(), (folder / "printed").read_text(encoding="utf-8")
    assert status == "0", printed + (folder / "errors").read_text(encoding="utf-8")
    return printed


# The README's runs in the test after this one.
WITH_PYTHON = [page for page in PAGES if blocks(page, "python", "pycon") and page != ROOT / "README.md"]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=page_id)
def test_the_python_runs(page: Path, folder: Path, runner: subprocess.Popen[str]) -> None:
    pytest.importorskip(NEEDS.get(page, "kernelyard"), reason="what the page is about is not installed")
    run_page(page, folder, runner)


def test_the_readme_shows_what_its_script_prints(folder: Path, runner: subprocess.Popen[str]) -> None:
    (shown,) = blocks(ROOT / "README.md", "text")
    answer, printed = run_page(ROOT / "README.md", folder, runner).split("\n", 1)
    assert answer  # of the chat
    assert printed == shown


def test_the_readme_has_three_lines_of_chat_and_ten_of_the_api() -> None:
    scripts = blocks(ROOT / "README.md", "python")
    assert [len([line for line in script.splitlines() if line]) for script in scripts] == [3, 10]


def test_the_readme_commands_run(folder: Path, environment: dict[str, str]) -> None:
    (commands,) = [block for block in blocks(ROOT / "README.md", "console") if "$ kernelyard" in block]
    for line in commands.splitlines():
        arguments = line.removeprefix("$ kernelyard ").split()
        command = [sys.executable, "-c", "from kernelyard.cli.main import main; main()", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        may_find_faults = arguments == ["doctor"]  # this environment may have some
        assert done.returncode in (0, int(may_find_faults)), line + done.stdout + done.stderr
        assert done.stdout, line


def test_the_map_has_every_folder() -> None:
    (tree,) = [block for block in blocks(ROOT / "docs/architecture.md", "text") if "core/src/kernelyard/" in block]
    named = set(re.findall(r"^  ([\w\-]+)/", tree, re.MULTILINE))
    folders = (ROOT / "core/src/kernelyard").iterdir()
    assert named == {f.name for f in folders if f.is_dir() and f.name != "__pycache__" and any(f.iterdir())}


def test_the_order_of_imports_is_the_one_that_is_held() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["kernelyard"]]
    names = [layer.strip("()") for layer in layers]  # in parentheses: may come with another distribution
    lines = [" ".join(block.split()) for block in blocks(ROOT / "docs/architecture.md", "text")]
    assert " < ".join(reversed(names)) in lines


@each_page
def test_code_blocks_say_what_they_are(page: Path) -> None:
    languages = {language for language, _ in CODE_BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert languages <= {"python", "pycon", "console", "text", "toml", "diff"}, languages


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link, source in LINK.findall(prose(page)):
        target, _, anchor = (link or source).partition("#")
        assert not target.startswith("/"), link
        if target.startswith("http"):
            continue
        place = page.parent / target if target else page
        assert place.exists(), link
        assert not anchor or anchor in anchors(place), link


@each_page
def test_paths_exist(page: Path) -> None:
    """Code spans with a slash that end like a file or folder of the repository are one."""
    for span in CODE_SPAN.findall(prose(page)):
        if not re.fullmatch(r"[\w.\-]+(/[\w.\-]+)*(/|/[\w\-]+\.(py|toml|md|png))", span):
            continue
        folders = [ROOT, page.parent, *(ROOT / folder for folder in SPOKEN_FROM), *page.parent.glob("src/*")]
        assert any((folder / span).exists() for folder in folders) or span in MADE, span


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for language, block in CODE_BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            assert set(re.findall(r"^\$ make ([a-z-]+)", block, re.MULTILINE)) <= targets, block
    assert set(re.findall(r"`make ([a-z-]+)`", prose(page))) <= targets


@each_page
def test_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^\$ kernelyard (.+)$|`kernelyard ([a-z][^`\n]*)`", text, re.MULTILINE):
        words = re.sub(r"^-p \S+ ", "", line[0] or line[1]).split()
        if "|" in words[0]:
            assert set(words[0].split("|")) <= set(COMMANDS)
            continue
        assert words[0] in main.list_commands(click.Context(main)), words
        command = main.get_command(click.Context(main), words[0])
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        given = {word for word in words[1:] if word.startswith("-")}
        assert given <= known | {"--help"}, words


@each_page
def test_nothing_outside_the_repository_is_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "../shared" not in text
    assert not re.search(r"(?<![\w.])/(work|tmp|home)/", text)


@each_page
def test_code_spans_that_name_our_modules_can_be_imported(page: Path) -> None:
    """`kernelyard.a.b` is a module, an attribute of one, or a group of entry points."""
    groups = {transform.GROUP, cli.GROUP, *(group for each in plugins() for group in each.entry_points)}
    for name in {span for span in CODE_SPAN.findall(prose(page)) if re.fullmatch(r"kernelyard(\.\w+)+", span)}:
        assert name in groups or is_there(name), name


def is_there(name: str) -> bool:
    """True for the dotted name of a module, or of something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
