"""What the emulator stops: kernels written by hand, and generated ones with a line taken away."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.ir import TensorType
from kernelyard.runtime.abi import memory
from kernelyard.runtime.device.device import cuda
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.plugin_cache import plugin_cache
from kernelyard_cuda.driver_api import Argument, Grid, Image
from kernelyard_native_cuda.drivers import emulator as emulator_driver
from kernelyard_native_cuda.drivers import open_device
from kernelyard_native_cuda.drivers.emulator import precompile
from kernelyard_native_cuda.generator import PRELUDE, TILES

from .conftest import generate, run_on
from .test_rules import f32, lower


def run_text(
    emulator, body: str, elements: int = 64, threads: int = 64, blocks: int = 1, shared: int = 4096
) -> np.ndarray:
    """What a kernel with that body leaves in `out`, which holds -1 before."""
    head = f'extern "C" __global__ void kernel(GLOBAL(float) out, const long long n) {{ {body} }}'
    image = Image(f"{PRELUDE.read_text()}\n{TILES.read_text()}\n{head}", ("kernel",), {})
    held, array = DeviceMemory(emulator, 4 * elements), np.full(elements, -1, np.float32)
    emulator.upload(held.address, array)
    arguments = [Argument(held.address, array.nbytes), Argument(elements)]
    emulator.load(image).prepare("kernel", Grid((blocks, 1, 1), (threads, 1, 1), shared), arguments)()
    emulator.download(held.address, array)
    return array


def test_blocks_threads_and_barriers(emulator):
    body = """
      SHARED(float, turned, 64);
      turned[63 - threadIdx.x] = threadIdx.x + 100 * blockIdx.x;
      __syncthreads();
      out[blockIdx.x * blockDim.x + threadIdx.x] = turned[threadIdx.x];
    """
    expected = np.concatenate([np.arange(63, -1, -1), np.arange(163, 99, -1)])
    np.testing.assert_array_equal(run_text(emulator, body, elements=128, blocks=2), expected)


def test_a_warp_orders_its_own_accesses_of_shared_memory(emulator):
    turn = "SHARED(float, s, 64); s[threadIdx.x] = threadIdx.x; {} out[threadIdx.x] = s[threadIdx.x ^ {}];"
    swapped = run_text(emulator, turn.format("__syncwarp();", 31))
    np.testing.assert_array_equal(swapped, np.arange(64) ^ 31)
    again = "__syncwarp(); const float v = s[threadIdx.x ^ 1]; __syncwarp(); s[threadIdx.x ^ 1] = v + 1; __syncwarp();"
    np.testing.assert_array_equal(run_text(emulator, turn.format(again, 0)), np.arange(64) + 1)
    # Not across warps, nor by a shuffle, nor by what is ordered one way alone.
    late = "__syncwarp(); const float v = s[threadIdx.x ^ 1]; s[threadIdx.x ^ 3] = v;"
    for between, other in (("__syncwarp();", 32), ("__shfl_sync(ALL_LANES, 1.0f, 0);", 1), (late, 0)):
        with pytest.raises(ExecutionError, match=r"shared memory is (read|written) before a barrier"):
            run_text(emulator, turn.format(between, other))


def test_warp_shuffles(emulator):
    lane = np.arange(64) % 32
    first = np.arange(64) - lane
    for text, source in {
        "__shfl_xor_sync(ALL_LANES, v, 5)": lane ^ 5,
        "__shfl_down_sync(ALL_LANES, v, 3)": np.where(lane + 3 < 32, lane + 3, lane),
        "__shfl_up_sync(ALL_LANES, v, 3)": np.where(lane >= 3, lane - 3, lane),
        "__shfl_sync(ALL_LANES, v, 7)": np.full(64, 7),
        "__shfl_xor_sync(ALL_LANES, v, 5, 8)": lane ^ 5,
        "__shfl_xor_sync(ALL_LANES, v, 9, 8)": np.where((lane ^ 9) // 8 <= lane // 8, lane ^ 9, lane),
        "__shfl_down_sync(ALL_LANES, v, 3, 8)": np.where(lane % 8 + 3 < 8, lane + 3, lane),
        "__shfl_up_sync(ALL_LANES, v, 3, 8)": np.where(lane % 8 >= 3, lane - 3, lane),
        "__shfl_sync(ALL_LANES, v, 3, 8)": lane // 8 * 8 + 3,
    }.items():
        found = run_text(emulator, f"const float v = threadIdx.x; out[threadIdx.x] = {text};")
        np.testing.assert_array_equal(found, first + source, err_msg=text)


def test_votes(emulator):
    text = "const unsigned odd = __ballot_sync(ALL_LANES, threadIdx.x % 2);"
    found = run_text(emulator, f"{text} out[threadIdx.x] = odd >> threadIdx.x % 32 & 3u;")
    np.testing.assert_array_equal(found[:31], np.arange(31) % 2 + 2 * (np.arange(31) % 2 == 0))
    body = "out[threadIdx.x] = __any_sync(ALL_LANES, threadIdx.x == 3) + 2 * __all_sync(ALL_LANES, threadIdx.x < 63);"
    np.testing.assert_array_equal(run_text(emulator, body), np.where(np.arange(64) < 32, 3, 0))


COPY = "cp_async<4, float>(4 * threadIdx.x, (emulation::Global<const float>{out.data, out.size}), threadIdx.x, true);"


def test_asynchronous_copies_arrive_when_they_are_waited_for(emulator):
    body = f"{COPY} cp_async_commit(); cp_async_wait<0>(); __syncthreads();"
    body += "out[threadIdx.x] = shared_at<float>(4 * (63 - threadIdx.x)) + threadIdx.x;"
    np.testing.assert_array_equal(run_text(emulator, body), np.arange(64) - 1)
    outside = COPY.replace("true", "threadIdx.x < 8")
    body = f"{outside} cp_async_commit(); cp_async_wait<0>(); out[threadIdx.x] = shared_at<float>(4 * threadIdx.x);"
    np.testing.assert_array_equal(run_text(emulator, body), np.where(np.arange(64) < 8, -1, 0))


def test_blocks_of_a_grid_along_three_axes(emulator):
    head = 'extern "C" __global__ void kernel(GLOBAL(float) out) {'
    body = "out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = 100 * blockIdx.z + 10 * blockIdx.y + blockIdx.x;"
    image = Image(f"{PRELUDE.read_text()}\n{head} {body} }}", ("kernel",), {})
    held, array = DeviceMemory(emulator, 4 * 24), np.zeros((4, 3, 2), np.float32)
    argument = Argument(held.address, array.nbytes)
    emulator.load(image).prepare("kernel", Grid((2, 3, 4), (1, 1, 1)), [argument])()
    emulator.download(held.address, array)
    z, y, x = np.indices(array.shape)
    np.testing.assert_array_equal(array, 100 * z + 10 * y + x)


def test_atomics(emulator):
    found = run_text(emulator, "if (threadIdx.x == 0) out[0] = 0; __syncthreads(); atomicAdd(&out[0], 1.0f);")
    assert found[0] == 64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("out[threadIdx.x + 1] = 0;", "an access outside a tensor (index 64 of 64) by thread (63, 0, 0)"),
        ("out[(long long)threadIdx.x - 1] = 0;", "an access outside a tensor (index -1 of 64)"),
        ("SHARED(float, s, 8); s[threadIdx.x] = 0;", "an access outside a shared array (index 8 of 8)"),
        ("SHARED(float, s, 64); out[0] = s[threadIdx.x];", "shared memory is read that nobody wrote"),
        ("SHARED(float, s, 64); s[0] = threadIdx.x;", "two threads write one element"),
        (
            "SHARED(float, s, 64); s[threadIdx.x] = 0; out[0] = s[0];",
            "shared memory is read before a barrier after another thread wrote it",
        ),
        (
            "SHARED(float, s, 64); s[threadIdx.x] = 1; __syncthreads(); out[0] = s[(threadIdx.x + 1) % 64]; if (threadIdx.x == 1) s[1] = 0;",
            "shared memory is written before a barrier after another thread read it",
        ),
        ("if (threadIdx.x < 8) __syncthreads();", "8 of 64 threads of block (0, 0, 0) wait at __syncthreads"),
        ("if (threadIdx.x < 40) of_lane_across(1.0f, 1); else __syncthreads();", "at a warp collective"),
        (
            f"{COPY} out[0] = shared_at<float>(4 * threadIdx.x);",
            "before the asynchronous copy that writes it is waited for",
        ),
        (
            f"{COPY} cp_async_commit(); cp_async_wait<1>(); out[0] = shared_at<float>(4 * threadIdx.x);",
            "before the asynchronous copy that writes it is waited for",
        ),
        (
            f"{COPY} cp_async_wait<0>(); out[0] = shared_at<float>(4 * threadIdx.x);",
            "before the asynchronous copy that writes it is waited for",
        ),
        (
            f"{COPY} cp_async_commit(); cp_async_wait<0>(); out[0] = shared_at<float>(4 * (63 - threadIdx.x));",
            "shared memory is read that nobody wrote",
        ),
        (f"{COPY} put_shared(4 * threadIdx.x, 1.0f);", "written while an asynchronous copy is to write it"),
        (COPY.replace("threadIdx.x, true", "threadIdx.x + 1, true"), "an access outside a tensor (index 64 of 64)"),
        (
            COPY.replace("<4,", "<16,")
            .replace("4 * t", "16 * t")
            .replace("threadIdx.x, true", "threadIdx.x / 2, true"),
            "an asynchronous copy from a place that is not aligned",
        ),
        (
            "put_shared(4 * threadIdx.x + 3844, 1.0f);",
            "an access outside dynamic shared memory (index 4096 of 4096)",
        ),
        ("put_shared(4 * threadIdx.x + 2, 1.0f);", "an access of shared memory that is not aligned"),
        ("out[0] = shared_at<float>(4 * threadIdx.x);", "shared memory is read that nobody wrote"),
        ("put_shared(0, 1.0f);", "two threads write one element"),
        (
            "put_shared(4 * threadIdx.x, 1.0f); unsigned m[4]; ldmatrix<false>(m, threadIdx.x % 8 * 16);",
            "shared memory is read before a barrier after another thread wrote it",
        ),
        (
            "float d[4] = {}; unsigned a[4] = {0x3f800001u}, b[2] = {}; mma<float>(d, a, b);",
            "a factor of a product in tf32 that is not rounded to it",
        ),
        ("if (threadIdx.x < 16) __ballot_sync(ALL_LANES, 1);", "at a warp collective"),
        ("put_pack<4, float>(out, 2 + 0 * threadIdx.x, Pack<float, 4>{});", "not aligned"),
    ],
)
def test_what_is_wrong_is_stopped_and_named(emulator, body, words):
    with pytest.raises(ExecutionError) as caught:
        run_text(emulator, body)
    assert words in str(caught.value)


def test_shared_memory_of_an_earlier_block_is_not_there(emulator):
    body = "SHARED(float, s, 64); if (blockIdx.x == 0) s[threadIdx.x] = 1; out[threadIdx.x] = s[threadIdx.x];"
    with pytest.raises(ExecutionError, match=r"nobody wrote.*block \(1, 0, 0\)"):
        run_text(emulator, body, blocks=2)


def test_unwritten_memory_shows(emulator):
    held, array = DeviceMemory(emulator, 16), np.zeros(4, np.float32)
    emulator.download(held.address, array)
    assert (array < -300).all()


# --- the device -------------------------------------------------------------------------------------------------------
def test_without_a_compiler_the_emulator_is_refused_with_the_way_out(monkeypatch):
    from kernelyard_native_cuda.drivers.emulator import emulator

    emulator.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    try:
        with pytest.raises(DeviceError, match="no-such-compiler") as caught:
            cuda("emulator").require()
        assert "g++" in str(caught.value.hint)
    finally:
        emulator.cache_clear()


@pytest.mark.parametrize("names", [(), ("tiles.cuh", "warpgroups.cuh")], ids=["short", "wgmma"])
def test_programs_do_without_the_library_of_cpp(emulator, names):
    """To link it would take as long as to compile a short kernel."""
    parts = [PRELUDE, *map(PRELUDE.with_name, names)]
    code = emulator.compile("\n".join(['#include "emulation.h"', *(part.read_text() for part in parts)]))
    assert b"libc.so" in code
    assert b"libstdc++" not in code


@pytest.mark.parametrize("megabytes", ["512", "0"])
def test_its_header_is_precompiled_once_where_files_may_be_kept(emulator, tmp_path, monkeypatch, megabytes):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", megabytes)
    monkeypatch.setattr(emulator_driver, "plugin_cache", plugin_cache)  # instead of what all tests have
    monkeypatch.setattr(emulator_driver, "CACHE", DiskCache("cuda-emulator"))
    precompile.cache_clear()
    for value in (1, 2):
        np.testing.assert_array_equal(run_text(emulator, f"out[threadIdx.x] = {value};"), np.full(64, value))
    assert len(list(tmp_path.rglob("emulation.h.gch"))) == (megabytes != "0")
    precompile.cache_clear()


@pytest.mark.parametrize("index", ["emu", -1, 1.5, True])
def test_other_devices_are_refused(index):
    with pytest.raises(DeviceError, match="there is no such CUDA device"):
        open_device(index)


def test_narrow_floats_are_rounded_as_numpy_rounds_them(emulator):
    """Every bit pattern of each narrow float widened, and floats around all of them narrowed."""
    from kernelyard import dtypes

    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        numpy = dtypes.to_numpy(dtype)
        bits = np.arange(1 << (8 * numpy.itemsize), dtype=f"uint{8 * numpy.itemsize}")
        narrow = bits.view(numpy)
        with np.errstate(all="ignore"):
            wide = narrow.astype(np.float32)
            near = np.concatenate([wide, np.nextafter(wide, np.float32(np.inf)), wide * np.float32(1.03125)])
            wanted = near.astype(numpy).astype(np.float32)
        module = generate(
            {
                "widen": lower("astype", TensorType(narrow.shape, dtype), dtype="float32"),
                "narrow": lower("astype", f32(*near.shape), dtype=dtype),
            }
        )
        np.testing.assert_array_equal(run_on(emulator, module, "widen", [narrow])[0], wide)
        found = run_on(emulator, module, "narrow", [near])[0].astype(np.float32)
        np.testing.assert_array_equal(found, wanted, err_msg=dtype)
        assert memory.nbytes_of(narrow.shape, dtype) == narrow.nbytes
