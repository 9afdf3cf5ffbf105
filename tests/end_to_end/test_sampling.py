"""The samplers of a language model as one program, on the CPU and on the emulator: sorts, scans and random numbers.

The default pipeline for CUDA begins with DispatchSampling and DispatchSortScan in TVM: multinomial draws become a function
of the device, sorts and running sums tuned kernels. Here no step of such a program runs on the host.
"""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.nn import op

pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")

BATCH, VOCABULARY = 3, 5000


class Sampler(nn.Module):
    """A token of the most likely ones, another of all, and the largest logit's."""

    def forward(self, logits: nn.Tensor, top_p: nn.Tensor, top_k: nn.Tensor, drawn: nn.Tensor):
        prob = op.softmax(logits)
        values, places = op.topk(prob, VOCABULARY, axis=1)
        chosen = op.sample_top_p_top_k_from_sorted_prob(values, places, top_p, top_k, drawn)
        return chosen, op.multinomial_from_uniform(prob, drawn), op.argmax(logits, axis=1)


def program(target: str) -> ky.Executable:
    spec = {
        "logits": nn.spec.Tensor((BATCH, VOCABULARY), "float32"),
        "top_p": nn.spec.Tensor((BATCH, 1), "float32"),
        "top_k": nn.spec.Tensor((BATCH, 1), "int32"),
        "drawn": nn.spec.Tensor((BATCH, 1), "float32"),
    }
    module, _ = Sampler().export({"forward": spec})[:2]
    return ky.compile(module, target=target, backends=[])


def by_numpy(logits: np.ndarray, top_p: np.ndarray, top_k: np.ndarray, drawn: np.ndarray) -> list[np.ndarray]:
    shares = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    order = np.argsort(-shares, 1, kind="stable")
    ranked = np.take_along_axis(shares, order, 1)
    kept = (np.cumsum(ranked, 1) - ranked < top_p) & (np.arange(VOCABULARY) < top_k)
    sums = np.cumsum(ranked, 1)
    wanted = drawn * np.where(kept, ranked, 0).sum(1, keepdims=True)
    chosen = np.take_along_axis(order, (sums <= wanted).sum(1, keepdims=True), 1)
    return [chosen, (np.cumsum(shares, 1) <= drawn).sum(1, keepdims=True), logits.argmax(1)]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_tokens_are_sampled_on_the_device(target):
    exe = program(target)
    assert [module.kind for module in exe.modules] == [f"native-{target}"]
    rng = np.random.default_rng(0)
    feeds = [
        (3 * rng.standard_normal((BATCH, VOCABULARY))).astype(np.float32),
        np.full((BATCH, 1), 0.8, np.float32),
        np.array([[40], [1], [VOCABULARY]], np.int32),
        np.array([[0.3], [0.9], [0.61]], np.float32),
    ]
    device = ky.cuda("emulator") if target == "cuda" else ky.cpu()
    found = ky.VirtualMachine(exe, device)["forward"](*feeds)
    for actual, wanted in zip(found, by_numpy(*feeds), strict=True):
        np.testing.assert_array_equal(np.asarray(actual.numpy()), wanted)


def test_draws_are_the_same_on_both():
    """Numbers from a seed, and the tokens that they stand for."""
    b = FunctionBuilder()
    prob = b.op("nn.softmax", b.input("logits", (BATCH, VOCABULARY)), axis=1)
    drawn = b.op("random.uniform", shape=(BATCH, 4, 1), seed=7)
    sums = b.op("reshape", b.op("cumsum", prob, axis=1), shape=(BATCH, 1, VOCABULARY))
    passed = b.op("astype", b.op("less", sums, drawn), dtype="int64")
    module = IRModule({"main": b.function(b.op("sum", passed, axes=(2,), keepdims=False), drawn)})
    logits = np.random.default_rng(1).standard_normal((BATCH, VOCABULARY)).astype(np.float32)
    results = []
    for target, device in (("cpu", ky.cpu()), ("cuda", ky.cuda("emulator"))):
        exe = ky.compile(module, target=target, backends=[])
        assert [each.kind for each in exe.modules] == [f"native-{target}"]
        results.append([np.asarray(each.numpy()) for each in ky.VirtualMachine(exe, device)["main"](logits)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
