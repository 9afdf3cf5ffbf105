"""The choice of tiles: what the model says of plain cases, and what measuring does."""

from __future__ import annotations

import pytest

from kernelyard_cutlass import tune
from kernelyard_cutlass.epilogue import Epilogue
from kernelyard_cutlass.gpus import GPUS, gpu_of
from kernelyard_cutlass.kernels import MATHS, GemmKernel, Tile
from kernelyard_cutlass.tiles import TILES, Problem, clocks, rank_tiles, tiles_for

A100, L40 = GPUS[8, 0], GPUS[8, 9]


def test_a_large_product_takes_large_tiles_and_a_small_one_small_tiles():
    tiles = tiles_for("float16", 16, A100, 2)
    large = rank_tiles(tiles, Problem(8192, 8192, 4096, 1, 2), "float16", A100)[0]
    small = rank_tiles(tiles, Problem(64, 512, 1024, 1, 2), "float16", A100)[0]
    assert large.m * large.n >= 128 * 128
    assert small.m == small.n == 64


def test_batches_fill_a_gpu_as_rows_do():
    tiles = tiles_for("float16", 16, A100, 2)
    one, many = (rank_tiles(tiles, Problem(128, 128, 64, batch, 2), "float16", A100)[0] for batch in (1, 4096))
    assert many.m * many.n > one.m * one.n


def test_a_wave_more_costs_more():
    tile = Tile(128, 128, 32, 64, 64, 4)
    rows = [128 * blocks for blocks in range(1, 900, 20)]
    costs = [clocks(tile, Problem(m, 128, 1024, 1, 2), "float16", A100) for m in rows]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]


@pytest.mark.parametrize("multiplication", MATHS)
def test_tiles_are_of_whole_instructions_and_fit(multiplication):
    m, n, k = MATHS[multiplication].instruction
    itemsize = {"int8": 1, "float16": 2, "bfloat16": 2}.get(multiplication, 4)
    for gpu in GPUS.values():
        tiles = tiles_for(multiplication, 16, gpu, itemsize)
        assert tiles
        for tile in tiles:
            assert tile.shared_nbytes(itemsize) <= gpu.shared_nbytes
            assert tile.m % tile.warp_m == tile.n % tile.warp_n == 0
            assert tile.warp_m % m == tile.warp_n % n == tile.k % k == 0
    assert len(tiles_for(multiplication, 16, L40, itemsize)) <= len(TILES[multiplication])


def test_operands_that_are_not_copied_while_others_are_multiplied_have_two_stages():
    assert {tile.stages for tile in tiles_for("float16", 2, A100, 2)} == {2}
    assert min(tile.stages for tile in tiles_for("float16", 4, A100, 2)) > 2


def test_gpus_that_are_not_known_are_like_the_newest_before_them():
    assert gpu_of((9, 9)) is GPUS[9, 0]
    assert gpu_of((7, 5)) is GPUS[8, 0]


# --- measuring --------------------------------------------------------------------------------------------------------
class Clock:
    """A device on which each candidate takes a time of its own."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.runs, self.seconds = 0.0, [0] * len(seconds), seconds
        monkeypatch.setattr(tune.time, "perf_counter", lambda: self.now)

    def prepare(self, number):
        def run():
            self.runs[number] += 1
            self.now += self.seconds[number]

        return run


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")


def test_the_quickest_is_found_and_remembered(monkeypatch, cache):
    clock = Clock(monkeypatch, [3.0, 1.0, 2.0])
    names = ["large", "middle", "small"]
    assert tune.fastest("key", names, clock.prepare, lambda: None) == 1
    assert len(set(clock.runs)) == 1, "each as often as the others"
    again = Clock(monkeypatch, [1.0, 3.0, 2.0])
    assert tune.fastest("key", names, again.prepare, lambda: None) == 1
    assert again.runs == [0, 0, 0]
    assert tune.fastest("another key", names, again.prepare, lambda: None) == 0


def test_a_memory_of_what_is_no_candidate_is_not_used(monkeypatch, cache):
    tune.CACHE.put("key", b"a tile of another release")
    clock = Clock(monkeypatch, [2.0, 1.0])
    assert tune.fastest("key", ["one", "other"], clock.prepare, lambda: None) == 1


def test_the_order_of_candidates_is_no_other_measurement():
    tiles = TILES["float16"][:2]
    kernels = [GemmKernel("float16", "float16", "float16", 8, 8, 8, tile, Epilogue(), False) for tile in tiles]
    problem = Problem(1, 2, 3, 4, 2)
    assert tune.key_of(problem, kernels, "gpu") == tune.key_of(problem, kernels[::-1], "gpu")
