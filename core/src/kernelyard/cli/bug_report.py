"""Describe a machine for a bug report: versions, states and settings, without paths and secrets."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from kernelyard.runtime.abi.threads import processors
from kernelyard.runtime.installed.disk_cache import cache_folders, cache_size
from kernelyard.runtime.installed.processor import cpu_facts, cpu_flags
from kernelyard.variables import PREFIX

# An absolute path, one in the home folder, or an address with a scheme, where a text may hold one.
_PLACE = re.compile(r"(?<![\w.])(?:[a-zA-Z][\w+.-]*:/|[A-Za-z]:\\|~|/)[^\s'\"<>|,;()\[\]]*")
_PLAIN = re.compile(r"[\w.+-]{1,40}(,[\w.+-]{1,40}){0,20}|")  # values of variables that are shown
_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
TOLD = ("name", "version", "state", "reason", "hint")  # of a plugin
OTHERS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES")
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")


def bug_report(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `doctor` found with what else matters, every path and name of a person taken out."""
    sizes = {folder.name: cache_size(folder) for folder in cache_folders()}
    caches = {name: {"entries": entries, "bytes": nbytes} for name, (entries, nbytes) in sizes.items()}
    plugins = [{name: info[name] for name in TOLD if info[name]} for info in found["plugins"]]
    machine = {"processor": _processor(), "processors": processors(), "libc": " ".join(platform.libc_ver())}
    settings = {"variables": _variables(), "caches": caches}
    return redact({**found, "plugins": plugins, **machine, **settings})


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as Markdown, to be pasted into an issue."""
    yield from ("<details><summary>kernelyard doctor --report</summary>", "", "```text")
    yield from _lines(report, "")
    yield from ("```", "", "</details>")


def _lines(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, item in value.items():
        if isinstance(item, Mapping) and indent:
            yield f"{indent}{name}: {_line(item)}"
        elif isinstance(item, Mapping):
            yield f"{name}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, (list, tuple)):
            yield f"{indent}{name}: {'' if item else 'none'}".rstrip()
            yield from (f"{indent}  - {_line(each)}" for each in item)
        else:
            yield f"{indent}{name}: {_line(item)}"


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_line(item)}" for name, item in value.items() if item not in ("", None, (), []))
    if isinstance(value, (list, tuple)):
        return " ".join(map(_line, value))
    return " ".join(str(value).split()).replace("```", "'''")


def redact(value: Any) -> Any:
    """Return JSON data whose texts name no path, no address and not the user.

    Example:
        >>> redact({"reason": "cannot read '/home/ann/lib.so': 12.5 GB/s"})
        {'reason': "cannot read '<path>': 12.5 GB/s"}
    """
    if isinstance(value, Mapping):
        return {key: redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if not isinstance(value, str):
        return value
    text = _PLACE.sub("<path>", value)
    for name in _people():
        text = re.sub(rf"\b{re.escape(name)}\b", "<name>", text)
    return text


def _people() -> list[str]:
    """Return the names of the user and the machine; those that are words of their own say nothing."""
    names = [platform.node()]
    with suppress(OSError, KeyError, ImportError):
        names.append(getpass.getuser())
    return [name for name in names if len(name) > 2 and name not in ("root", "user", "localhost", "runner")]


def _variables() -> dict[str, str]:
    chosen = [name for name in os.environ if name.startswith(PREFIX) or name in OTHERS]
    return {name: _redact(name, os.environ[name]) for name in sorted(chosen)}


def _redact(name: str, value: str) -> str:
    """Return the value of a variable where it is a number or a list of names; those of secrets never."""
    return value if _PLAIN.fullmatch(value) and not _SECRET.search(name) else "set"


def _processor() -> str:
    facts = cpu_facts()
    model = facts.get("model name", facts.get("CPU part", platform.processor()))
    flags = " ".join(flag for flag in FLAGS if flag in cpu_flags())
    return f"{model} {flags}".strip()
