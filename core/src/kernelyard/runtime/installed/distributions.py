"""Distributions that pip installed, found by the names of their metadata folders.

`importlib.metadata` says the same, but its import and its reading of headers take longer than many a program takes to
load. It is asked where archives or finders of their own hold distributions. Source of the layout: packaging.python.org,
"Recording installed projects" and "Core metadata specifications".
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

CORE = "kernelyard"
_SUFFIXES = (".dist-info", ".egg-info")
_SMALL = 4096  # characters of a file that is kept: each compile asks for all entry points, which seldom change
_SETTLED = 1_000_000_000  # nanoseconds
# By folder: its time and number, and what is in it.
_LISTED: dict[str, tuple[tuple[int, int], tuple[Distribution, ...]]] = {}
_READ: dict[str, tuple[tuple[int, int, int], str]] = {}  # by path: the file's time, size and number, and its text


class Distribution:
    """One installed distribution.

    key: the normalized name. site: the folder that its files are named from. folder: that of its
    metadata.

    Example:
        >>> next(each.name for each in iterate_distributions() if each.key == "numpy")
        'numpy'
    """

    def __init__(self, key: str, site: str, folder: str = "") -> None:
        self.key = key
        self.site = site
        self.folder = folder

    def read(self, file: str) -> str:
        """Return a file of the metadata, "" where there is none that can be read."""
        path = os.path.join(self.folder, file)
        try:
            found = os.stat(path)
            state = found.st_mtime_ns, found.st_size, found.st_ino
            if path in _READ and _READ[path][0] == state:
                return _READ[path][1]
            with open(path, encoding="utf-8", errors="replace") as opened:
                text = opened.read()
        except OSError:
            return ""
        if len(text) <= _SMALL:
            _READ[path] = state, text
        return text

    @property
    def name(self) -> str:
        """The name as its metadata spells it, "unknown" where that cannot be read."""
        return self._header("Name") or "unknown"

    @property
    def version(self) -> str:
        """The version, "" where its metadata cannot be read."""
        return self._header("Version")

    def files(self, name: str) -> list[str]:
        """Return the paths of its files of that name, as its record has them."""
        lines = [line for line in self.read("RECORD").splitlines() if name in line]
        recorded = [line.rsplit(",", 2)[0].strip('"') for line in lines]
        return [os.path.normpath(os.path.join(self.site, path)) for path in recorded if os.path.basename(path) == name]

    @property
    def extras(self) -> list[str]:
        """The names of its extras (`Provides-Extra`)."""
        return self._headers("Provides-Extra")

    def _header(self, field: str) -> str:
        return next(iter(self._headers(field)), "")

    def _headers(self, field: str) -> list[str]:
        headers = (self.read("METADATA") or self.read("PKG-INFO")).partition("\n\n")[0]
        pairs = (line.partition(":") for line in headers.splitlines())
        return [value.strip() for name, _, value in pairs if name.lower() == field.lower() and value.strip()]


class _Other(Distribution):
    """One that lies elsewhere than in a folder on `sys.path`."""

    def __init__(self, found: metadata.Distribution) -> None:
        super().__init__(normalize_name(found.name), str(found.locate_file("")))
        self._found = found

    def read(self, file: str) -> str:
        return self._found.read_text(file) or ""


def normalize_name(name: str) -> str:
    """Normalize a distribution's name (PEP 503).

    Example:
        >>> normalize_name("Kernelyard-fast.NPU")
        'kernelyard_fast_npu'
    """
    words = name.lower().replace("-", "_").replace(".", "_").split("_")
    return "_".join(word for word in words if word)


def iterate_distributions() -> Iterator[Distribution]:
    """Return each distribution once: of several with one name, the first on `sys.path`, as for imports."""
    seen: set[str] = set()
    for each in _iterate_all():
        if each.key not in seen:
            seen.add(each.key)
            yield each


def find_distribution(name: str) -> Distribution | None:
    """Return the distribution of that name, None where it is not installed."""
    key = normalize_name(name)
    return next((each for each in iterate_distributions() if each.key == key), None)


def install_line(extra: str) -> str | None:
    """Return the pip line for an extra of Kernelyard, None where it has none of that name."""
    core = find_distribution(CORE)
    return f"pip install '{CORE}[{extra}]'" if core is not None and extra in core.extras else None


# What a `pip install` line may name: anybody could publish a package under another name, and people copy such lines.
RELEASED = {
    "cublas",
    "cuda",
    "cudnn",
    "cutlass",
    "debug",
    "deploy",
    "dnnl",
    "fuzz",
    "llm",
    "llvm",
    "native-cpu",
    "native-cuda",
    "nn",
    "onnx",
    "onnx-export",
    "onnxruntime",
    "openblas",
    "openvino",
    "ort-compat",
    "quantize",
    "serve",
    "testing",
    "torch",
    "tune",
    "tvm-compat",
    "view",
}


def package_line(name: str) -> str | None:
    """Return the pip line for the package of a plugin or frontend; None where no package of ours is called so.

    Example:
        >>> package_line("a-misspelt-name") is None
        True
    """
    return f"pip install {CORE}-{name}" if name in RELEASED else None


def list_source_files(folder: str) -> list[tuple[str, int, int]]:
    """Return the names of a package's source files, with sizes and times, in order. Raises: OSError."""
    return sorted(_source_files(folder, ""))


def _source_files(folder: str, prefix: str) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".toml")):
                status = entry.stat()
                found.append((prefix + entry.name, status.st_size, status.st_mtime_ns))
            elif entry.is_dir() and not entry.name.startswith((".", "__")):
                found += _source_files(entry.path, f"{prefix}{entry.name}/")
    return found


def _iterate_all() -> Iterator[Distribution]:
    others = any(hasattr(finder, "find_distributions") for finder in sys.meta_path if not _is_of_python(finder))
    for site in sys.path:
        try:
            found = _list_folder(site)
        except NotADirectoryError:
            others = True
        except OSError:  # what is not there
            continue
        else:
            others = others or site.endswith(".egg")
            yield from found
    if others:
        from importlib import metadata

        yield from map(_Other, metadata.distributions())


def _list_folder(site: str) -> tuple[Distribution, ...]:
    """Return the distributions in a folder, which is read again when something was added or gone. Raises: OSError."""
    folder = os.stat(site or ".")
    state = folder.st_mtime_ns, folder.st_ino
    if site in _LISTED and _LISTED[site][0] == state:
        return _LISTED[site][1]
    names = [name for name in sorted(os.listdir(site or ".")) if name.endswith(_SUFFIXES)]
    keys = (normalize_name(name.rpartition(".")[0].partition("-")[0]) for name in names)
    found = tuple(Distribution(key, site, os.path.join(site, name)) for key, name in zip(keys, names, strict=True))
    if time.time_ns() - folder.st_mtime_ns > _SETTLED:  # within one tick of the clock, more may be added
        _LISTED[site] = state, found
    return found


def _is_of_python(finder: object) -> bool:
    return getattr(finder, "__module__", "") == "_frozen_importlib_external"
