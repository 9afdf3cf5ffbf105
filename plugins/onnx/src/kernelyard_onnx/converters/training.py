"""Optimizers' steps (ai.onnx.preview.training): each tensor with its gradient and its running averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter

TRAINING = "ai.onnx.preview.training"
Step = Callable[..., Sequence[Expr]]


def _step_each(node: Node, states: int, step: Step) -> list[Expr]:
    """Apply a step to each tensor: inputs are rate, count, all tensors, all gradients, then all of each state."""
    rate, count, *rest = node.require_inputs()
    groups = 2 + states
    if not rest or len(rest) % groups:
        node.reject(f"it has {len(rest)} tensors, which come in groups of {groups}")
    each = len(rest) // groups
    columns = [rest[start : start + each] for start in range(0, len(rest), each)]
    results = [step(rate, count, *tensors) for tensors in zip(*columns, strict=True)]
    return list(chain.from_iterable(zip(*results, strict=True)))


def _regularize(node: Node, x: Expr, gradient: Expr) -> Expr:
    return node.op("add", node.op("multiply", x, node.attr("norm_coefficient", 0.0)), gradient)


def _average(node: Node, old: Expr, new: Expr, decay: float) -> Expr:
    return node.op("add", node.op("multiply", old, decay), node.op("multiply", new, 1 - decay))


@converter("Adagrad", domain=TRAINING)
def adagrad(node: Node) -> list[Expr]:
    """Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization"."""

    def step(rate: Expr, count: Expr, x: Expr, gradient: Expr, squares: Expr) -> Sequence[Expr]:
        decay = node.op(
            "add", node.op("multiply", node.cast(count, node.dtype(x)), node.attr("decay_factor", 0.0)), 1.0
        )
        gradient = _regularize(node, x, gradient)
        squares = node.op("add", squares, node.op("square", gradient))
        scale = node.op("add", node.op("sqrt", squares), node.attr("epsilon", 0.0))
        change = node.op("divide", node.op("multiply", node.op("divide", rate, decay), gradient), scale)
        return node.op("subtract", x, change), squares

    return _step_each(node, 1, step)


@converter("Adam", domain=TRAINING)
def adam(node: Node) -> list[Expr]:
    """Kingma and Ba, "Adam: a method for stochastic optimization"; the bias is corrected from the second step on."""
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)

    def step(rate: Expr, count: Expr, x: Expr, gradient: Expr, first: Expr, second: Expr) -> Sequence[Expr]:
        gradient = _regularize(node, x, gradient)
        first = _average(node, first, gradient, alpha)
        second = _average(node, second, node.op("square", gradient), beta)
        number = node.cast(count, node.dtype(x))
        left = [node.op("subtract", 1.0, node.op("power", base, number)) for base in (beta, alpha)]
        corrected = node.op("divide", node.op("multiply", rate, node.op("sqrt", left[0])), left[1])
        rate = node.op("where", node.op("greater", number, 0.0), corrected, rate)
        scale = node.op("add", node.op("sqrt", second), node.attr("epsilon", 0.0))
        moved = node.op("subtract", x, node.op("multiply", rate, node.op("divide", first, scale)))
        return node.op("multiply", moved, 1 - node.attr("norm_coefficient_post", 0.0)), first, second

    return _step_each(node, 2, step)


@converter("Momentum", domain=TRAINING)
def momentum(node: Node) -> list[Expr]:
    alpha, beta, mode = (node.require_attr(name) for name in ("alpha", "beta", "mode"))
    if mode not in ("standard", "nesterov"):
        node.reject(f"its mode {mode!r} is unknown")

    def step(rate: Expr, count: Expr, x: Expr, gradient: Expr, velocity: Expr) -> Sequence[Expr]:
        gradient = _regularize(node, x, gradient)
        later, first = (node.expr(value, node.dtype(x)) for value in (beta, 1.0))
        share = node.op("where", node.op("greater", count, 0), later, first)
        velocity = node.op("add", node.op("multiply", velocity, alpha), node.op("multiply", share, gradient))
        ahead = velocity if mode == "standard" else node.op("add", gradient, node.op("multiply", velocity, alpha))
        return node.op("subtract", x, node.op("multiply", rate, ahead)), velocity

    return _step_each(node, 1, step)
