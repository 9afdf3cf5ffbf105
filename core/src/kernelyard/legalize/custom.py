"""Kernels that users bring along for operators: a loop-level rule, a PrimFunc, or a compiled function.

They stand in for the kernels that would be generated; what a library backend takes stays with it. The one registered
last that accepts a call gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dims import is_identifier
from kernelyard.errors import LegalizeError
from kernelyard.ir.op import Attributes, get_op
from kernelyard.ir.types import TensorType, Type
from kernelyard.legalize.registry import Rule, RuleFunction, legalize_call
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.tir.verify import verify

CUSTOM = "custom"  # attribute of PrimFuncs: names of the custom kernels that are in it
Accepts = Callable[[Sequence[TensorType], Attributes], bool]


@dataclass(frozen=True)
class CustomKernel:
    """A kernel for calls of an operator.

    made_by: a rule, a PrimFunc, or what AttachExternModules attaches (a RuntimeModule, or a source module of
      `kernelyard.nn`) with a function called `name`, which takes the operands and then the outputs that it fills.
    accepts(types of operands, attributes): which calls it is for. A PrimFunc is only ever for its own types.
    """

    op: str
    name: str
    made_by: Any
    accepts: Accepts

    def takes(self, types: Sequence[TensorType], attrs: Attributes, result: Type) -> bool:
        """Return True when a call is to run on this kernel."""
        if isinstance(self.made_by, PrimFunc):
            inputs = [TensorType(buffer.shape, buffer.dtype) for buffer in self.made_by.inputs]
            if inputs != list(types) or self.made_by.result_type != result:
                return False
        return self.accepts(types, attrs)

    def primfunc(self, types: Sequence[TensorType], attrs: Attributes, result: Type) -> PrimFunc:
        """Return the kernel's loop-level code for a call that it takes. Raises: LegalizeError."""
        own = self.made_by
        function = own if isinstance(own, PrimFunc) else legalize_call(self.op, types, attrs, result, own)
        return function.with_attrs(**{"ops": (self.op,), CUSTOM: (self.name,)})


_KERNELS: list[CustomKernel] = []


def _always(types: Sequence[TensorType], attrs: Attributes) -> bool:
    return True


def custom_kernel(
    op: str, *, name: str | None = None, widen: bool = False, accepts: Accepts = _always
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for an operator, as a decorator.

    The rule is called with a builder, the operands and the attributes, and returns the buffer it wrote (or a tuple of
    them). name: how reports call it (default: the function's name). widen: floats narrower than float32 come as
    float32, and the result is rounded once. Raises: as `register_kernel`.

    Example:
        >>> import kernelyard.ops
        >>> @custom_kernel("square")
        ... def twice_times_half(b, x):
        ...     return b.compute(x.shape, lambda *i: x[i] * 2 * x[i] * 0.5)
        >>> find_kernel("square", [TensorType((2,), "float32")], {}, TensorType((2,), "float32")).name
        'twice_times_half'
        >>> unregister_kernel("twice_times_half")
    """

    def register(function: RuleFunction) -> RuleFunction:
        register_kernel(op, Rule(function, widen), name=name or function.__name__, accepts=accepts)
        return function

    return register


def register_kernel(op: str, made_by: Any, *, name: str, accepts: Accepts = _always) -> None:
    """Register a PrimFunc, a rule or a compiled function for an operator; see `CustomKernel`.

    Raises: UnknownOpError; LegalizeError when the name is taken or is no identifier; VerifyError for a PrimFunc that is
    not well formed.
    """
    get_op(op)
    if not is_identifier(name):
        raise LegalizeError("a custom kernel's name is no identifier", where=op, found=repr(name))
    if any(kernel.name == name for kernel in _KERNELS):
        raise LegalizeError(
            f"two custom kernels are called {name!r}", where=op, hint="remove one with unregister_kernel"
        )
    if isinstance(made_by, PrimFunc):
        verify(made_by, name)
    _KERNELS.append(CustomKernel(op, name, made_by, accepts))


def unregister_kernel(name: str) -> None:
    """Forget a custom kernel. Raises: LegalizeError when none has that name."""
    found = [kernel for kernel in _KERNELS if kernel.name == name]
    if not found:
        known = ", ".join(kernel.name for kernel in _KERNELS) or "none is registered"
        raise LegalizeError(f"no custom kernel is called {name!r}", expected=known)
    _KERNELS.remove(found[0])


@contextmanager
def isolate_kernels() -> Iterator[None]:
    """Isolate the registry of custom kernels in a `with` block: it starts empty and is restored at the end."""
    outer = list(_KERNELS)
    _KERNELS.clear()
    try:
        yield
    finally:
        _KERNELS[:] = outer


def find_kernel(op: str, types: Sequence[TensorType], attrs: Attributes, result: Type) -> CustomKernel | None:
    """Return the custom kernel for a call, None when there is none.

    Raises: LegalizeError when `accepts` of one fails.
    """
    for kernel in reversed(_KERNELS):
        if kernel.op != op:
            continue
        try:
            if kernel.takes(types, attrs, result):
                return kernel
        except Exception as error:  # the user's code
            found = f"{type(error).__name__}: {error}"
            raise LegalizeError(f"accepts() of the custom kernel {kernel.name!r} failed", found=found) from error
    return None


def is_compiled(kernel: CustomKernel | None) -> bool:
    """Return True for a kernel that is called as it is; a rule or a PrimFunc is code yet to be generated."""
    return kernel is not None and not isinstance(kernel.made_by, (Rule, PrimFunc))


def op_of(name: str) -> str | None:
    """Return the operator that the custom kernel of that name is for, None when there is none."""
    return next((kernel.op for kernel in _KERNELS if kernel.name == name), None)
