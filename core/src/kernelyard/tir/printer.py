"""Loop-level functions as text, inside the graph IR's text form; `kernelyard.tir.parser` reads it back.

    primfunc @softmax_sum {
      attrs {"ops": ("sum",)}
      input in0: Tensor[(n, 4), float32]
      output out0: Tensor[(n,), float32]
      block out0(i0: <n>, reduce k0: 4) {
        out0[i0] = in0[i0, k0]
        reducer sum
      }
    }

Literals that are not int64 or bool carry their dtype: `float32(0.5)`.
"""

from __future__ import annotations

from kernelyard.errors import IRError
from kernelyard.ir.printer import attribute_text
from kernelyard.ir.types import TensorType
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Binary, Cast, Const, DimValue, Expr, Load, Select, Unary
from kernelyard.tir.iterate import Iterate, State
from kernelyard.tir.primfunc import SPATIAL, ComputeBlock, IterVar, PrimFunc


def print_primfunc(function: PrimFunc) -> str:
    """Return the lines of a PrimFunc, without its name and the braces around it."""
    lines = [f"attrs {attribute_text(function.attrs)}"] if function.attrs else []
    for kind, buffers in (("input", function.inputs), ("output", function.outputs), ("local", function.locals)):
        lines += [f"{kind} {b.name}: {TensorType(b.shape, b.dtype)!r}" for b in buffers]
    return "\n".join(lines + [line for block in function.blocks for line in _block_lines(block)])


def _block_lines(block: ComputeBlock) -> list[str]:
    lines = [f"block {block.name}({', '.join(map(_axis, block.axes))}) {{"]
    lines.append(f"  {_element(block.output, block.indices)} = {expr_text(block.body)}")
    if block.reducer is not None:
        lines.append(f"  reducer {block.reducer}")
    for word, expr in (("init", block.init), ("arg", block.arg)):
        if expr is not None:
            lines.append(f"  {word} {expr_text(expr)}")
    return [*lines, "}"]


def _axis(axis: IterVar) -> str:
    extent = axis.extent if isinstance(axis.extent, int) else f"<{axis.extent}>"
    return f"{'' if axis.kind == SPATIAL else f'{axis.kind} '}{axis.name}: {extent}"


def _element(buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{_list(indices)}]"


def _list(exprs: tuple[Expr, ...]) -> str:
    return ", ".join(map(expr_text, exprs))


def expr_text(expr: Expr) -> str:
    """Return a scalar expression as text.

    Example:
        >>> expr_text(Axis("i") * 2 + 1)
        'add(mul(i, 2), 1)'
    """
    match expr:
        case Axis() | State():
            return expr.name
        case Const():
            text = attribute_text(expr.value)
            return text if expr.dtype in (INDEX, "bool") else f"{expr.dtype}({text})"
        case DimValue():
            return f"<{expr.dim}>"
        case Load():
            return _element(expr.buffer, expr.indices)
        case Unary() | Binary():
            return f"{expr.op}({_list(expr.children)})"
        case Select():
            return f"select({_list(expr.children)})"
        case Iterate():
            return f"iterate({expr.dtype}, {expr.state.name}, {expr.count}, {_list(expr.children)})"
        case Cast():
            return f"cast({expr.dtype}, {expr_text(expr.x)})"
    raise IRError("a scalar expression of this class has no text form", found=type(expr).__name__)
