"""Runs saved executables in a process in which NumPy cannot compute: every ufunc, however it is called, fails.

    python without_ufuncs.py ARTIFACT...

Beside each artifact `m.kyar` lie its feeds, `m.npz` with arrays `size/input`, and its results are written to
`m.results` as a pickled dictionary of the same.

Python operators, functions and C code all enter a ufunc through the function pointer of the vectorcall protocol: it is
replaced in each. Reductions enter through methods instead; these, and products that are no ufuncs, are replaced by name.
Creating, copying and viewing arrays stays allowed. Files are read before, everything from the first run on comes after:
plans, memory, weights in a library's layout. Prints how many calls failed, and by whom they were made.
"""

from __future__ import annotations

import ctypes
import json
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from kernelyard.runtime import load

VECTORCALL = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
TP_VECTORCALL_OFFSET = 56  # in PyTypeObject of 64-bit CPython
calls: list[str] = []


def note(name: str) -> None:
    calls.append(f"{name}: {' <- '.join(frame.name for frame in reversed(traceback.extract_stack()[:-2]))}")


def refuse(ufunc: Any, *_: Any) -> None:
    note(ufunc.__name__)  # and NULL: Python makes a SystemError of it


def poison() -> list[object]:
    """Make all ufuncs fail; what is returned must be kept."""
    callback = VECTORCALL(refuse)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    offset = ctypes.c_ssize_t.from_address(id(np.ufunc) + TP_VECTORCALL_OFFSET).value
    modules = (np, np.linalg, np._core, np._core.umath, np._core.multiarray, np._core._methods)
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, np.ufunc):
                ctypes.c_void_p.from_address(id(value) + offset).value = address
            elif name.startswith("umr_") or name in ("dot", "einsum", "inner", "vdot", "c_einsum", "tensordot"):

                def fail(*args: Any, name: str = name, **options: Any) -> NoReturn:
                    note(name)
                    raise SystemError(name)

                setattr(module, name, fail)
    return [callback]


def fails(compute: Any) -> bool:
    try:
        compute()
    except SystemError:
        return True
    return False


def main(*artifacts: str) -> None:
    executables = {path: load(path, threads=1) for path in artifacts}
    all_feeds = {path: dict(np.load(Path(path).with_suffix(".npz"))) for path in artifacts}
    one = np.ones(3, np.float32)
    probes = (lambda: one + one, lambda: np.exp(one), lambda: one.sum(), lambda: one @ one, lambda: one < one)
    kept = poison()
    caught = [fails(probe) for probe in probes]
    calls.clear()
    all_results: dict[str, dict[str, np.ndarray]] = {}
    for path, exe in executables.items():
        results = all_results[path] = {}
        sizes = dict.fromkeys(key.split("/")[0] for key in all_feeds[path])
        for size in [*sizes, *sizes]:
            feeds = {
                key[len(size) + 1 :]: array for key, array in all_feeds[path].items() if key.startswith(f"{size}/")
            }
            results |= {f"{size}/{name}": tensor.numpy() for name, tensor in exe.run(feeds).items()}
    print(json.dumps({"caught": caught, "calls": calls}))
    for path, results in all_results.items():
        Path(path).with_suffix(".results").write_bytes(pickle.dumps(results))
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])
