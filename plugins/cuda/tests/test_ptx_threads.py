"""Memory, branches, barriers, warps and asynchronous copies of the PTX interpreter; what must be stopped is."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import PtxError
from ptx.snippets import apply, kernel, launch

X = np.random.default_rng(0).integers(-99, 99, 64).astype(np.int32)
LANES = np.arange(64) % 32
ADDRESS = "mad.wide.u32 %rd10, %t, 4, %rd0;"


# --- memory -----------------------------------------------------------------------------------------------------------
def test_vectors_are_loaded_and_stored():
    body = """mul.wide.u32 %rd10, %t, 16; add.u64 %rd11, %rd0, %rd10; add.u64 %rd12, %rd1, %rd10;
    ld.global.nc.v4.u32 {%r0, %r1, %r2, %r3}, [%rd11]; st.global.v2.b32 [%rd12], {%r3, %r2}; st.global.b32 [%rd12+8], %r0;"""
    x = np.arange(128, dtype=np.int32).reshape(32, 4)
    found = launch(kernel(body, 2), [x, np.zeros_like(x)])[1]
    np.testing.assert_array_equal(found, np.stack([x[:, 3], x[:, 2], x[:, 0], 0 * x[:, 0]], 1))


def test_narrow_loads_are_extended():
    bytes_ = np.arange(-16, 16).astype(np.int8)
    np.testing.assert_array_equal(apply("cvt.s32.s8 %0, %1", ("s8", bytes_), result="s32"), bytes_)
    body = f"cvt.u64.u32 %rd12, %t; add.u64 %rd12, %rd12, %rd1; ld.global.s8 %r0, [%rd12]; {ADDRESS} st.global.u32 [%rd10], %r0;"
    np.testing.assert_array_equal(launch(kernel(body, 2), [np.zeros(32, np.int32), bytes_])[0], bytes_)


def test_numbers_are_taken_apart_and_put_together():
    text = ".reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, lo}"
    x = X.view(np.uint32)
    np.testing.assert_array_equal(apply(text, ("u32", x), result="u32"), x << 16 | x >> 16)


@pytest.mark.parametrize("space", ["shared", "local"])
def test_memory_of_a_block_and_of_a_thread(space):
    """A thread reads what itself, or its neighbor, has written; by an address of the space, and by a generic one."""
    body = f""".{space} .align 4 .b8 room[256]; mov.u64 %rd11, room; cvta.{space}.u64 %rd12, %rd11;
    xor.b32 %r0, %t, 1; mul.wide.u32 %rd13, %t, 4; mul.wide.u32 %rd14, %r0, 4;
    add.u64 %rd15, %rd11, %rd13; st.{space}.u32 [%rd15], %t; bar.sync 0;
    add.u64 %rd16, %rd12, {"%rd14" if space == "shared" else "%rd13"}; ld.u32 %r1, [%rd16];
    {ADDRESS} st.global.u32 [%rd10], %r1;"""
    found = launch(kernel(body, 1), [np.zeros(64, np.int32)], threads=64)[0]
    np.testing.assert_array_equal(found, np.arange(64) ^ (space == "shared"))


def test_constants_of_a_module():
    body = f"{ADDRESS} mul.wide.u32 %rd11, %t, 4; mov.u64 %rd12, table; add.u64 %rd11, %rd11, %rd12; ld.const.u32 %r0, [%rd11]; st.global.u32 [%rd10], %r0;"
    text = kernel(body, 1, ".const .align 4 .u32 table[4] = {7, 8, 9};")
    np.testing.assert_array_equal(launch(text, [np.ones(4, np.int32)], threads=4)[0], [7, 8, 9, 0])


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [("add.u32", np.arange(64).sum()), ("max.u32", 63), ("exch.b32", 63), ("or.b32", 63), ("inc.u32", 0)],
)  # fmt: skip
def test_atomic_operations(operation, wanted):
    found = launch(kernel(f"atom.global.{operation} %r0, [%rd0], %t;", 1), [np.zeros(1, np.uint32)], threads=64)[0]
    assert found[0] == (wanted if operation != "inc.u32" else inc(64))


def inc(threads):
    value = 0
    for most in range(threads):
        value = 0 if value >= most else value + 1
    return value


def test_compare_and_swap_gives_what_was_there():
    body = f"atom.global.cas.b32 %r0, [%rd1], 5, %t; {ADDRESS} st.global.u32 [%rd10], %r0;"
    found, cell = launch(kernel(body, 2), [np.zeros(4, np.uint32), np.uint32([5])], threads=4)
    assert found.tolist() == [5, 0, 0, 0]
    assert cell[0] == 0


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (f"{ADDRESS} ld.global.u32 %r0, [%rd10];", r"out of bounds of global memory in thread \(16, 0, 0\) of block"),
        (f"{ADDRESS} ld.global.u32 %r0, [%rd10+2];", r"misaligned access of 4 bytes in global memory in thread \(0, 0, 0\)"),
        (f"{ADDRESS} st.global.v2.u32 [%rd10], {{%t, %t}};", r"misaligned access of 8 bytes .*thread \(1, 0, 0\).*0x1000"),
        ("ld.shared.u32 %r0, [%t];", "misaligned|out of bounds"),
        ("mov.u64 %rd10, 0; st.global.u32 [%rd10], %t;", "address 0x0"),
        (".local .align 4 .b8 room[8]; st.local.u32 [room+8], %t;", "out of bounds of local memory"),
        (".shared .align 16 .b8 room[16]; cp.async.ca.shared.global [room], [%rd0+4], 8;", "misaligned copy of 8 bytes"),
        (".shared .align 16 .b8 room[16]; cp.async.cg.shared.global [room], [%rd0+64], 16;", "copy out of bounds"),
        ("trap;", "traps"),
    ],
)  # fmt: skip
def test_wrong_accesses_are_stopped(body, what):
    with pytest.raises(PtxError, match=what):
        launch(kernel(body, 1), [np.zeros(16, np.int32)])


# --- control ----------------------------------------------------------------------------------------------------------
def test_threads_go_different_ways_and_meet_again():
    """Thread t counts to t; even ones add 100; then all shuffle, which asks that they have met."""
    body = f"""mov.u32 %r0, 0;
    LOOP: setp.ge.u32 %p0, %r0, %t; @%p0 bra DONE; add.u32 %r0, %r0, 1; bra.uni LOOP;
    DONE: and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra MEET; add.u32 %r0, %r0, 100;
    MEET: shfl.sync.bfly.b32 %r2, %r0, 1, 31, -1; {ADDRESS} st.global.u32 [%rd10], %r2;"""
    counted = np.arange(64) + np.where(np.arange(64) % 2, 0, 100)
    np.testing.assert_array_equal(launch(kernel(body, 1), [np.zeros(64, np.int32)], 64)[0], counted[np.arange(64) ^ 1])


def test_lanes_wait_at_a_shuffle_for_those_that_stand_before_it_in_time_but_behind_it_in_the_text():
    body = f"""setp.lt.u32 %p0, %t, 16; mov.u32 %r0, 1; @!%p0 bra LATER;
    HERE: shfl.sync.bfly.b32 %r1, %r0, 16, 31, -1; bra.uni END;
    LATER: mov.u32 %r0, 2; bra.uni HERE;
    END: {ADDRESS} st.global.u32 [%rd10], %r1;"""
    np.testing.assert_array_equal(launch(kernel(body, 1), [np.zeros(32, np.int32)])[0], np.repeat([2, 1], 16))


@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p0, %t, 32; @%p0 bar.sync 0;",  # the second warp has ended: this one goes on
        "bar.sync 0; bar.sync 1; bar.warp.sync -1;",
    ],
)
def test_barriers_let_go_on(body):
    launch(kernel(body, 1), [np.zeros(1, np.int32)], 64)


@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p0, %t, 8; @%p0 bra OTHER; bar.sync 0; bra.uni END; OTHER: bar.sync 0; END:",
        "setp.lt.u32 %p0, %t, 32; @%p0 bra OTHER; bar.sync 0; bra.uni END; OTHER: bar.sync 1; END:",
        "setp.lt.u32 %p0, %t, 8; @%p0 bra OTHER; shfl.sync.bfly.b32 %r0, %t, 1, 31, -1; bra.uni END; OTHER: bar.sync 0; END:",
    ],
)
def test_waits_without_end_are_stopped(body):
    with pytest.raises(PtxError, match="wait for each other for ever"):
        launch(kernel(body, 1), [np.zeros(1, np.int32)], 64)


# --- warps ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shuffle", "source"),
    [
        ("bfly.b32 %0, %1, 5, 31", LANES ^ 5),
        ("up.b32 %0, %1, 3, 0", np.where(LANES >= 3, LANES - 3, LANES)),
        ("down.b32 %0, %1, 30, 31", np.where(LANES < 2, LANES + 30, LANES)),
        ("idx.b32 %0, %1, 2, 6175", LANES // 8 * 8 + 2),  # segments of eight lanes
    ],
)  # fmt: skip
def test_shuffles(shuffle, source):
    found = apply(f"shfl.sync.{shuffle}, -1", ("s32", X), result="s32")
    np.testing.assert_array_equal(found, X.reshape(2, 32)[np.arange(2).repeat(32), source])


def test_votes_and_masks():
    x, by_warp = X % 3, (X % 3).reshape(2, 32)
    bits = np.uint64(1) << np.arange(32, dtype=np.uint64)
    is_one = ".reg .pred p; setp.eq.s32 p, %1, 1;"
    ballot = apply(f"{is_one} vote.sync.ballot.b32 %0, p, -1", ("s32", x), result="u32")
    np.testing.assert_array_equal(ballot.reshape(2, 32)[:, 0], ((by_warp == 1) * bits).sum(1))
    active = apply(f"{is_one} mov.u32 %0, 0; @p activemask.b32 %0", ("s32", x), result="u32")
    np.testing.assert_array_equal(active, np.where(x == 1, ballot, 0))
    match = apply("match.any.sync.b32 %0, %1, -1", ("s32", x), result="u32").reshape(2, 32)
    np.testing.assert_array_equal(match, ((by_warp[:, :, None] == by_warp[:, None]) * bits).sum(2))
    total = apply("redux.sync.add.s32 %0, %1, -1", ("s32", x), result="s32")
    np.testing.assert_array_equal(total, by_warp.sum(1).repeat(32))


# --- asynchronous copies ----------------------------------------------------------------------------------------------
COPIES = """.shared .align 16 .b8 room[1024]; mov.u32 %r0, room; shl.b32 %r1, %t, 4; add.u32 %r0, %r0, %r1;
mul.wide.u32 %rd10, %t, 16; add.u64 %rd11, %rd1, %rd10; add.u64 %rd12, %rd0, %rd10;
cp.async.cg.shared.global [%r0], [%rd11], 16, {size}; cp.async.commit_group;
cp.async.cg.shared.global [%r0+512], [%rd11+512], 16; cp.async.commit_group;
{wait} ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r0+{offset}]; st.global.v4.b32 [%rd12], {{%r4, %r5, %r6, %r7}};"""


def copied(wait, offset=0, size=16):
    source = np.arange(256, dtype=np.int32)
    body = COPIES.format(wait=wait, offset=offset, size=size)
    return launch(kernel(body, 2), [np.zeros(128, np.int32), source])[0], source


def test_copies_arrive_group_by_group():
    found, source = copied("cp.async.wait_group 1;")
    np.testing.assert_array_equal(found, source[:128])
    found, source = copied("cp.async.wait_all;", 512)
    np.testing.assert_array_equal(found, source[128:])


def test_what_is_not_copied_is_zero():
    found, source = copied("cp.async.wait_group 0;", size=4)
    np.testing.assert_array_equal(found, np.where(np.arange(128) % 4 == 0, source[:128], 0))


@pytest.mark.parametrize(("wait", "offset"), [("", 0), ("cp.async.wait_group 1;", 512)])
def test_who_does_not_wait_finds_nothing(wait, offset):
    assert np.all(copied(wait, offset)[0] == -1)
