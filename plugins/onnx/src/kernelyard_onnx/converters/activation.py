"""Activation functions."""

from __future__ import annotations

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import Converter, converter, register

# op type -> (op, {attribute of the node: (attribute of the op, default)})
WITH_ATTRIBUTES: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    "Relu": ("nn.relu", {}),
    "Softplus": ("nn.softplus", {}),
    "Softsign": ("nn.softsign", {}),
    "Mish": ("nn.mish", {}),
    "LeakyRelu": ("nn.leaky_relu", {"alpha": ("alpha", 0.01)}),
    "Elu": ("nn.elu", {"alpha": ("alpha", 1.0)}),
    "Celu": ("nn.celu", {"alpha": ("alpha", 1.0)}),
    "Selu": ("nn.selu", {"alpha": ("alpha", 1.6732632423543772), "gamma": ("gamma", 1.0507009873554805)}),
    "ThresholdedRelu": ("nn.thresholded_relu", {"alpha": ("alpha", 1.0)}),
    "HardSigmoid": ("nn.hard_sigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
}


def _with_attributes(name: str, attributes: dict[str, tuple[str, float]]) -> Converter:
    def convert(node: Node) -> Expr:
        values = {own: float(node.attr(theirs, default)) for theirs, (own, default) in attributes.items()}
        return node.op(name, node.input(0), **values)

    return convert


for _op_type, (_name, _attributes) in WITH_ATTRIBUTES.items():
    register(_op_type, _with_attributes(_name, _attributes))


@converter("HardSwish", since=14)
def hard_swish(node: Node) -> Expr:
    return node.op("nn.hard_swish", node.input(0), alpha=1 / 6, beta=0.5)


@converter("Gelu", since=20)
def gelu(node: Node) -> Expr:
    approximate = node.attr("approximate", "none")
    name = {"none": "nn.gelu", "tanh": "nn.gelu_tanh"}.get(approximate)
    return node.op(name or node.reject(f"its approximation {approximate!r} is unknown"), node.input(0))


@converter("Swish", since=24)
def swish(node: Node) -> Expr:
    x, alpha = node.input(0), float(node.attr("alpha", 1.0))
    return (
        node.op("nn.silu", x)
        if alpha == 1
        else node.op("multiply", x, node.op("sigmoid", node.op("multiply", x, alpha)))
    )


@converter("PRelu")
def parametric_relu_per_channel(node: Node) -> Expr:
    x, slope = node.input(0), node.input(1)
    single = node.shape(slope) == (1,)
    return node.op("nn.prelu", x, slope if single or node.rank(slope) != 1 else node.along(slope, 1, node.rank(x)))


@converter("PRelu", since=7)
def parametric_relu(node: Node) -> Expr:
    return node.op("nn.prelu", node.input(0), node.input(1))


@converter("Shrink", since=9)
def shrink(node: Node) -> Expr:
    given, bias, bound = node.input(0), node.attr("bias", 0.0), node.attr("lambd", 0.5)
    x = given if is_float(node.dtype(given)) else node.cast(given, "float64")  # bounds and bias are fractions
    below = node.op("where", node.op("less", x, -bound), node.op("add", x, bias), node.full(0, (), node.dtype(x)))
    return node.cast(
        node.op("where", node.op("greater", x, bound), node.op("subtract", x, bias), below), node.dtype(given)
    )
