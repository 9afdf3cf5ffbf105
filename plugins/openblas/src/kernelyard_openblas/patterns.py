"""Patterns of OpenBLAS: a matmul, or a batch of them, then maybe a bias, then maybe relu."""

from kernelyard.plugins.api import Accept, Decline, FusionPattern, check_bias, gemm_of, is_const, is_op, wildcard


def check(match):
    dtype = match.captures["data"].tensor_type.dtype
    if dtype not in ("float32", "float64"):
        return Decline("dtype", f"OpenBLAS multiplies float32 and float64, this is {dtype}")
    gemm = gemm_of(match)
    return gemm if isinstance(gemm, Decline) else check_bias(match) or Accept()


def attributes(match):
    return {"arguments": {"relu": match.call.op_name == "nn.relu"}}


def fusion_patterns():
    product = is_op("matmul")(wildcard().capture("data"), wildcard().capture("weight")).capture("root")
    biased = product.optional(lambda product: is_op("add")(product, is_const().capture("bias")))
    return [FusionPattern("openblas.gemm", biased.optional(lambda total: is_op("nn.relu")(total)), check, attributes)]
