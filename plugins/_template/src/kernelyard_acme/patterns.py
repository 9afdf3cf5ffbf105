"""Patterns of ACME: matmul with an optional constant bias and an optional relu."""

from kernelyard.plugins.api import Accept, Decline, FusionPattern, is_const, is_op, wildcard


def check(match):
    dtype = match.captures["data"].tensor_type.dtype
    return Accept() if dtype == "float32" else Decline("dtype", f"ACME computes in float32, this is {dtype}")


def attributes(match):
    """Return the composite's attributes, from which codegen reads what to call: nothing is read from a name."""
    return {"kernel": "linear", "arguments": {"activation": "relu" if match.call.op_name == "nn.relu" else "none"}}


def fusion_patterns():
    linear = is_op("matmul")(wildcard().capture("data"), wildcard().capture("weight"))
    linear = linear.optional(lambda product: is_op("add")(product, is_const().capture("bias")))
    linear = linear.optional(lambda total: is_op("nn.relu")(total))
    return [FusionPattern("acme.linear", linear, check, attributes)]
