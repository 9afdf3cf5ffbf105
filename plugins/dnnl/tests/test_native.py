"""Finding the library, its absence, and the table of enumeration values."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import CodegenError
from kernelyard_dnnl import _enums, _native, primitive
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.primitive_attributes import attributes_of
from kernelyard_dnnl.primitives import all_kinds


def test_the_library_is_oneDNN_3():
    library = _native.load_library()
    assert library.version >= (3, 0, 0)
    assert library.threads >= 1


def run_python(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )


MISSING = """
from kernelyard.errors import BackendUnavailableError
from kernelyard_dnnl.runtime import load
try:
    load(b'{"schema":1,"graphs":[]}', {})
except BackendUnavailableError as error:
    print(error)
"""


def test_a_missing_library_is_an_error_with_the_way_out(tmp_path):
    result = run_python(MISSING, KERNELYARD_DNNL_LIBRARY=str(tmp_path / "libdnnl.so.3"))
    assert "[KY302] no usable oneDNN library" in result.stdout, result.stderr
    assert "KERNELYARD_DNNL_LIBRARY: " in result.stdout
    assert "pip install" in result.stdout


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "libdnnl.so.3"
    path.write_bytes(b"not a library")
    assert "no usable oneDNN library" in run_python(MISSING, KERNELYARD_DNNL_LIBRARY=str(path)).stdout


def test_a_library_of_something_else():
    result = run_python(MISSING, KERNELYARD_DNNL_LIBRARY="libc.so.6")
    assert "dnnl_version" in result.stdout, result.stderr


def test_the_named_path_comes_first_and_alone(monkeypatch):
    monkeypatch.setenv("KERNELYARD_DNNL_LIBRARY", "/nowhere/libdnnl.so.3")
    assert list(_native.candidates()) == [("/nowhere/libdnnl.so.3", "KERNELYARD_DNNL_LIBRARY")]
    monkeypatch.delenv("KERNELYARD_DNNL_LIBRARY")
    assert list(_native.candidates())[-1] == ("libdnnl.so.3", "the system's library path")


def test_importing_the_runtime_and_every_lowering_loads_no_library_and_no_compiler():
    code = (
        "import sys, kernelyard_dnnl.runtime; from kernelyard_dnnl._native import load_library;"
        "from kernelyard_dnnl.primitives import all_kinds; all_kinds();"
        "assert load_library.cache_info().currsize == 0;"
        "bad = [m for m in sys.modules if m.startswith('kernelyard.') and m.split('.')[1] in"
        " ('ir', 'ops', 'patterns', 'transform', 'plugins', 'placement', 'driver', 'cli')];"
        "assert not bad, bad; assert 'pluggy' not in sys.modules"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_dtypes_and_ranks_that_oneDNN_lacks():
    with pytest.raises(CodegenError, match="no dtype int64"):
        _ = dense((2, 3), "int64").address
    with pytest.raises(CodegenError, match="rank 13"):
        _ = dense((1,) * 13, "float32").address


# --- enumeration values -----------------------------------------------------------------------------------------------
HEADER_NAMES = {
    **{f"dnnl_eltwise_{name}": value for name, value in _enums.ELTWISE.items()},
    **{f"dnnl_binary_{name}": value for name, value in _enums.BINARY.items()},
    **{name: value for kind in all_kinds() for name, value in kind.enumerators.items()},
    "dnnl_f16": _enums.DATA_TYPE["float16"],
    "dnnl_bf16": _enums.DATA_TYPE["bfloat16"],
    "dnnl_f32": _enums.DATA_TYPE["float32"],
    "dnnl_s32": _enums.DATA_TYPE["int32"],
    "dnnl_s8": _enums.DATA_TYPE["int8"],
    "dnnl_u8": _enums.DATA_TYPE["uint8"],
    "dnnl_cpu": _enums.ENGINE_CPU,
    "dnnl_stream_default_flags": _enums.STREAM_DEFAULT_FLAGS,
    "dnnl_forward_inference": _enums.FORWARD_INFERENCE,
    "dnnl_scratchpad_mode_user": _enums.SCRATCHPAD_MODE_USER,
    "dnnl_format_tag_any": _enums.FORMAT_TAG_ANY,
    "dnnl_blocked": _enums.FORMAT_KIND_BLOCKED,
    "DNNL_MAX_NDIMS": _enums.MAX_NDIMS,
    "DNNL_ARG_ATTR_MULTIPLE_POST_OP(3) | DNNL_ARG_SRC_1": _enums.post_op_argument(3),
    **{f"dnnl_query_{name}": value for name, value in _enums.QUERY.items() if name not in ("ndims", "inner_nblks")},
    "dnnl_query_ndims_s32": _enums.QUERY["ndims"],
    "dnnl_query_inner_nblks_s32": _enums.QUERY["inner_nblks"],
    **{f"DNNL_ARG_{name.upper()}": value for name, value in _enums.ARG.items() if name != "post_op_base"},
    **{f"dnnl_{name}": value for value, name in enumerate(_enums.STATUS)},
}  # fmt: skip


def header_folder():
    places = [Path(sys.prefix) / "include", Path("/usr/include"), Path("/usr/local/include")]
    return next((place for place in places if (place / "oneapi" / "dnnl" / "dnnl.h").is_file()), None)


def test_values_are_those_of_the_headers(tmp_path):
    compiler, headers = shutil.which("cc") or shutil.which("gcc"), header_folder()
    if compiler is None or headers is None:
        pytest.skip("needs a C compiler and the oneDNN headers (pip install onednn-devel-cpu-gomp==2023.2.0)")
    checks = "\n".join(f'_Static_assert({name} == {value}, "{name}");' for name, value in HEADER_NAMES.items())
    source = tmp_path / "check.c"
    source.write_text(f"#include <oneapi/dnnl/dnnl.h>\n{checks}\n")
    command = [compiler, "-fsyntax-only", "-I", str(headers), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_primitive_that_the_library_lacks_is_unimplemented():
    with pytest.raises(_native.StatusError) as caught:
        _native.load_library().create_descriptor("telepathy")
    assert caught.value.status == "unimplemented"


def test_attributes_outlive_the_call_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have the cache let go of them while the library reads them."""
    library, destroyed = _native.load_library(), list[int]()
    create, attributes = library.create, attributes_of((), ())

    def call(name: str, *arguments: Any) -> _native.Handle:
        assert not destroyed
        return create(name, *arguments)

    monkeypatch.setattr(primitive, "attributes_of", lambda *_: _native.Handle(attributes.address, destroyed.append))
    monkeypatch.setattr(library, "create", call)
    primitive.Primitive(
        primitive.Recipe("reorder", (dense((2, 3), "float32"), dense((2, 3), "float32", (1, 0)))), 1
    ).describe()
    assert destroyed


KEPT = """
import numpy as np
from kernelyard.runtime.api import address_of
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import any_layout, channels_last, dense
from kernelyard_dnnl.packing import memory_object, run_primitive
from kernelyard_dnnl.primitive import Primitive, Recipe, Vector
from kernelyard_dnnl.primitive_attributes import Eltwise, attributes_of

def convolution(size):
    image, result = (channels_last((1, channels, size, size), "float32") for channels in (64, 96))
    weights, bias = any_layout((96, 64, 1, 1), "float32"), any_layout((96,), "float32")
    steps = Vector((1, 1)), *[Vector((0, 0))] * 3
    what = (enums.FORWARD_INFERENCE, 1, image, weights, bias, result, *steps)
    return Primitive(Recipe("convolution_forward", what, (Eltwise("relu"), Eltwise("tanh"))), 1)

def run(primitive):
    layouts = {"src": primitive.source, "weights": primitive.weights, "bias": dense((96,), "float32")}
    arrays = {name: np.full(layout.nbytes // 4, 0.5, np.float32) for name, layout in layouts.items()}
    arrays["dst"] = np.zeros(primitive.destination.nbytes // 4, np.float32)
    layouts["dst"] = primitive.destination
    memories = {enums.ARG[n]: memory_object(layouts[n].native, address_of(array)) for n, array in arrays.items()}
    run_primitive(primitive, memories)
    return arrays["dst"]

wanted = run(convolution(14))
attributes_of.cache_clear()
again = convolution(14)
again.describe()
others = [convolution(size) for size in range(20, 160)]
for other in others:
    other.generate()
print("equal" if np.array_equal(run(again), wanted) else "other numbers")
"""


def test_primitives_are_made_of_descriptors_that_were_asked_for_before():
    """oneDNN's own cache would give out a descriptor that refers to the first one, which is freed."""
    overwritten = "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"  # what is freed
    result = run_python(KEPT, GLIBC_TUNABLES=overwritten)
    assert result.stdout.strip() == "equal", result.stderr
