"""Add to the site the pages that lie outside of docs/: the README, those of plugins, the reference of the API.

A hook of MkDocs (`mkdocs.yml`). Pages link to files of the repository, as readers of the repository see them: here a
link to a page leads to where that page is on the site, and of a link to a source file its text stays. The same pages,
one after the other as Markdown, are named in llms.txt.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from distributions import ROOT, plugins
from mkdocs.structure.files import File, Files

# The front doors that the reference shows, with what they are for.
REFERENCE = {
    "kernelyard": "compiling and running",
    "kernelyard.nn": "models in Python",
    "kernelyard.transform": "passes",
    "kernelyard.errors": "errors",
    "kernelyard.plugins.api": "what plugins import",
    "kernelyard.plugins.codegen_api": "what code generators import",
    "kernelyard.runtime.api": "what runtime halves import",
}
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def outside() -> dict[str, Path]:
    """Return the pages that lie outside of docs/, by their place on the site."""
    pages = {"index.md": ROOT / "README.md", "contributing.md": ROOT / "CONTRIBUTING.md"}
    pages["changelog.md"] = ROOT / "CHANGELOG.md"
    readmes = {f"plugins/{each.folder.name}.md": each.folder / "README.md" for each in plugins()}
    return pages | {place: path for place, path in readmes.items() if path.exists()}


def on_config(config: Any) -> Any:
    """List the added pages in the navigation. MkDocs calls it when it has read mkdocs.yml."""
    added = sorted(outside())
    config.nav.append({"Plugins": [place for place in added if "/" in place]})
    config.nav.append({"API": [f"api/{door}.md" for door in REFERENCE]})
    config.nav.append({"Project": ["contributing.md", "changelog.md"]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages. MkDocs calls it when it has read docs/."""
    for place, path in outside().items():
        files.append(File.generated(config, place, content=path.read_text(encoding="utf-8")))
    for door in REFERENCE:
        files.append(File.generated(config, f"api/{door}.md", content=_reference(door)))
    files.append(File.generated(config, "llms.txt", content=_llms(files)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page's text with links that lead to where pages are on the site. MkDocs calls it for each."""
    place = page.file.src_uri
    origin = outside().get(place) or ROOT / "docs" / place
    parts, last = [], 0
    for block in _BLOCK.finditer(markdown):
        parts += [_relinked(markdown[last : block.start()], place, origin), block[0]]
        last = block.end()
    return "".join([*parts, _relinked(markdown[last:], place, origin)])


def _reference(door: str) -> str:
    """Return the page of a front door. mkdocstrings fills in each class and function, on the first page that has it."""
    earlier = {home for other in takewhile(lambda name: name != door, REFERENCE) for home in _homes(other)}
    homes = _homes(door)
    here = [f"::: {home}" for home in homes if home not in earlier]
    elsewhere = [f"- [{home.rpartition('.')[2]}][{home}]" for home in homes if home in earlier]
    also = ["## Also here", "\n".join(elsewhere)] if elsewhere else []
    return "\n\n".join([f"# {door}", f"{REFERENCE[door].capitalize()}.", *here, *also]) + "\n"


@cache
def _homes(door: str) -> tuple[str, ...]:
    """Return the full names of the classes and functions that a front door has."""
    module = importlib.import_module(door)
    things = {name: getattr(module, name) for name in sorted(dir(module)) if not name.startswith("_")}
    named = {name: thing for name, thing in things.items() if inspect.isclass(thing) or inspect.isroutine(thing)}
    homes = (f"{thing.__module__}.{name}" for name, thing in named.items())
    return tuple(home for home in homes if home.startswith("kernelyard."))


def _relinked(text: str, place: str, origin: Path) -> str:
    """Rewrite the links of a text that stands in the file `origin`, and at `place` on the site."""

    def replaced(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        if not target or "://" in target:
            return match[0]
        there = _place_of((origin.parent / target).resolve())
        if there is None:
            return label
        return f"{mark}[{label}]({os.path.relpath(there, Path(place).parent)}{hash_sign}{anchor})"

    return _LINK.sub(replaced, text)


def _place_of(path: Path) -> str | None:
    """Return the place on the site of a file of the repository; None if it has none."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    return next((place for place, each in outside().items() if path == each or (path == each.parent != ROOT)), None)


def _llms(files: Files) -> str:
    """Return what llms.txt says (llmstxt.org): a line on each page, from its heading and its first sentence."""
    lines = [
        "# Kernelyard",
        "",
        "> A deep-learning compiler in Python whose backends are pip packages.",
        "",
        "## Pages",
        "",
    ]
    for file in files.documentation_pages():
        title, _, rest = file.content_string.removeprefix("# ").partition("\n")
        first = re.split(r"(?<=\.)\s", " ".join(rest.split()), maxsplit=1)[0]
        about = "" if first.startswith((":", "<", "-")) else f": {first}"
        lines.append(f"- [{title}]({file.url}){about}")
    return "\n".join(lines) + "\n"
