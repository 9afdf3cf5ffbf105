"""Test that the emulator stops wrong uses of mbarriers, bulk copies and wgmma: handwritten kernels, and mutants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernelyard.errors import ExecutionError
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard_cuda.driver_api import Argument, Grid, Image, TensorMap
from kernelyard_native_cuda import generator
from kernelyard_native_cuda.drivers.emulator import Checks
from kernelyard_native_cuda.generator import PRELUDE, TILES
from kernelyard_native_cuda.schedule import wgmma
from kernelyard_native_cuda.schedule.machine import machine_of

from .test_mutants import check_right, mutated
from .test_products import inputs_of, product
from .test_wgmma import generate

START = """
  if (threadIdx.x == 0) { mbarrier_init(BAR, 1); mbarrier_init(BAR + 8, 4); fence_async(); }
  __syncthreads();
"""
COPY = """
  if (threadIdx.x == 0) {
    mbarrier_expect(BAR, 16384);
    const int one[2] = {K0, 0}, other[2] = {0, K0};
    bulk_copy(0, a, BAR, one);
    bulk_copy(8192, b, BAR, other);
  }
"""
WAIT = "mbarrier_wait(BAR, 0);"
MULTIPLY = """
  float total[32];
  wgmma_fence();
  for (int k = 0; k < 4; ++k)
    wgmma<Half, 64, true, false>(total, wgmma_descriptor(32 * k, 16, 1024), wgmma_descriptor(8192 + 2048 * k, 8192, 1024), k > 0);
  wgmma_commit();
"""
REGISTERS = """
  unsigned factors[4][4];
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i) {
      const unsigned place = (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8) * 128 + k * 32 + i / 2 * 16;
      factors[k][i] = shared_at<unsigned>((place ^ (place >> 7 & 7) << 4) + threadIdx.x % 4 * 4);
    }
  float total[32];
  wgmma_fence();
  for (int k = 0; k < 4; ++k)
    wgmma<Half, 64, false>(total, factors[k], wgmma_descriptor(8192 + 2048 * k, 8192, 1024), k > 0);
  wgmma_commit();
"""
LATE = "wgmma_wait<0>();"
STORE = """
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 32; ++i) out[(row + i / 2 % 2 * 8) * 64 + column + i / 4 * 8 + i % 2] = total[i];
"""
PARTS = {
    "START": START,
    "COPY": COPY,
    "WAIT": WAIT,
    "MULTIPLY": MULTIPLY,
    "REGISTERS": REGISTERS,
    "LATE": LATE,
    "STORE": STORE,
}
WHOLE = "START COPY WAIT MULTIPLY LATE STORE"


def run_product(emulator, text: str, rows: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a kernel of parts and lines leaves in `out`, from a and b of 64 rows and columns.

    rows: of each, as its map has it.
    """
    for name, part in PARTS.items():
        text = text.replace(name, part)
    take = "GLOBAL(float) out, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b"
    head = f'#define BAR 16384\n#define K0 0\nextern "C" __global__ void kernel({take}) {{ {text} }}'
    body = "\n".join((PRELUDE.read_text(), TILES.read_text(), wgmma.WARPGROUPS.read_text(), head))
    a, b = inputs_of(("mk", "kn"), "float16", {"m": 64, "n": 64, "k": 64})
    held = [DeviceMemory(emulator, array.nbytes) for array in (np.empty((64, 64), np.float32), a, b)]
    for place, array in zip(held[1:], (a, b), strict=True):
        emulator.upload(place.address, array)
    at = [Argument(place.address, nbytes) for place, nbytes in zip(held, (16384, 8192, 8192), strict=True)]
    maps = [TensorMap(each, "float16", (64, rows), (128,), (64, 64)) for each in at[1:]]
    emulator.load(Image(body, ("kernel",), {})).prepare("kernel", Grid((1, 1, 1), (128, 1, 1), 20480), at[:1], maps)()
    out = np.empty((64, 64), np.float32)
    emulator.download(held[0].address, out)
    return out, a.astype(np.float32), b.astype(np.float32)


def test_a_product_of_what_bulk_copies_bring(emulator):
    found, a, b = run_product(emulator, WHOLE)
    np.testing.assert_array_equal(found, a @ b)


def test_a_product_of_registers(emulator):
    found, a, b = run_product(emulator, WHOLE.replace("MULTIPLY", "REGISTERS"))
    np.testing.assert_array_equal(found, a @ b)


def test_what_lies_outside_a_tensor_is_zero(emulator):
    text = WHOLE.replace("COPY", COPY.replace("{0, K0}", "{8, -4}"))
    found, a, b = run_product(emulator, text)
    moved = np.zeros((64, 64), np.float32)
    moved[4:, :-8] = b[:-4, 8:]
    np.testing.assert_array_equal(found, a @ moved)


ELECTED = "if (threadIdx.x == 0)"
WRITTEN = "for (int i = threadIdx.x; i < 4096; i += 128) put_shared(i * 4, 0); FENCE __syncthreads();"
# A kernel's parts, and what is said of it.
STOPPED = {
    "not waited for": (
        "START COPY MULTIPLY LATE STORE",
        "wgmma reads shared memory before the copy that writes it is waited",
    ),
    "one thread alone waits": (
        f"START COPY {ELECTED} WAIT MULTIPLY LATE STORE",
        "wgmma reads shared memory before the copy that writes it is waited for (index 2048 of 20480) by thread (32, 0, 0)",
    ),
    "the wrong phase": (
        WHOLE.replace("WAIT", "mbarrier_wait(BAR, 1);"),
        "before the copy that writes it is waited for",
    ),
    "a phase that never ends": (
        WHOLE.replace("WAIT", "WAIT mbarrier_wait(BAR, 1);"),
        "128 at an mbarrier or for wgmma",
    ),
    "more bytes than come": (WHOLE.replace("COPY", COPY.replace("16384)", "16400)")), "128 at an mbarrier"),
    "no fence behind the initialization": (
        WHOLE.replace("START", START.replace("fence_async();", "")),
        "a bulk copy uses an mbarrier whose initialization was not fenced",
    ),
    "no barrier behind the initialization": (
        WHOLE.replace("START", START.replace("__syncthreads();", "")),
        "an mbarrier is used before a barrier after another thread initialized it",
    ),
    "no mbarrier": ("mbarrier_wait(BAR + 64, 0);", "an mbarrier that nobody initialized"),
    "an mbarrier that is not aligned": ("mbarrier_init(BAR + 4, 1);", "an mbarrier that is not aligned"),
    "an mbarrier overwritten": ("START __syncthreads(); put_shared(BAR + 8, 0);", "an mbarrier is overwritten"),
    "too many arrivals": (
        f"START {ELECTED} {{ mbarrier_expect(BAR, 128); mbarrier_arrive(BAR); }}",
        "more arrivals at an mbarrier than a phase of it has",
    ),
    "no wgmma.fence": (
        WHOLE.replace("MULTIPLY", MULTIPLY.replace("wgmma_fence();", "")),
        "wgmma with no wgmma.fence before it",
    ),
    "totals that are not waited for": (
        "START COPY WAIT MULTIPLY STORE",
        "a block ends while wgmma of thread 0 is under way",
    ),
    "a group that is not committed": (
        WHOLE.replace("MULTIPLY", MULTIPLY.replace("wgmma_commit();", "")),
        "a block ends while wgmma of thread 0 is under way",
    ),
    "a warp that takes no part": (
        "START COPY WAIT if (threadIdx.x < 96) { MULTIPLY LATE STORE }",
        "96 at an mbarrier or for wgmma",
    ),
    "overwritten while it is read": (
        WHOLE.replace("LATE", "__syncthreads(); put_shared(threadIdx.x * 4, 0); LATE"),
        "shared memory is written while wgmma may read it",
    ),
    "copied to while it is read": (
        WHOLE.replace("LATE", f"{COPY} LATE"),
        "shared memory is written while wgmma may read it",
    ),
    "copied to while other warps may read it": (
        WHOLE.replace("LATE", f"LATE {COPY.replace('== 0', '== 96')}"),
        "shared memory is written although wgmma of another warp may read it",
    ),
    "read while it comes": (
        "START COPY out[0] = shared_at<float>(0); WAIT",
        "before the asynchronous copy that writes it",
    ),
    "written while it comes": (
        "START COPY put_shared(threadIdx.x * 4, 0); WAIT",
        "while an asynchronous copy is to write it",
    ),
    "not there when the block ends": ("START COPY", "a block ends while a bulk copy to place 0 is under way"),
    "a copy that is not aligned": (WHOLE.replace("COPY", COPY.replace("bulk_copy(0,", "bulk_copy(64,")), "not aligned"),
    "written with no fence": (
        f"{WRITTEN.replace('FENCE', '')} MULTIPLY LATE STORE",
        "wgmma reads what a thread wrote with no fence behind it",
    ),
    "nobody wrote": ("MULTIPLY LATE STORE", "wgmma reads shared memory that nobody wrote"),
    "registers written while they are read": (
        WHOLE.replace("MULTIPLY LATE", "REGISTERS factors[3][2] ^= 1; LATE"),
        "registers are written while wgmma may read them",
    ),
    "another layout": (
        WHOLE.replace("MULTIPLY", MULTIPLY.replace("wgmma_descriptor(32 * k, 16, 1024)", "2ull << 62")),
        "a layout of wgmma that is not emulated",
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_is_wrong_is_stopped_and_named(emulator, name):
    text, words = STOPPED[name]
    with pytest.raises(ExecutionError) as caught:
        run_product(emulator, text)
    assert words in str(caught.value)


def test_what_is_fenced_and_waited_for_is_not_stopped(emulator):
    found, _, _ = run_product(emulator, f"{WRITTEN.replace('FENCE', 'fence_async();')} MULTIPLY LATE STORE")
    np.testing.assert_array_equal(found, 0)
    again = "__syncwarp(); if (threadIdx.x % WARP == 0) mbarrier_arrive(BAR + 8);"
    again += (
        f"{ELECTED} mbarrier_wait(BAR + 8, 0); {COPY} mbarrier_wait(BAR, 1); {MULTIPLY.replace('float total[32];', '')}"
    )
    found, a, b = run_product(emulator, WHOLE.replace("LATE", f"LATE {again} LATE"))
    np.testing.assert_array_equal(found, a @ b)


def test_a_map_that_reaches_outside_its_tensor_is_stopped(emulator):
    with pytest.raises(ExecutionError, match="a tensor map reaches outside its tensor"):
        run_product(emulator, WHOLE, rows=65)


# --- mutants of what is generated -------------------------------------------------------------------------------------
RING = "// A ring of stages"
SIZES = {"m": 136, "n": 72, "k": 456}
MUTANTS = [
    ("at.wait();", 1, ""),
    ("mbarrier_wait(FULL + 8 * stage, parity);", 1, "mbarrier_wait(FULL + 8 * stage, parity ^ 1);"),
    ("mbarrier_wait(EMPTY + 8 * stage, parity ^ 1);", 1, ""),
    ("parity ^ 1", 1, "parity"),
    ("parity ^= stage == 0;", 1, ""),
    ("at.expect(STAGE)", 1, "at.expect(STAGE - 128)"),
    ("Ring<STAGES, 4 * CONSUMERS,", 1, "Ring<STAGES, 3 * CONSUMERS,"),
    ("fence_async();", 1, ""),
    ("__syncthreads();", 1, ""),
    ("wgmma_fence();", 1, ""),
    ("wgmma_commit();", 1, ""),
    ("wgmma_wait<1>();", 1, ""),
    ("wgmma_wait<1>();", 1, "wgmma_wait<2>();"),
    ("wgmma_wait<0>();", 1, ""),
    ("last.release();", 1, "at.release();"),
    ("last.release();", 2, ""),
    ("__syncwarp();", 1, ""),
    ("__syncwarp();", 2, ""),
    ("step > 0 || k > 0", 1, "k > 0"),
    ("step > 0 || k > 0", 1, "true"),
    ("first + i * 64", 1, "i * 64"),
    ("consumer_warp() % 4 * 16 + row", 1, "row"),
]


@pytest.mark.parametrize(("old", "number", "new"), MUTANTS)
def test_mutants_are_found(emulator, monkeypatch, old, number, new):
    monkeypatch.setattr(generator, "find_kernel_compiler", lambda: None)
    monkeypatch.setattr(generator, "machine_of", lambda *given: replace(machine_of(*given), multiprocessors=1))
    monkeypatch.setattr(wgmma, "choose", lambda it, machine: wgmma.SHAPES[3])
    monkeypatch.setattr(emulator, "checks", Checks(order=1))
    function, inputs = product("mk", "kn", "float16", SIZES), inputs_of(("mk", "kn"), "float16", SIZES)
    module = generate({"kernel": function})
    with pytest.raises(
        (ExecutionError, AssertionError), match=r"a kernel failed in the emulator|Arrays are not equal|Not equal to tol"
    ):
        check_right(emulator, function, mutated(module, old, number, new, RING), inputs)
