"""Write a reduced case as a folder that can be handed to somebody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from kernelyard.dtypes import to_numpy
from kernelyard.errors import KernelyardError
from kernelyard.ir import parse_module, to_text
from kernelyard.ops.interpreter import run
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError
from kernelyard_debug.open_case import read_feeds
from kernelyard_onnx_export import to_onnx

TEXT, FEEDS, MODEL, DATA, TEST, REPORT = (
    "model.ir",
    "feeds.npz",
    "model.onnx",
    "test_data_set_0",
    "test_reduced.py",
    "reduction.json",
)


def save(case: Case, folder: Path, report: Mapping[str, Any], against: str, arguments: Mapping[str, Any]) -> Path:
    """Write the case to a folder. What cannot be written as ONNX is said in the report.

    Raises: DebugError where the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEXT).write_text(to_text(case.module), encoding="utf-8")
        np.savez(folder / FEEDS, **dict(case.feeds))  # pyright: ignore[reportArgumentType]  # inputs may be called as savez calls its options
        facts = {**report, "onnx": _save_onnx(case, folder)}
        (folder / TEST).write_text(_test(case, against, arguments), encoding="utf-8")
        (folder / REPORT).write_text(json.dumps(facts, indent=2, default=str), encoding="utf-8")
    except OSError as error:
        raise DebugError("the result cannot be written", where=str(folder), found=error.strerror or error) from error
    return folder


def load_case(folder: str | Path) -> Case:
    """Read the case of a folder again. Raises: DebugError."""
    try:
        module = parse_module((Path(folder) / TEXT).read_text(encoding="utf-8"))
        return _restore_dtypes(Case(module, read_feeds(Path(folder) / FEEDS)))
    except (OSError, ValueError, KernelyardError) as error:
        raise DebugError("this is no folder of a reduced case", where=str(folder), found=error) from error


def _restore_dtypes(case: Case) -> Case:
    """Return a case whose feeds have the inputs' dtypes: a file of NumPy knows of bfloat16 that it has two bytes."""
    dtypes = zip(case.input_names, (to_numpy(param.tensor_type.dtype) for param in case.function.params), strict=True)
    raw = {name: case.feeds[name].view(dtype) for name, dtype in dtypes if case.feeds[name].dtype.kind == "V"}
    return Case(case.module, {**case.feeds, **raw})


def _save_onnx(case: Case, folder: Path) -> str:
    """Write model and test data as ONNX does; return what stands in the way, "" for nothing."""
    try:
        model = to_onnx(case.module)
    except KernelyardError as error:
        return str(error)
    onnx.save(model, folder / MODEL)
    data = folder / DATA
    data.mkdir(exist_ok=True)
    for number, name in enumerate(case.input_names):
        _save_tensor(case.feeds[name], name, data / f"input_{number}.pb")
    try:
        expected = run(case.module, case.feeds)
    except KernelyardError as error:
        return str(error)
    for number, (name, array) in enumerate(zip(case.output_names, expected, strict=True)):
        _save_tensor(array, name, data / f"output_{number}.pb")
    return ""


def _save_tensor(array: np.ndarray, name: str, path: Path) -> None:
    path.write_bytes(numpy_helper.from_array(np.ascontiguousarray(array), name).SerializeToString())


def _test(case: Case, against: str, arguments: Mapping[str, Any]) -> str:
    """Return the text of a test that passes once the failure is mended."""
    plain = {key: value for key, value in arguments.items() if _is_plain(value) and value not in (None, (), False)}
    given = "".join(f", {key}={value!r}" for key, value in sorted(plain.items()))
    return "\n".join(
        [
            '"""A case that failed, as `kernelyard reduce` left it: `pytest` in this folder."""',
            "",
            "from pathlib import Path",
            "",
            "from kernelyard_debug import diff, load_case",
            "",
            "",
            "def test_reduced():",
            "    case = load_case(Path(__file__).parent)",
            f"    report = diff(case.module, {_way(against)!r}, case.feeds{given})",
            "    assert not report.departs, str(report)",
            "",
        ]
    )


def _way(against: str) -> str:
    return "reference" if "{model}" in against else against


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))
