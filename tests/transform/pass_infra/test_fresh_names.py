"""Names for new functions."""

from __future__ import annotations

from kernelyard.transform.pass_infra.fresh_names import FreshNames


def test_each_name_is_given_once() -> None:
    names = FreshNames(["main", "fused", "acme_0", "acme_2"])
    assert [names.unique("fused") for _ in range(3)] == ["fused_1", "fused_2", "fused_3"]
    assert [names.numbered("acme") for _ in range(3)] == ["acme_1", "acme_3", "acme_4"]
    assert names.unique("other") == "other"
    assert names.unique("other") == "other_1"


def test_numbered_names_are_identifiers() -> None:
    assert FreshNames([]).numbered("my-backend 2") == "my_backend_2_0"


def test_a_name_that_was_made_is_not_made_again() -> None:
    names = FreshNames(["a"])
    assert names.unique("a_1") == "a_1"
    assert names.unique("a") == "a_2"
