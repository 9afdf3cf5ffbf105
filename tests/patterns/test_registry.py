"""Fusion patterns and the registry: names, priority, duplicates."""

from __future__ import annotations

import pytest

from kernelyard.errors import PatternError
from kernelyard.patterns import (
    Accept,
    FusionPattern,
    get_pattern,
    get_patterns,
    is_op,
    register_patterns,
    unregister_patterns,
    wildcard,
)
from kernelyard.patterns.registry import PatternRegistry, as_fusion_pattern

RELU = is_op("nn.relu")(wildcard())


@pytest.mark.parametrize("name", ["relu", "acme.", ".relu", ""])
def test_names_have_a_backend(name: str) -> None:
    with pytest.raises(PatternError, match="lacks its backend"):
        FusionPattern(name, RELU)


def test_pattern_must_be_a_pattern() -> None:
    with pytest.raises(PatternError, match="has no pattern"):
        FusionPattern("acme.relu", "nn.relu")


def test_tuples_are_taken_too() -> None:
    assert as_fusion_pattern(("acme.relu", RELU)).backend == "acme"
    assert as_fusion_pattern(("acme.relu", RELU, lambda match: Accept())).check is not None
    with pytest.raises(PatternError, match="no fusion pattern"):
        as_fusion_pattern("acme.relu")
    with pytest.raises(PatternError, match="no fusion pattern"):
        as_fusion_pattern(("acme.relu",))


def test_order_is_priority_and_backends_are_whole_names() -> None:
    registry = PatternRegistry()
    registry.register([("cublas.b", RELU), ("cublaslt.a", RELU), ("cublas.a", RELU)])
    assert [p.name for p in registry.of_backend("cublas")] == ["cublas.b", "cublas.a"]
    assert [p.name for p in registry.of_backend("cublaslt")] == ["cublaslt.a"]
    assert registry.of_backend("cud") == ()


def test_a_name_is_registered_once() -> None:
    registry = PatternRegistry()
    pattern = FusionPattern("acme.relu", RELU)
    registry.register([pattern])
    registry.register([pattern])  # the same object again is no conflict
    with pytest.raises(PatternError, match="registered twice"):
        registry.register([("acme.new", RELU), ("acme.relu", RELU)])
    assert [p.name for p in registry.of_backend("acme")] == ["acme.relu"]


def test_process_wide_registry() -> None:
    register_patterns([("acme_test.relu", RELU)])
    try:
        assert get_pattern("acme_test.relu") in get_patterns("acme_test")
        with pytest.raises(PatternError) as error:
            get_pattern("acme_test.rely")
        assert "acme_test.relu" in str(error.value)
    finally:
        unregister_patterns("acme_test")
    assert get_patterns("acme_test") == ()


SCENARIOS = {
    "register_patterns, get_patterns, get_pattern": test_process_wide_registry,
    "a backend's patterns by its whole name (defect of TVM)": test_order_is_priority_and_backends_are_whole_names,
    "two patterns of one name (defect of TVM)": test_a_name_is_registered_once,
}
