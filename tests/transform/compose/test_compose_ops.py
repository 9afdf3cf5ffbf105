"""Recognition of spelled-out operators: every spelling, every order of operands, and what only looks alike."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.dtypes import to_numpy
from kernelyard.ir import Constant, FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.compose.compose_ops import ComposeOps
from kernelyard.transform.pipelines import get_pipeline

N = dims.symbol("n")
COMPOSE = ComposeOps()


class Spelling:
    """Arithmetic on variables with Python's operators; `f.erf(x)` calls an op."""

    def __init__(self, builder: FunctionBuilder, value) -> None:
        self.builder = builder
        self.value = value

    def call(self, op: str, *operands, **attrs) -> Spelling:
        values = [o.value if isinstance(o, Spelling) else self._constant(o) for o in operands]
        return Spelling(self.builder, self.builder.op(op, *values, **attrs))

    def _constant(self, number) -> Constant:
        return Constant(np.asarray(number, to_numpy(self.value.tensor_type.dtype)))

    def __add__(self, other):
        return self.call("add", self, other)

    def __radd__(self, other):
        return self.call("add", other, self)

    def __sub__(self, other):
        return self.call("subtract", self, other)

    def __rsub__(self, other):
        return self.call("subtract", other, self)

    def __mul__(self, other):
        return self.call("multiply", self, other)

    def __rmul__(self, other):
        return self.call("multiply", other, self)

    def __truediv__(self, other):
        return self.call("divide", self, other)

    def __rtruediv__(self, other):
        return self.call("divide", other, self)

    def __pow__(self, other):
        return self.call("power", self, other)

    def __neg__(self):
        return self.call("negative", self)

    def __getattr__(self, op: str):
        return lambda *operands, **attrs: self.call(op.replace("__", "."), self, *operands, **attrs)


def spell(check, formula, shape=(N, 6), dtype: str = "float32"):
    return check.of(lambda b, x: formula(Spelling(b, x)).value, shape, dtype)


def clip(x, low, high):
    return x.clip(min=low, max=high)


C, A = math.sqrt(2 / math.pi), 0.044715

ACTIVATIONS = {
    "nn.gelu": [
        lambda x: 0.5 * x * (1 + (x / math.sqrt(2)).erf()),
        lambda x: x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1.0),
        lambda x: x * (0.5 * (1 + (x / 1.41421).erf())),
        lambda x: x * (0.5 * (x / math.sqrt(2)).erf() + 0.5),
        lambda x: (1 + (math.sqrt(0.5) * x).erf()) * x / 2,
        lambda x: (x + x * (x / math.sqrt(2)).erf()) * 0.5,
        lambda x: x * (1 - (-x / math.sqrt(2)).erf()) * 0.5,
    ],
    "nn.gelu_tanh": [
        lambda x: 0.5 * x * (1 + (C * (x + A * x * x * x)).tanh()),
        lambda x: x * (0.5 * (1 + ((x + x * (x * (x * A))) * C).tanh())),
        lambda x: 0.5 * x * (1 + (C * (x + A * x**3)).tanh()),
        lambda x: x * 0.5 * (1 + (x * C * (1 + A * x * x)).tanh()),
        lambda x: x * 0.5 * (1 + (C * x + C * A * x * x * x).tanh()),
        lambda x: x * (2 * C * (x + A * x * (x * x))).sigmoid(),
    ],
    "nn.silu": [
        lambda x: x * x.sigmoid(),
        lambda x: x.sigmoid() * x,
        lambda x: x / (1 + (-x).exp()),
        lambda x: x / ((x * -1.0).exp() + 1),
        lambda x: x * (1 / (1 + (-x).exp())),
        lambda x: x * (0.5 + 0.5 * (x / 2).tanh()),
    ],
    "nn.mish": [
        lambda x: x * x.nn__softplus().tanh(),
        lambda x: ((x.exp() + 1).log()).tanh() * x,
        lambda x: x * x.exp().log1p().tanh(),
    ],
    "nn.hard_swish": [
        lambda x: x * clip(x + 3, 0.0, 6.0) / 6,
        lambda x: x * (clip(3 + x, 0.0, 6.0) / 6),
        lambda x: x * (clip(x + 3, 0.0, 6.0) * (1 / 6)),
        lambda x: x / 6 * clip(x + 3, 0.0, 6.0),
        lambda x: clip(x / 6 + 0.5, 0.0, 1.0) * x,
        lambda x: x * x.nn__hard_sigmoid(alpha=1 / 6, beta=0.5),
        lambda x: x * (x + 3).maximum(0.0).minimum(6.0) / 6,
        lambda x: x * clip((x + 3).nn__relu(), None, 6.0) / 6,
    ],
    "nn.hard_sigmoid": [
        lambda x: clip(x + 3, 0.0, 6.0) / 6,
        lambda x: clip(x * 0.2 + 0.5, 0.0, 1.0),
        lambda x: clip((x + 1) / 2, 0.0, 1.0),
    ],
    "sigmoid": [
        lambda x: 1 / (1 + (-x).exp()),
        lambda x: (1 + (-1 * x).exp()).reciprocal(),
        lambda x: ((-x).exp() + 1) ** -1,
    ],
    "nn.softplus": [lambda x: (1 + x.exp()).log(), lambda x: x.exp().log1p(), lambda x: (x.exp() + 1).log()],
    "nn.softsign": [lambda x: x / (1 + x.abs()), lambda x: x / (x.abs() + 1)],
}
ACTIVATION_CASES = [(name, formula) for name, formulas in ACTIVATIONS.items() for formula in formulas]


@pytest.mark.parametrize(
    ("name", "formula"), ACTIVATION_CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(ACTIVATION_CASES)]
)
def test_activations(check, name, formula):
    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == [name]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.hard_swish"])
def test_activations_in_other_dtypes(check, name, dtype):
    function = spell(check, ACTIVATIONS[name][0], dtype=dtype)
    before = get_pipeline("clean")(IRModule({"main": function}))
    after = get_pipeline("clean")(COMPOSE(before))
    assert check.ops(after["main"]) == [name]


def test_activations_after_arithmetic_are_found(check):
    """What is activated may itself be arithmetic: a bias was added, a mean subtracted."""

    def formula(x):
        y = x + Spelling(x.builder, Constant(floats(6)))
        return y * 0.5 * (1 + (y / math.sqrt(2)).erf())

    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["add", "nn.gelu"]


def test_all_orders_of_a_product(check):
    def product(order):
        def formula(x):
            gate = 1 + (x / math.sqrt(2)).erf()
            first, second, third = ([x, gate, 0.5][i] for i in order)
            return first * second * third

        return formula

    for order in itertools.permutations(range(3)):
        assert check.ops(check.clean(COMPOSE, spell(check, product(order)))) == ["nn.gelu"], order


LOOK_ALIKES = {
    "gelu with another scale": lambda x: 0.5 * x * (1 + (x / 1.5).erf()),
    "gelu without the half": lambda x: x * (1 + (x / math.sqrt(2)).erf()),
    "gelu with a difference": lambda x: 0.5 * x * ((x / math.sqrt(2)).erf() - 1),
    "gelu of another value": lambda x: 0.5 * x.sin() * (1 + (x / math.sqrt(2)).erf()),
    "gelu with an offset": lambda x: 0.5 * x * (1 + (x / math.sqrt(2) + 0.1).erf()),
    "tanh gelu with a square": lambda x: 0.5 * x * (1 + (C * (x + A * x * x)).tanh()),
    "tanh gelu with another factor": lambda x: 0.5 * x * (1 + (C * (x + 0.05 * x * x * x)).tanh()),
    "gate of another value": lambda x: x * x.sin().sigmoid(),
    "gate with a slope": lambda x: x * (1.702 * x).sigmoid(),
    "clip of another range": lambda x: x * clip(x + 3, 0.0, 5.0) / 6,
    "clip from below zero": lambda x: x * clip(x + 3, -1.0, 6.0) / 6,
    "plain clip": lambda x: clip(x, 0.0, 1.0),
    "two plus exp": lambda x: 1 / (2 + (-x).exp()),
    "one minus exp": lambda x: 1 / (1 - (-x).exp()),
    "exp of x": lambda x: x / (1 + x.exp()),
    "log of two plus exp": lambda x: (2 + x.exp()).log(),
    "softsign of another": lambda x: x.sin() / (1 + x.abs()),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_looks_alike_keeps_its_meaning(check, name):
    after = check.clean(COMPOSE, spell(check, LOOK_ALIKES[name]))
    composed = set(check.ops(after)) & {"nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.hard_swish", "nn.softplus"}
    assert not composed
    assert not {"nn.softsign", "nn.hard_sigmoid"} & set(check.ops(after))


def test_parts_of_larger_formulas_are_found(check):
    squared_gate = spell(check, lambda x: x * x.sigmoid() * x.sigmoid())
    assert check.ops(check.clean(COMPOSE, squared_gate)) == ["sigmoid", "nn.silu", "multiply"]
    of_a_square = spell(check, lambda x: clip(x * x + 3, 0.0, 6.0) / 6)
    assert check.ops(check.clean(COMPOSE, of_a_square)) == ["square", "nn.hard_sigmoid"]


def test_x_over_one_plus_exp_of_another_keeps_both(check):
    after = check.clean(COMPOSE, spell(check, lambda x: x / (1 + (-x.sin()).exp())))
    assert check.ops(after) == ["sin", "sigmoid", "multiply"]


def test_integers_are_left_alone(check):
    function = check.of(lambda b, x: b.op("clip", b.op("add", x, 3), min=0.0, max=1.0), dtype="int32")
    assert check.ops(check.clean(COMPOSE, function)) == ["add", "clip"]


# --- normalisations ---------------------------------------------------------------------------------------------------
def mean(x, axes, keepdims=True):
    return x.mean(axes=axes, keepdims=keepdims)


def constant(x, *shape, seed=0):
    return Spelling(x.builder, Constant(floats(*shape, seed=seed)))


def kept(statistic, x, axes):
    shape = tuple(1 if i in axes else dim for i, dim in enumerate(x.value.tensor_type.shape))
    return statistic.reshape(shape=shape)


def numpy_style(x, axes):
    centred = x - mean(x, axes)
    return centred / (mean(centred**2, axes) + 1e-5).sqrt()


def two_subtractions(x, axes):
    return (x - mean(x, axes)) / (mean((x - mean(x, axes)) * (x - mean(x, axes)), axes) + 1e-5).sqrt()


def with_rsqrt(x, axes):
    centred = x - mean(x, axes)
    return (1e-5 + mean(centred.square(), axes)).rsqrt() * centred


def with_reciprocal(x, axes):
    centred = x - mean(x, axes)
    return centred * (1 / (mean(centred * centred, axes) + 1e-5).sqrt())


def count(x, axes):
    return math.prod(x.value.tensor_type.shape[axis] for axis in axes)


def sums(x, axes):
    centred = x - x.sum(axes=axes, keepdims=True) / count(x, axes)
    return centred / ((centred * centred).sum(axes=axes, keepdims=True) * (1 / count(x, axes)) + 1e-5).sqrt()


def moments(x, axes):
    average = mean(x, axes)
    return (x - average) * (mean(x * x, axes) - average * average + 1e-5).rsqrt()


def moments_dropped(x, axes):
    average = mean(x, axes, keepdims=False)
    variance = (mean(x * x, axes, keepdims=False) - average * average).maximum(0.0)
    return (x - kept(average, x, axes)) / (kept(variance, x, axes) + 1e-5).sqrt()


SPELLINGS = (numpy_style, two_subtractions, with_rsqrt, with_reciprocal, sums, moments, moments_dropped)


@pytest.mark.parametrize("axes", [(2,), (1,), (1, 2)], ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_layer_norm(check, spelling, axes):
    after = check.clean(COMPOSE, spell(check, lambda x: spelling(x, axes), shape=(N, 5, 8)))
    assert check.ops(after) == ["nn.layer_norm"]
    call = after.bindings[-1].value
    assert call.attrs["axes"] == axes
    assert call.attrs["epsilon"] == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("axes", [(2,), (1,), (1, 2)], ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_layer_norm_with_scale_and_shift(check, spelling, axes):
    shape = [size if axis in axes else 1 for axis, size in ((1, 5), (2, 8))]

    def formula(x):
        return constant(x, *shape, seed=1) * spelling(x, axes) + constant(x, 1, *shape, seed=2)

    assert check.ops(check.clean(COMPOSE, spell(check, formula, shape=(N, 5, 8)))) == ["nn.layer_norm"]


def test_a_shift_after_a_layer_norm_of_open_size_stays(check):
    """Of gamma and beta the sizes are known, of the operand they are not."""
    gamma = floats(6)
    for shift in (np.float32(0.5), floats(6)):
        b = FunctionBuilder()
        normal = b.op("nn.layer_norm", b.input("x", (2, N)), gamma, gamma, axes=(1,))
        module = IRModule({"main": b.function(b.op("add", normal, shift))})
        assert_same_meaning(module, get_pipeline("simplify")(module), [floats(2, 6)])
        assert check.ops(ComposeOps()(module)["main"]) == ["nn.layer_norm", "add"]


def test_a_scale_inside_the_product(check):
    """Flax multiplies the scale with the inverse deviation first."""

    def formula(x):
        average = mean(x, (1,))
        inverse = (mean(x * x, (1,)) - average * average + 1e-6).rsqrt() * constant(x, 6, seed=1)
        return (x - average) * inverse + constant(x, 6, seed=2)

    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["nn.layer_norm"]


def test_scale_and_offset(check):
    """Keras computes x * s + (beta - mean * s)."""

    def formula(x):
        average = mean(x, (1,))
        scale = (mean((x - average) ** 2, (1,)) + 1e-3).rsqrt() * constant(x, 6, seed=1)
        return x * scale + (constant(x, 6, seed=2) - average * scale)

    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["nn.layer_norm"]


def test_offset_by_another_mean_is_no_layer_norm(check):
    def formula(x):
        average = mean(x, (1,))
        scale = (mean((x - average) ** 2, (1,)) + 1e-3).rsqrt() * constant(x, 6, seed=1)
        return x * scale + (constant(x, 6, seed=2) - mean(x, (0,)) * scale)

    assert "nn.layer_norm" not in check.ops(check.clean(COMPOSE, spell(check, formula)))


def test_powers_of_a_half(check):
    def multiplied(x):
        centred = x - mean(x, (1,))
        return centred * (mean(centred**2, (1,)) + 1e-5) ** -0.5

    def divided(x):
        centred = x - mean(x, (1,))
        return centred / (mean(centred**2, (1,)) + 1e-5) ** 0.5

    for formula in (multiplied, divided):
        assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["nn.layer_norm"]


def test_rms_norm_of_a_product(check):
    def formula(x):
        gated = x.sin() * x.cos()
        return gated * (mean(gated * gated, (1,)) + 1e-6).rsqrt() * constant(x, 6)

    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["sin", "cos", "multiply", "nn.rms_norm"]


def test_rms_norm(check):
    def plain(x):
        return x / (mean(x**2, (1,)) + 1e-6).sqrt()

    def scaled(x):
        return constant(x, 6) * (x * (mean(x * x, (1,)) + 1e-6).rsqrt())

    for formula in (plain, scaled):
        assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["nn.rms_norm"]


def test_a_normalised_value_that_others_read_is_kept_unscaled(check):
    b = FunctionBuilder()
    normal = with_rsqrt(Spelling(b, b.input("x", (N, 6))), (1,))
    scaled = normal * Spelling(b, Constant(floats(6)))
    after = check.clean(COMPOSE, b.function(normal.value, scaled.value))
    assert check.ops(after) == ["nn.layer_norm", "multiply"]


def other_mean(x, axes):
    return (x - mean(x.sin(), axes)) / (mean((x - mean(x, axes)) ** 2, axes) + 1e-5).sqrt()


def other_axes(x, axes):
    centred = x - mean(x, axes)
    return centred / (mean(centred**2, (0,)) + 1e-5).sqrt()


def max_for_mean(x, axes):
    centred = x - x.max(axes=axes, keepdims=True)
    return centred / (mean(centred**2, axes) + 1e-5).sqrt()


def twice_the_variance(x, axes):
    centred = x - mean(x, axes)
    return centred / (2 * mean(centred**2, axes) + 1e-5).sqrt()


def wrong_count(x, axes):
    centred = x - mean(x, axes)
    return centred / ((centred**2).sum(axes=axes, keepdims=True) / 5 + 1e-5).sqrt()


def times_the_deviation(x, axes):
    centred = x - mean(x, axes)
    return centred * (mean(centred**2, axes) + 1e-5).sqrt()


def sum_of_moments(x, axes):
    average = mean(x, axes)
    return (x - average) / (mean(x * x, axes) + average * average + 1e-5).sqrt()


def limited_above(x, axes):
    centred = x - mean(x, axes)
    return centred / (clip(mean(centred**2, axes), 0.0, 0.5) + 1e-5).sqrt()


def along_the_wrong_axis(x, axes):
    """In a square, means of rows broadcast along rows as if they were means of columns."""
    centred = x - mean(x, axes, keepdims=False)
    return centred / (mean(centred**2, axes) + 1e-5).sqrt()


NOT_NORMS = (
    other_mean,
    other_axes,
    max_for_mean,
    twice_the_variance,
    wrong_count,
    times_the_deviation,
    sum_of_moments,
    limited_above,
    along_the_wrong_axis,
)


@pytest.mark.parametrize("spelling", NOT_NORMS, ids=lambda f: f.__name__)
def test_what_is_no_layer_norm(check, spelling):
    after = check.clean(COMPOSE, spell(check, lambda x: spelling(x, (1,)), shape=(6, 6)))
    assert "nn.layer_norm" not in check.ops(after)


def test_means_of_columns_broadcast_by_themselves(check):
    def formula(x):
        centred = x - mean(x, (0,), keepdims=False)
        return centred / (mean(centred**2, (0,), keepdims=False) + 1e-5).sqrt()

    assert check.ops(check.clean(COMPOSE, spell(check, formula, shape=(6, 6)))) == ["nn.layer_norm"]


# --- softmax ----------------------------------------------------------------------------------------------------------
def shifted(x, axis):
    return (x - x.max(axes=(axis,), keepdims=True)).exp()


SOFTMAXES = {
    "usual": lambda x, a: shifted(x, a) / shifted(x, a).sum(axes=(a,), keepdims=True),
    "without the maximum": lambda x, a: x.exp() / x.exp().sum(axes=(a,), keepdims=True),
    "reciprocal": lambda x, a: (1 / shifted(x, a).sum(axes=(a,), keepdims=True)) * shifted(x, a),
    "axes dropped and brought back": lambda x, a: (
        (x - kept(x.max(axes=(a,)), x, (a,))).exp()
        / kept((x - kept(x.max(axes=(a,)), x, (a,))).exp().sum(axes=(a,)), x, (a,))
    ),
    "maximum with minus infinity": lambda x, a: (
        (x - x.max(axes=(a,), keepdims=True).maximum(-math.inf)).exp()
        / (x - x.max(axes=(a,), keepdims=True).maximum(-math.inf)).exp().sum(axes=(a,), keepdims=True)
    ),
}


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmax(check, name, axis):
    after = check.clean(COMPOSE, spell(check, lambda x: SOFTMAXES[name](x, axis), shape=(N, 5, 8)))
    assert check.ops(after) == ["nn.softmax"]
    assert after.bindings[-1].value.attrs["axis"] == axis


@pytest.mark.parametrize("axis", [0, 1])
def test_log_softmax(check, axis):
    def difference(x):
        d = x - x.max(axes=(axis,), keepdims=True)
        return d - d.exp().sum(axes=(axis,), keepdims=True).log()

    for formula in (difference, lambda x: SOFTMAXES["usual"](x, axis).log(), lambda x: x.nn__softmax(axis=axis).log()):
        assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["nn.log_softmax"]


NOT_SOFTMAX = {
    "sum over another axis": lambda x: shifted(x, 1) / shifted(x, 1).sum(axes=(0,), keepdims=True) / 2,
    "sum of another value": lambda x: x.exp() / x.sin().exp().sum(axes=(1,), keepdims=True),
    "sum over two axes": lambda x: x.exp() / x.exp().sum(axes=(0, 1), keepdims=True),
    "mean": lambda x: x.exp() / x.exp().mean(axes=(1,), keepdims=True),
    "rows against columns": lambda x: x.exp() / x.exp().sum(axes=(1,)),
}


@pytest.mark.parametrize("name", NOT_SOFTMAX)
def test_what_is_no_softmax_of_rows(check, name):
    after = check.clean(COMPOSE, spell(check, NOT_SOFTMAX[name], shape=(6, 6)))
    calls = [binding.value for binding in after.bindings]
    assert not [call for call in calls if call.op_name == "nn.softmax" and call.attrs["axis"] == 1]


def test_softmax_of_values_shifted_by_another_maximum(check):
    def formula(x):
        exponential = (x - x.max(axes=(0,), keepdims=True)).exp()
        return exponential / exponential.sum(axes=(1,), keepdims=True)

    assert check.ops(check.clean(COMPOSE, spell(check, formula))) == ["max", "subtract", "nn.softmax"]


# --- random programs --------------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(modules(symbolic=True, max_ops=14))
def test_random_modules_keep_their_meaning(program):
    after = get_pipeline("simplify")(program.module)
    assert_same_meaning(program.module, after, program.inputs)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("asmdqp"), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 100))
def test_random_arithmetic_around_a_gate_keeps_its_meaning(steps, gate, seed):
    """Random polynomials of x and a gate: none of them may be taken for an activation that it is not."""
    b = FunctionBuilder()
    x = Spelling(b, b.input("x", (3, 5)))
    gates = (x.sigmoid, (x / math.sqrt(2)).erf, (x / 2).tanh, lambda: clip(x + 3, 0.0, 6.0), x.tanh, x.nn__softplus)
    values = [x, gates[gate]()]
    random = np.random.default_rng(seed)
    numbers = (0.5, 1.0, 2.0, 3.0, 1 / 6, 6.0)
    for step in steps:
        one, other = (values[random.integers(len(values))] for _ in range(2))
        number = numbers[random.integers(len(numbers))]
        made = {
            "a": one + other,
            "s": one + number,
            "m": one * other,
            "d": one / number,
            "q": one * number,
            "p": one - other,
        }
        values.append(made[step])
    module = IRModule({"main": b.function(values[-1].value)})
    assert_same_meaning(module, get_pipeline("simplify")(module), [floats(3, 5, seed=seed)])
