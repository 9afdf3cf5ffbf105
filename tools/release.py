"""Set the version of all distributions, and date the changelog: what a release changes in the sources.

`python tools/release.py 0.2.0` writes the version into every `pyproject.toml` and the core's `__version__`, and gives
the changelog's section of unreleased changes that version and the day. Distributions of one release ask each other for
at least this minor version, since they are tested together. Nothing is committed, tagged or uploaded.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from distributions import ROOT
from packaging.version import InvalidVersion, Version

UNRELEASED = re.compile(r"^## (\S+), not released$", re.MULTILINE)
VERSION = re.compile(r'^version = "([^"]*)"$', re.MULTILINE)
OWN_REQUIREMENT = re.compile(r'"(kernelyard(?:-[a-z-]+)?(?:\[[^\]]*\])?)>=[0-9.]+,<[0-9.]+"')
CODE = re.compile(r'^__version__ = "[^"]*"$', re.MULTILINE)


class ReleaseError(Exception):
    """A release that cannot be made, in words for the person who makes it."""


def prepare_release(version: str, day: str, root: Path = ROOT) -> list[Path]:
    """Write the version and the day (YYYY-MM-DD) into the sources at `root`; return the files that changed.

    All files are worked out before the first is written. Raises: ReleaseError for a version that is none or not newer
    than the last release, and where the changelog has no unreleased changes.
    """
    new = _parsed(version)
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if UNRELEASED.search(text) is None:
        raise ReleaseError("CHANGELOG.md has no section `## VERSION, not released`: nothing to release")
    released = [Version(found) for found in re.findall(r"^## (\d\S*), \d{4}-\d\d-\d\d$", text, re.MULTILINE)]
    if released and new <= max(released):
        raise ReleaseError(f"{new} is not newer than {max(released)}, which CHANGELOG.md has")
    edits: dict[Path, Callable[[str], str]] = {
        changelog: lambda old: UNRELEASED.sub(f"## {new}, {day}", old, count=1),
        root / "core/src/kernelyard/__init__.py": lambda old: CODE.sub(f'__version__ = "{new}"', old),
    }
    for path in [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]:
        edits[path] = lambda old: _with_requirements(VERSION.sub(f'version = "{new}"', old, count=1), new)
    written = {path: edit(path.read_text(encoding="utf-8")) for path, edit in edits.items()}
    changed = [path for path, content in written.items() if content != path.read_text(encoding="utf-8")]
    for path in changed:
        path.write_text(written[path], encoding="utf-8")
    return changed


def start_next(version: str, root: Path = ROOT) -> None:
    """Begin the changelog's section of a version to come, above all others. Raises: ReleaseError."""
    new = _parsed(version)
    path = root / "CHANGELOG.md"
    text = path.read_text(encoding="utf-8")
    if UNRELEASED.search(text) is not None:
        raise ReleaseError("CHANGELOG.md has a section of unreleased changes already")
    first = text.index("\n## ") + 1
    path.write_text(f"{text[:first]}## {new}, not released\n\n{text[first:]}", encoding="utf-8")


def _parsed(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise ReleaseError(f"{version!r} is no version: MAJOR.MINOR.PATCH") from error


def _with_requirements(text: str, new: Version) -> str:
    """Ask the distributions of this repository for at least this minor version, below the next major one."""
    return OWN_REQUIREMENT.sub(rf'"\1>={new.major}.{new.minor},<{new.major + 1}"', text)


def main() -> int:
    """Prepare the release, and print what is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--next", action="store_true", help="begin the changelog of that version instead")
    options = parser.parse_args()
    try:
        if options.next:
            start_next(options.version)
            return 0
        changed = prepare_release(options.version, datetime.now(UTC).strftime("%Y-%m-%d"))
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(changed)} files say {options.version}. Left to do:")
    print("  make test wheels  # the files of dist/ stay the same")
    print(f"  git commit -am 'release: {options.version}' && git tag -s v{options.version}")
    print("  make sign  # by sigstore; others: python tools/sign.py --help")
    print("  twine upload dist/*.whl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
