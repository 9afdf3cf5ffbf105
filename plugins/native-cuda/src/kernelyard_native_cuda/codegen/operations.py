"""Operations of loop-level code as CUDA source."""

from __future__ import annotations

from kernelyard import dtypes
from kernelyard.plugins.codegen_api import neutral_element
from kernelyard_native_cuda.codegen.types import computed_type, is_narrow_float, literal, stored_type

_FUNCTIONS = {
    **{name: name for name in ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "erf", "sin", "cos", "tan", "sinh")},
    **{name: name for name in ("cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh")},
    **{name: name for name in ("floor", "ceil", "trunc")},
    "round": "rint",
    "abs": "fabs",
    "pow": "pow",
    "fmod": "fmod",
}
_NARROW = ("exp", "sigmoid", "tanh", "erf")  # cheaper where what a narrow float holds is enough
_HELPERS = {"min": "least", "max": "most", "mod": "modulo"}
_INTEGER_HELPERS = {
    "floordiv": "floor_quotient",
    "truncdiv": "truncated_quotient",
    "fmod": "remainder_like",
    "pow": "integer_power",
    "shl": "shifted_left",
    "shr": "shifted_right",
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Reducers of the prelude, and the binary operations that they are.
REDUCERS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max", "any": "Any", "all": "All"}
_COMBINE = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "any": "or", "all": "and"}


def unary(op: str, x: str, dtype: str, is_approximate: bool = False) -> str:
    """Return an operation on a value of a dtype. is_approximate: whether what a narrow float holds is enough."""
    kind = computed_type(dtype)
    is_float = dtypes.is_float(dtype)
    if op in ("not", "bitnot"):
        return f"!{x}" if op == "not" else f"({kind})~{x}"
    if op == "sign":
        return f"sign_of({x})"
    if op in ("isnan", "isinf"):
        return f"({x} != {x})" if op == "isnan" else f"({x} == {x} && {x} - {x} != {literal(0.0, dtype)})"
    if op == "neg":
        return f"(-{x})" if is_float else f"({kind})(0ull - (unsigned long long){x})"
    if not is_float:
        return f"magnitude_of({x})"
    if op in _NARROW and (is_narrow_float(dtype) or (is_approximate and dtype == "float32")):
        return f"narrow_{op}({x})"
    one = literal(1.0, dtype)
    if op == "sigmoid":
        return f"({one} / ({one} + {_function('exp', dtype)}(-{x})))"
    return f"{_function(_FUNCTIONS[op], dtype)}({x})"


def binary(op: str, a: str, b: str, dtype: str, is_approximate: bool = False) -> str:
    """Return an operation on two values of a dtype; integers wrap. is_approximate: as for `unary`."""
    is_float = dtypes.is_float(dtype)
    if op == "div" and is_approximate and dtype == "float32":
        return f"narrow_quotient({a}, {b})"
    if op in _COMPARISONS:
        return f"({a} {_COMPARISONS[op]} {b})"
    if op in _HELPERS:
        return f"{_HELPERS[op]}<{computed_type(dtype)}>({a}, {b})"
    if not is_float and op in _INTEGER_HELPERS:
        return f"{_INTEGER_HELPERS[op]}<{computed_type(dtype)}>({a}, {b})"
    if op in ("pow", "fmod"):
        return f"{_function(op, dtype)}({a}, {b})"
    if is_float or op in ("and", "or", "xor"):
        return (
            f"({a} {_INFIX[op]} {b})"
            if is_float or dtype == "bool"
            else f"({computed_type(dtype)})({a} {_INFIX[op]} {b})"
        )
    return f"({computed_type(dtype)})((unsigned long long){a} {_INFIX[op]} (unsigned long long){b})"


def combine(reducer: str, total: str, value: str, dtype: str) -> str:
    """Return one step of a reduction."""
    if dtype == "bool" and reducer in ("sum", "prod"):
        return f"({total} {'|' if reducer == 'sum' else '&'} {value})"
    return binary(_COMBINE[reducer], total, value, dtype)


def neutral(reducer: str, dtype: str) -> str:
    """Return the identity element of a reduction."""
    return literal(neutral_element(reducer, dtype).value, dtype)


def convert(x: str, source: str, target: str) -> str:
    """Return a value of one dtype as another. Floats to integers go toward zero."""
    if target == "bool":
        return f"({x} != {literal(0, source)})"
    if dtypes.is_float(source) and not dtypes.is_float(target):
        return f"to_integer<{computed_type(target)}>({x})"
    text = x if computed_type(source) == computed_type(target) else f"({computed_type(target)}){x}"
    if is_narrow_float(target):
        return f"value_of(Stored<{stored_type(target)}>::of({text}))"
    return text


def _function(name: str, dtype: str) -> str:
    return name if dtype == "float64" else f"{name}f"
