"""erf by a table: polynomials around multiples of 1/4, whose coefficients are looked up in a register."""

from __future__ import annotations

from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, float_literal
from kernelyard_native_cpu.codegen import elementary
from kernelyard_native_cpu.codegen.elementary import copy_sign, magnitude

# Of erf(n / 4 + t) in t, |t| <= 1/8, for n from 0 to 15: a row per power. Around 0, where errors count against small
# results, t itself is added last.
COEFFICIENTS = (
    (
        0.0,
        0.276326388,
        0.520499885,
        0.711155653,
        0.842700779,
        0.92290014,
        0.966105163,
        0.986671686,
        0.995322287,
        0.998537302,
        0.999593019,
        0.999899387,
        0.999977887,
        0.999995708,
        0.999999285,
        0.999999881,
    ),
    (
        0.128379166,
        1.06001425,
        0.87878263,
        0.642931104,
        0.415107489,
        0.236521125,
        0.118930288,
        0.0527749956,
        0.0206669867,
        0.00714231934,
        0.00217828411,
        0.000586277281,
        0.000139253054,
        2.91890265e-05,
        5.39942675e-06,
        8.81432186e-07,
    ),
    (
        0.0,
        -0.264998764,
        -0.439388335,
        -0.482204586,
        -0.415101171,
        -0.29565987,
        -0.178406119,
        -0.0923649371,
        -0.041345302,
        -0.0160793662,
        -0.00543081248,
        -0.00161679974,
        -0.000406006468,
        -0.000100577185,
        -3.31137635e-05,
        -5.02104399e-07,
    ),
    (
        -0.376122713,
        -0.309191763,
        -0.146478713,
        0.026777016,
        0.138370663,
        0.1675338,
        0.138751432,
        0.0901575536,
        0.0482231416,
        0.0217245687,
        0.00835005753,
        0.00276030554,
        0.000789054786,
        0.000195788642,
        4.22882767e-05,
        7.96761287e-06,
    ),
    (
        0.0,
        0.126076803,
        0.182121187,
        0.150669158,
        0.068851538,
        -0.00528682861,
        -0.0436144806,
        -0.047405906,
        -0.0337126255,
        -0.0185432583,
        -0.00961911865,
        -0.00299377088,
        -0.00180781388,
        7.47579397e-05,
        0.000840477995,
        -0.000193477332,
    ),
    (
        0.112210274,
        0.0808863044,
        0.00826435443,
        -0.0522019602,
        -0.0690437928,
        -0.0469960384,
        -0.0149032371,
        0.00651265914,
        0.0130251832,
        0.0106461644,
        0.00612781616,
        0.00277121342,
        0.00102558779,
        0.000317808066,
        8.34922612e-05,
        1.87549249e-05,
    ),
)
_LAST = 3.8749998  # beyond, the result is 1: that is less than a unit off, and exact for all that is large
# Added to a number below 4, this leaves its nearest multiple of 1/4 in the last bits.
_QUARTERS = 2.0**21


def erf(e: FunctionEmitter, x: Value) -> Value:
    """Error below 2 ulp for float; without tables where no instruction looks them up."""
    if x.type != "float" or not e.has_look_up(x.lanes):
        return elementary.erf(e, x)
    a = magnitude(e, x)
    is_one = e.compare("ogt", a, _LAST)
    a = e.select(is_one, _LAST, a)  # NaN stays
    place = e.add(a, _QUARTERS)
    bits = e.convert("bitcast", place, "i32")
    start, *middle, result = (e.look_up([float_literal(each) for each in row], bits) for row in COEFFICIENTS)
    t = e.sub(a, e.sub(place, _QUARTERS))
    for row in reversed(middle):
        result = e.fma(result, t, row)
    result = e.fma(result, t, e.select(e.compare("ole", a, 0.125), t, start))
    return copy_sign(e, e.select(is_one, 1.0, result), x)
