"""Idioms: several operators that mean one, or that passes move, as frontends write them and as nobody does.

Random operators hardly ever form them. Numbers in them are now and then not quite those of the idiom, operands come in
any order, and later operators may read what is in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelyard.ir import Var
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.linear_idioms import LINEAR_IDIOMS
from kernelyard_fuzz.matrix_idioms import MATRIX_IDIOMS
from kernelyard_fuzz.movement_idioms import MOVEMENT_IDIOMS
from kernelyard_fuzz.order_idioms import ORDER_IDIOMS
from kernelyard_fuzz.sketch import Sketch, is_tame
from kernelyard_fuzz.transformer_idioms import TRANSFORMER_IDIOMS
from kernelyard_fuzz.window_idioms import WINDOW_IDIOMS
from kernelyard_fuzz.writer import RefusedError, Writer

Idiom = Callable[[Writer, Var], object]


# --- activations and arithmetic ---------------------------------------------------------------------------------------
def _gelu(w: Writer, x: Var) -> Var:
    inner = w.op("multiply", x, 1 / math.sqrt(2)) if w.chooser.chance(50) else w.op("divide", x, math.sqrt(2))
    gate = w.op("add", w.op("erf", inner), 1.0)
    if w.chooser.chance(50):
        return w.op("multiply", w.op("multiply", x, 0.5), gate)
    return w.op("multiply", w.op("multiply", x, gate), 0.5)


def _gelu_tanh(w: Writer, x: Var) -> Var:
    cube = w.op("multiply", w.op("multiply", x, x), x) if w.chooser.chance(50) else w.op("power", x, 3.0)
    inner = w.op("multiply", w.op("add", x, w.op("multiply", cube, 0.044715)), math.sqrt(2 / math.pi))
    return w.op("multiply", w.op("multiply", x, 0.5), w.op("add", w.op("tanh", inner), 1.0))


def _sigmoid(w: Writer, x: Var) -> Var:
    bottom = w.op("add", w.op("exp", w.op("negative", x)), 1.0)
    return w.op("divide", x if w.chooser.chance(50) else w.number(1.0), bottom)


def _write_gated_unit(w: Writer, x: Var) -> Var:
    gate = w.chooser.pick(("sigmoid", "tanh", "nn.softplus", "nn.hard_sigmoid"))
    return w.op("multiply", x, w.op(gate, x))


def _mish(w: Writer, x: Var) -> Var:
    softplus = w.op("nn.softplus", x) if w.chooser.chance(50) else w.op("log", w.op("add", w.op("exp", x), 1.0))
    return w.op("multiply", x, w.op("tanh", softplus))


def _softsign(w: Writer, x: Var) -> Var:
    return w.op("divide", x, w.op("add", w.op("abs", x), 1.0))


def _hard(w: Writer, x: Var) -> Var:
    shifted = w.op("add", x, 3.0) if w.chooser.chance(60) else w.op("subtract", 3.0, x)
    if w.chooser.chance(40):
        return w.op("clip", w.op(w.chooser.pick(("multiply", "divide")), x, 6.0), min=0.0, max=1.0)
    clipped = w.op("clip", shifted, min=0.0, max=w.chooser.pick((6.0, 1.0)))
    gate = w.op("divide", clipped, 6.0) if w.chooser.chance(50) else w.op("multiply", clipped, 1 / 6)
    return w.op("multiply", x, gate) if w.chooser.chance(60) else gate


def _numbers(w: Writer, x: Var) -> Var:
    """Numbers one after the other, which become fewer."""
    for _ in range(w.chooser.between(2, 4)):
        name = w.chooser.pick(("add", "multiply", "subtract", "divide", "maximum", "minimum", "power"))
        value = w.chooser.pick((0.0, 1.0, 2.0, -1.0, 0.5, 1e-39, math.inf) if name != "power" else (0.5, 1.0, 2.0, 3.0))
        is_first = name in ("subtract", "divide") and w.chooser.chance(25)
        x = w.op(name, w.number(value), x) if is_first else w.op(name, x, value)
    return x


def _with_itself(w: Writer, x: Var) -> Var:
    name = w.chooser.pick(("add", "multiply", "subtract", "maximum", "minimum"))
    other = w.op("negative", x) if w.chooser.chance(40) else x
    return w.op(name, x, other)


def _unary_twice(w: Writer, x: Var) -> Var:
    names = ("negative", "abs", "nn.relu", "floor", "exp", "log", "sqrt", "square", "sign", "tanh")
    return w.op(w.chooser.pick(names), w.op(w.chooser.pick(names), x))


def _mesh(w: Writer, x: Var) -> Var:
    """Values of one shape that read each other in any way: what a backend takes between what it does not."""
    values = [x]
    for _ in range(w.chooser.between(6, 14)):
        name = w.chooser.pick(("add", "maximum", "subtract", "nn.relu", "sigmoid", "sin", "floor", "sign"))
        operands = [w.chooser.pick(values[-6:]) for _ in range(1 if name in ("sin", "floor", "sign") else 2)]
        values.append(w.op(name, *operands[: 1 if name in ("nn.relu", "sigmoid") else 2]))
    return values[-1]


# --- norms ------------------------------------------------------------------------------------------------------------
def _write_norm(w: Writer, x: Var) -> Var:
    """Write a norm out, over the last axis."""
    axes = (x.tensor_type.rank - 1,)
    centred = w.op("subtract", x, w.op("mean", x, axes=axes, keepdims=True))
    variance = w.op("mean", w.op("multiply", centred, centred), axes=axes, keepdims=True)
    root = w.op("sqrt", w.op("add", variance, w.chooser.pick((1e-5, 1e-3))))
    size = int(x.tensor_type.shape[-1])  # pyright: ignore[reportArgumentType]
    y = w.op("multiply", w.op("divide", centred, root), w.vector(size, 1, 0))
    return w.op("add", y, w.vector(size, 1, 0)) if w.chooser.chance(70) else y


def _softmax(w: Writer, x: Var) -> Var:
    axes = (x.tensor_type.rank - 1,)
    powers = w.op("exp", w.op("subtract", x, w.op("max", x, axes=axes, keepdims=True)))
    return w.op("divide", powers, w.op("sum", powers, axes=axes, keepdims=True))


IDIOMS: Mapping[str, Idiom] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": _sigmoid,
    "gated": _write_gated_unit,
    "mish": _mish,
    "softsign": _softsign,
    "hard": _hard,
    "numbers": _numbers,
    "with_itself": _with_itself,
    "unary_twice": _unary_twice,
    "mesh": _mesh,
    "normalised": _write_norm,
    "softmax": _softmax,
    **LINEAR_IDIOMS,
    **MATRIX_IDIOMS,
    **MOVEMENT_IDIOMS,
    **ORDER_IDIOMS,
    **TRANSFORMER_IDIOMS,
    **WINDOW_IDIOMS,
}


def idiom(chooser: Chooser, sketch: Sketch, x: Var) -> str:
    """Write an idiom of a value of floats; return its name, empty where it came to nothing."""
    name = chooser.pick(tuple(IDIOMS))
    if x.tensor_type.dtype != "float32" or not x.tensor_type.rank:
        return ""
    before = len(sketch.arrays)
    try:
        IDIOMS[name](Writer(chooser, sketch), x)
    except RefusedError:
        return ""
    finally:
        for var in list(sketch.arrays)[before:]:  # what an idiom only passes by may be any number
            if not is_tame(sketch.arrays[var]):
                del sketch.arrays[var]
    return name
