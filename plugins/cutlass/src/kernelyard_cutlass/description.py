"""Description: what a match becomes, as typed attributes; and what every check asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.errors import ShapeError
from kernelyard.plugins.api import Constant, Decline, Expr, Match
from kernelyard_cuda.driver_api import capability_of
from kernelyard_cutlass.epilogue import NONE, Epilogue
from kernelyard_cutlass.gpus import LEAST_CAPABILITY

FLOATS = ("float16", "bfloat16", "float32")
# By operator: how the epilogue calls it.
ACTIVATIONS = {
    "nn.relu": "relu",
    "nn.gelu": "gelu",
    "nn.gelu_tanh": "gelu_tanh",
    "nn.silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "nn.hard_swish": "hard_swish",
}
COMBINATIONS = ("add", "multiply")
_HARD_SWISH = {"alpha": 1 / 6, "beta": 0.5}  # the only one that CUTLASS has


NUMBER = "_number"  # behind a role: a constant of one number, which codegen spreads to a row
DEQUANTIZED = (
    "decoded"  # the role of a weight that codegen dequantizes: the one operand that is inside of the composite
)


@dataclass(frozen=True)
class Settings:
    """Settings of a compile. archs: of the target. f32: how float32 is multiplied, "3xtf32" or "tf32"."""

    archs: tuple[str, ...] = ()
    f32: str = "3xtf32"
    tune: bool = False

    def math(self, dtype: str) -> str:
        """Return the math mode of a dtype."""
        return self.f32 if dtype == "float32" else dtype


@dataclass(frozen=True)
class Description:
    """A composite for codegen.

    kernel: of `kernelyard_cutlass.launches.PLANS`. roles: for each captured operand that is read, what it is to the
    kernel. arguments: attributes for the run time. choices: what the kernels to compile are chosen by.
    """

    kernel: str
    roles: Mapping[str, str]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)

    def attrs(self) -> dict[str, Any]:
        """Return the composite's attributes."""
        return {
            "kernel": self.kernel,
            "roles": dict(self.roles),
            "arguments": dict(self.arguments),
            "choices": dict(self.choices),
        }


Describe: TypeAlias = Callable[[Match, Settings], "Description | Decline"]


def check_arch(settings: Settings) -> Decline | None:
    """Return None where the templates run: on GPUs of 8.0 and later. Without an arch that is for the device to say."""
    for arch in settings.archs:
        capability = capability_of(arch)
        if capability is None or capability < LEAST_CAPABILITY:
            return Decline("arch", f"the templates are written for sm_80 and later, the target is {arch}")
    return None


def check_dtypes(operands: Sequence[Expr], allowed: Sequence[str] = FLOATS) -> Decline | None:
    """Return None where all operands have one dtype, which is allowed."""
    for operand in operands:
        dtype = operand.tensor_type.dtype
        if dtype not in allowed:
            return Decline("dtype", f"an operand of {dtype}; the templates support {', '.join(allowed)}", operand)
        if dtype != operands[0].tensor_type.dtype:
            return Decline("dtype", f"operands of {operands[0].tensor_type.dtype} and {dtype}", operand)
    return None


def check_outside(match: Match, description: Description) -> Decline | None:
    """Return None where all operands come from outside: a residual made of the matmul itself is there too late."""
    for capture, role in description.roles.items():
        if match[capture] in match.members and role != DEQUANTIZED:
            return Decline("operand", f"the {role} is computed inside of the group", match[capture])
    return None


def text(shape: Shape) -> str:
    """Return a shape for people."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def is_row(shape: Shape, result: Shape) -> bool:
    """Return True for a row vector: one value for each column of the result, the same in all rows."""
    if not shape:
        return result[-1] == 1
    return len(shape) <= len(result) and shape[-1] == result[-1] and all(size == 1 for size in shape[:-1])


# --- what follows a matmul --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Following:
    """The epilogue, and the roles of the operands that it reads."""

    epilogue: Epilogue
    roles: Mapping[str, str]


def describe_epilogue(match: Match, result: Shape) -> Following | Decline:
    """Return the epilogue of a matmul with a result of shape `result`, from the captures "bias", "activation",
    "residual", "combined" and "final".

    A first addend is a bias (one number for each column), or a whole matrix. What is combined later is a whole matrix
    or one row.
    """
    activation, final = _activation(match, "activation"), _activation(match, "final")
    for found in (activation, final):
        if isinstance(found, Decline):
            return found
    assert isinstance(activation, str)
    assert isinstance(final, str)
    if not {"bias", "activation"} & match.captures.keys() and _combination(match) == "add":
        # What is added first is no residual: the activation behind it is the only one.
        role = _classify_addend(match, "residual", result)
        return role if isinstance(role, Decline) else Following(Epilogue(final), {"residual": role})
    roles: dict[str, str] = {}
    if "bias" in match.captures:
        role = _classify_addend(match, "bias", result)
        if isinstance(role, Decline):
            return role
        roles["bias"] = role
    if _combination(match) is None:
        return Following(Epilogue(activation), roles)
    residual = match["residual"]
    shape = residual.tensor_type.shape
    is_number = _is_number(residual, result)
    if shape != result and not is_row(shape, result) and not is_number:
        return Decline("residual", f"the residual is {text(shape)}, neither {text(result)} nor one row of it", residual)
    if "addend" in roles.values():
        return Decline("residual", "two matrices are combined with the product, and the epilogue reads one", residual)
    roles["residual"] = f"residual{NUMBER}" if is_number else "residual"
    return Following(Epilogue(activation, match.call_of("combined").op_name, final), roles)


def _combination(match: Match) -> str | None:
    return match.call_of("combined").op_name if "combined" in match.captures else None


def _is_number(operand: Expr, result: Shape) -> bool:
    """Return True for a scalar constant, which fills a row of a known length."""
    fills = isinstance(operand, Constant) and operand.data.size == 1 and operand.data.ndim <= len(result)
    return fills and isinstance(result[-1], int) and result[-1] > 1


def _classify_addend(match: Match, capture: str, result: Shape) -> str | Decline:
    """Classify the first addend: a "bias" or, as large as the matmul's result, an "addend"."""
    shape = match[capture].tensor_type.shape
    if _is_number(match[capture], result):
        return f"bias{NUMBER}"
    if is_row(shape, result):
        return "bias"
    if shape == result:
        return "addend"
    wanted = f"neither a vector of {result[-1]} columns nor {text(result)}"
    return Decline("bias", f"what is added is {text(shape)}, {wanted}", match[capture])


def _activation(match: Match, name: str) -> str | Decline:
    if name not in match.captures:
        return NONE
    call = match.call_of(name)
    if call.op_name == "nn.hard_swish" and any(abs(call.attrs[k] - v) > 1e-7 for k, v in _HARD_SWISH.items()):
        return Decline(
            "attribute", f"hard_swish with {dict(call.attrs)}; CUTLASS has the default attributes only", match[name]
        )
    return ACTIVATIONS[call.op_name]


def representative(size: Dim, value: int) -> int:
    """Return the size, or with all symbols of that value what it is then."""
    if isinstance(size, int):
        return size
    try:
        return max(1, dims.evaluate(size, dict.fromkeys(dims.symbols_of(size), value)))
    except ShapeError:  # where an open size meets a fixed one, that value need not broadcast with it
        return value
