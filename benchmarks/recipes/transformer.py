"""A BERT-style sentence encoder with random weights: the topology of all-MiniLM-L6-v2, sizes to choose.

Source: Devlin et al. 2018 (arXiv:1810.04805); Wang et al. 2020 (arXiv:2002.10957). GELU is spelled out with Erf and
attention with MatMul and Softmax, as PyTorch's exporter writes them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from recipes.graph import Graph


def sentence_encoder(
    layers: int = 6,
    hidden: int = 384,
    heads: int = 12,
    inner: int = 1536,
    vocabulary: int = 30522,
    positions: int = 512,
    graph: Graph | None = None,
) -> onnx.ModelProto:
    """int64 `input_ids`, `attention_mask` (batch, seq) -> `last_hidden_state`, `embedding` (unit length).

    graph: where weights come from; random ones if it is None.
    """
    g = Graph() if graph is None else graph

    def linear(x: str, n_in: int, n_out: int) -> str:
        return g("Add", g("MatMul", x, g.weight(n_out, n_in).T), g.vector(n_out))

    def norm(x: str) -> str:
        return g("LayerNormalization", x, g.vector(hidden, 1.0), g.vector(hidden), axis=-1, epsilon=1e-12)

    def split_heads(x: str, order: list[int]) -> str:
        return g("Transpose", g("Reshape", x, [0, 0, heads, hidden // heads]), perm=order)

    def gelu(x: str) -> str:
        return g("Mul", g("Mul", x, 0.5), g("Add", g("Erf", g("Div", x, math.sqrt(2.0))), 1.0))

    def attention(x: str, bias: str) -> str:
        query = split_heads(linear(x, hidden, hidden), [0, 2, 1, 3])
        key = split_heads(linear(x, hidden, hidden), [0, 2, 3, 1])
        value = split_heads(linear(x, hidden, hidden), [0, 2, 1, 3])
        scores = g("Div", g("MatMul", query, key), math.sqrt(hidden / heads))
        weights = g("Softmax", g("Add", scores, bias), axis=-1)
        joined = g("Transpose", g("MatMul", weights, value), perm=[0, 2, 1, 3])
        return linear(g("Reshape", joined, [0, 0, hidden]), hidden, hidden)

    length = g("Slice", g("Shape", "input_ids"), [1], [2], [0])
    position = g("Slice", g.weight(positions, hidden) * 8, [0], length, [0])
    x = norm(g("Add", g("Add", g("Gather", g.weight(vocabulary, hidden) * 8, "input_ids"), position), g.vector(hidden)))
    mask = g("Cast", "attention_mask", to=onnx.TensorProto.FLOAT)
    bias = g("Mul", g("Sub", 1.0, g("Unsqueeze", mask, [1, 2])), -1e9)
    for _ in range(layers):
        x = norm(g("Add", attention(x, bias), x))
        x = norm(g("Add", linear(gelu(linear(x, hidden, inner)), inner, hidden), x))
    masked = g("ReduceSum", g("Mul", x, g("Unsqueeze", mask, [2])), [1], keepdims=0)
    mean = g("Div", masked, g("ReduceSum", mask, [1], keepdims=1))
    embedding = g("Div", mean, g("ReduceL2", mean, axes=[1], keepdims=1))
    return g.model(
        {"input_ids": ("int64", ["batch", "seq"]), "attention_mask": ("int64", ["batch", "seq"])},
        {
            "last_hidden_state": (x, "float32", ["batch", "seq", hidden]),
            "embedding": (embedding, "float32", ["batch", hidden]),
        },
    )


def sentence_feeds(batch: int, length: int, vocabulary: int = 30522, seed: int = 0) -> dict[str, np.ndarray]:
    """Random token ids; the second half of the batch is padded to a shorter length."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    mask[(batch + 1) // 2 :, (length + 1) // 2 :] = 0
    return {"input_ids": random.integers(0, vocabulary, (batch, length)), "attention_mask": mask}
