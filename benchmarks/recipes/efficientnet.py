"""EfficientNet-Lite0 with random weights: depthwise convolutions, batch norms, ReLU6, padding as TensorFlow has it.

Source: Tan and Le 2019 (arXiv:1905.11946); the Lite variants leave out squeeze-and-excitation and use ReLU6.
"""

from __future__ import annotations

import onnx

from recipes.graph import Graph

# repeats, kernel, stride, expansion, channels of each stage
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(classes: int = 1000, graph: Graph | None = None) -> onnx.ModelProto:
    """float32 `image` (N, 3, H, W) -> `logits` (N, classes); with random weights if `graph` brings none."""
    g = Graph() if graph is None else graph

    def block(x: str, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1, relu6: bool = True) -> str:
        weight = g.weight(n_out, n_in // groups, kernel, kernel)
        x = g("Conv", x, weight, strides=[stride] * 2, group=groups, kernel_shape=[kernel] * 2, auto_pad="SAME_UPPER")
        variance = abs(g.vector(n_out, 1.0))
        x = g("BatchNormalization", x, g.vector(n_out, 1.0), g.vector(n_out), g.vector(n_out), variance, epsilon=1e-3)
        return g("Clip", x, 0.0, 6.0) if relu6 else x

    x, channels = block("image", 3, 32, 3, stride=2), 32
    for repeats, kernel, stride, expansion, n_out in STAGES:
        for i in range(repeats):
            inner, step = channels * expansion, stride if i == 0 else 1
            y = x if expansion == 1 else block(x, channels, inner, 1)
            y = block(y, inner, inner, kernel, step, groups=inner)
            y = block(y, inner, n_out, 1, relu6=False)
            x = g("Add", x, y) if i else y
            channels = n_out
    x = g("Flatten", g("GlobalAveragePool", block(x, channels, 1280, 1)))
    logits = g("Gemm", x, g.weight(classes, 1280), g.vector(classes), transB=1)
    return g.model({"image": ("float32", ["N", 3, "H", "W"])}, {"logits": (logits, "float32", ["N", classes])})
