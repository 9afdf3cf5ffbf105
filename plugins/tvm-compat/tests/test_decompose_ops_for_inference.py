"""Norms spelled out."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.errors import PassError
from kernelyard.ir import FunctionBuilder
from kernelyard.testing import op_cases
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.compose.compose_ops import ComposeOps
from kernelyard_tvm_compat.decompose_ops_for_inference import DECOMPOSITIONS, DecomposeOpsForInference

CASES = [case for case in op_cases() if case.op.name in DECOMPOSITIONS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_sample_means_the_same(case):
    before = case.module()
    after = DecomposeOpsForInference()(before)
    ops = {binding.value.op_name for binding in after["main"].bindings}
    assert ops
    assert not ops & set(DECOMPOSITIONS)
    if "float16" not in case.types[0].dtype:  # the oracle of a norm keeps more digits than its parts
        assert_same_meaning(before, after, case.sample.inputs)


def test_only_the_ops_asked_for(check):
    b = FunctionBuilder()
    x, vector = b.input("x", (2, 4, 3)), b.input("vector", (4,))
    normal = b.op("nn.instance_norm", x, vector, vector)
    function = b.function(b.op("nn.group_norm", normal, vector, vector, num_groups=2))
    after = check(DecomposeOpsForInference(["nn.instance_norm"]), function)
    assert "nn.group_norm" in check.ops(after)
    assert "nn.instance_norm" not in check.ops(after)


def test_symbolic_sizes(check):
    n = dims.symbol("n")
    b = FunctionBuilder()
    x, gamma = b.input("x", (n, 4, n)), b.input("gamma", (4,))
    normal = b.op("nn.rms_norm", x, np.ones(4, np.float32), axes=(1,))
    check(DecomposeOpsForInference(), b.function(b.op("nn.group_norm", normal, gamma, gamma, num_groups=2)))


def test_composing_gives_the_norm_back(check):
    b = FunctionBuilder()
    x, gamma, beta = b.input("x", (2, 8)), np.full(8, 1.5, np.float32), np.full(8, 0.5, np.float32)
    function = b.function(b.op("nn.layer_norm", x, gamma, beta, axes=(1,)))
    spelled = check(DecomposeOpsForInference(), function)
    assert "nn.layer_norm" in check.ops(check.clean(ComposeOps(), spelled))


def test_unknown_ops_are_refused():
    with pytest.raises(PassError, match="no decomposition") as info:
        DecomposeOpsForInference(["nn.relu", "nn.layer_norm"])
    assert info.value.found == "nn.relu"
