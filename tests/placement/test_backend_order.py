"""The one rule of priority."""

from __future__ import annotations

from kernelyard.placement.backend_order import order_backends

PRIORITIES = {"cublas": 10, "cudnn": 20, "cutlass": 10}


def test_by_priority_then_name() -> None:
    assert order_backends(PRIORITIES) == ("cudnn", "cublas", "cutlass")


def test_the_users_list_comes_as_it_stands() -> None:
    assert order_backends(PRIORITIES, ["cutlass", "cudnn"]) == ("cutlass", "cudnn")
    assert order_backends(PRIORITIES, []) == ()
