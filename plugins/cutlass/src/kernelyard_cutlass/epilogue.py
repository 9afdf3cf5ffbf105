"""Epilogue: what a matmul goes through before it is stored, and what CUTLASS calls the parts of it."""

from __future__ import annotations

from dataclasses import dataclass

_THREAD = "cutlass::epilogue::thread::"
IDENTITY = f"{_THREAD}Identity"
# By what the epilogue says: CUTLASS's functor.
ACTIVATIONS = {
    "relu": f"{_THREAD}ReLu",
    "gelu": f"{_THREAD}GELU",
    "gelu_tanh": f"{_THREAD}GELU_taylor",
    "silu": f"{_THREAD}SiLu",
    "sigmoid": f"{_THREAD}Sigmoid",
    "tanh": f"{_THREAD}Tanh",
    "hard_swish": f"{_THREAD}HardSwish",
}
COMBINATIONS = {"add": "cutlass::plus", "multiply": "cutlass::multiplies"}
NONE = "none"


@dataclass(frozen=True)
class Epilogue:
    """`final(combine(activation(product + bias), residual))`, each part by its name, "none" where it is left out."""

    activation: str = NONE
    combine: str = NONE
    final: str = NONE

    def defines(self) -> dict[str, str]:
        """Return the macros that the templates read. With a combination all three functors are named."""
        if self.combine == NONE:
            return {} if self.activation == NONE else {"KY_ACTIVATION": ACTIVATIONS[self.activation]}
        return {
            "KY_ACTIVATION": ACTIVATIONS.get(self.activation, IDENTITY),
            "KY_COMBINE": COMBINATIONS[self.combine],
            "KY_FINAL": ACTIVATIONS.get(self.final, IDENTITY),
        }

    def __str__(self) -> str:
        return ",".join(part for part in (self.activation, self.combine, self.final) if part != NONE) or NONE
