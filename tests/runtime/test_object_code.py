"""Objects become code without LLVM, or are refused; nothing that is read from them leads outside of them."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.runtime.jit import linking
from kernelyard.runtime.jit.object_code import ObjectCode, UnlinkableError

llvm = pytest.importorskip("llvmlite.binding")
pytestmark = pytest.mark.skipif(
    linking.platform.machine() != "x86_64", reason="objects of other architectures are linked by LLVM"
)

# A call of an import, a constant that is read, one that points to another, data that is written, a jump table.
TEXT = """
@weights = internal constant [4 x double] [double 1.0, double 2.0, double 4.0, double 8.0]
@pointer = internal global ptr getelementptr ([4 x double], ptr @weights, i64 0, i64 2)
@calls = internal global i64 0
@elsewhere = external global i64
declare i64 @labs(i64)

define i64 @magnitude(i64 %x) {
  %before = load i64, ptr @calls
  %after = add i64 %before, 1
  store i64 %after, ptr @calls
  %result = tail call i64 @labs(i64 %x)
  ret i64 %result
}
define i64 @count() {
  %n = load i64, ptr @calls
  ret i64 %n
}
define double @weight(i64 %i) {
  %p = getelementptr double, ptr @weights, i64 %i
  %w = load double, ptr %p
  %third = load ptr, ptr @pointer
  %t = load double, ptr %third
  %sum = fadd double %w, %t
  ret double %sum
}
define i64 @other() {
  %n = load i64, ptr @elsewhere
  ret i64 %n
}
define i64 @choose(i64 %i) {
  switch i64 %i, label %none [ i64 0, label %a
                               i64 1, label %b
                               i64 2, label %c
                               i64 3, label %d
                               i64 4, label %e ]
a: %r0 = call i64 @magnitude(i64 -7)
   ret i64 %r0
b: %r1 = call i64 @count()
   ret i64 %r1
c: %r2 = call i64 @other()
   ret i64 %r2
d: ret i64 99
e: %r4 = call i64 @magnitude(i64 -5)
   %r5 = add i64 %r4, 1
   ret i64 %r5
none: ret i64 -1
}
"""
SYMBOLS = ("magnitude", "count", "weight", "other", "choose")
ELSEWHERE = ctypes.c_int64(4321)


@cache
def compiled(text: str = TEXT) -> bytes:
    return linking._compile_by_llvm(text, ())


def imports() -> dict[str, int]:
    labs = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
    return {"labs": labs, "elsewhere": ctypes.addressof(ELSEWHERE)}


def functions(code: ObjectCode) -> dict[str, object]:
    whole = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    real = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)
    return {name: (real if name == "weight" else whole)(address) for name, address in code.addresses.items()}


def test_code_calls_reads_and_writes_what_it_names() -> None:
    code = ObjectCode([compiled()], imports(), SYMBOLS)
    f = functions(code)
    assert [f["magnitude"](x) for x in (-3, 4, -(1 << 40))] == [3, 4, 1 << 40]
    assert f["count"](0) == 3
    assert [f["weight"](i) for i in range(4)] == [5.0, 6.0, 8.0, 12.0]
    assert f["other"](0) == 4321
    assert [f["choose"](i) for i in range(6)] == [7, 4, 4321, 99, 6, -1]


def test_objects_call_each_other_and_have_data_of_their_own() -> None:
    caller = (
        "declare i64 @count()\ndefine i64 @twice() {\n  %n = call i64 @count()\n  %m = mul i64 %n, 2\n  ret i64 %m\n}"
    )
    code = ObjectCode([compiled(caller), compiled()], imports(), ("twice", "magnitude"))
    again = ObjectCode([compiled()], imports(), ("count",))
    f = functions(code)
    assert f["magnitude"](-1) == 1
    assert f["twice"](0) == 2
    assert functions(again)["count"](0) == 0


@pytest.mark.parametrize(
    ("objects", "given_imports", "symbols", "said"),
    [
        ((TEXT,), (), SYMBOLS, "undefined symbol"),
        ((TEXT,), ("labs", "elsewhere"), ("absent",), "undefined symbol 'absent'"),
        ((TEXT, TEXT), ("labs", "elsewhere"), SYMBOLS, "defined twice"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    objects: tuple[str, ...], given_imports: tuple[str, ...], symbols: tuple[str, ...], said: str
) -> None:
    known = {name: imports()[name] for name in given_imports}
    with pytest.raises(UnlinkableError, match=said):
        ObjectCode(list(map(compiled, objects)), known, symbols)


@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12),
    st.floats(0, 1),
)
def test_damaged_objects_are_refused_or_read(changes: list[tuple[float, int]], kept: float) -> None:
    """Never another error, and nothing is written outside (which would end the process)."""
    data = bytearray(compiled())
    for place, value in changes:
        data[int(place * len(data))] = value
    for damaged in (bytes(data), bytes(data[: int(kept * len(data))])):
        with suppress(UnlinkableError):
            assert set(ObjectCode([damaged], imports(), SYMBOLS).addresses) == set(SYMBOLS)


NO_BITS = 8


@pytest.mark.parametrize("nbytes", [1 << 55, (1 << 64) - 1])
def test_a_section_of_any_size_is_refused(nbytes: int) -> None:
    """One without data in the file can claim more memory than there is, or than an address reaches."""
    data = bytearray(compiled())
    (table,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    headers = [table + number * size for number in range(count)]
    (header,) = [at for at in headers if struct.unpack_from("<I", data, at + 4) == (NO_BITS,)]
    struct.pack_into("<Q", data, header + 32, nbytes)
    with pytest.raises(UnlinkableError, match="bytes"):
        ObjectCode([bytes(data)], imports(), SYMBOLS)


def test_headers_far_outside_are_refused() -> None:
    data = bytearray(compiled())
    struct.pack_into("<Q", data, 40, 1 << 63)
    with pytest.raises(UnlinkableError, match="damaged"):
        ObjectCode([bytes(data)], imports(), SYMBOLS)


BLOCKED = 'import sys; sys.modules["llvmlite"] = sys.modules["llvmlite.binding"] = None\n'
COMPILED = """
import ctypes
from kernelyard.runtime.jit.linking import compile_text
code = compile_text("define i64 @f() { ret i64 42 }", {}, ("f",))
print(None if code is None else ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["f"])())
"""


def test_text_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process loads what an earlier one compiled, without LLVM."""

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()

    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("KERNELYARD_CACHE_MB", raising=False)
    assert run(BLOCKED + COMPILED) == "None"
    assert run(COMPILED) == "42"
    assert run(BLOCKED + COMPILED) == "42"
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "0")
    assert run(BLOCKED + COMPILED) == "None"
