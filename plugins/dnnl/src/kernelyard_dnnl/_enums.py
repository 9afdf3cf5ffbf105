"""Values of the oneDNN C enumerations that all primitives share, as the headers of oneDNN 3.2 and 3.13 both have them.

`tests/test_native.py` compares them, and those of each kind of primitive, with the headers.
"""

from __future__ import annotations

STATUS = (
    "success",
    "out_of_memory",
    "invalid_arguments",
    "unimplemented",
    "last_impl_reached",
    "runtime_error",
    "not_required",
)

DATA_TYPE = {
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "int32": 4,
    "int8": 5,
    "uint8": 6,
}

DATA_TYPE_UNDEFINED = 0

ENGINE_CPU = 1
STREAM_DEFAULT_FLAGS = 1
FORWARD_INFERENCE = 96
SCRATCHPAD_MODE_USER = 1
FORMAT_TAG_ANY = 1
MAX_NDIMS = 12

ELTWISE = {
    "relu": 32,
    "tanh": 33,
    "elu": 34,
    "square": 35,
    "abs": 36,
    "sqrt": 37,
    "linear": 38,
    "soft_relu": 39,
    "hardsigmoid": 40,
    "logistic": 41,
    "exp": 42,
    "gelu_tanh": 43,
    "swish": 44,
    "log": 45,
    "clip": 46,
    "clip_v2": 47,
    "pow": 48,
    "gelu_erf": 49,
    "round": 50,
    "mish": 51,
    "hardswish": 52,
}

BINARY = {"add": 131056, "mul": 131057, "max": 131058, "min": 131059, "div": 131060, "sub": 131061}

QUERY = {
    "impl_info_str": 8,
    "strides": 14,
    "src_md": 129,
    "weights_md": 131,
    "dst_md": 133,
    "scratchpad_md": 136,
    "exec_arg_md": 255,
    "ndims": 256,
    "dims": 257,
    "data_type": 258,
    "format_kind": 262,
    "inner_nblks": 263,
}

FORMAT_KIND_BLOCKED = 2

ARG = {
    "src": 1,
    "src_1": 2,
    "dst": 17,
    "weights": 33,
    "bias": 41,
    "mean": 49,
    "variance": 50,
    "scale": 51,
    "shift": 52,
    "scratchpad": 80,
    "multiple_src": 1024,
    "attr_scales": 4096,
    "attr_zero_points": 8192,
    "depthwise": 16384,
    "post_op_base": 32768,
}


def post_op_argument(index: int, operand: str = "src_1") -> int:
    """Return the execution argument of the second operand of post-op `index`; that of a prelu is its "weights"."""
    return ARG["post_op_base"] * (index + 1) | ARG[operand]
