"""Linear attention: a state of keys and values that each token decays and adds to, and what prepares its operands.

The recurrences are those of the standard's LinearAttention, which defines them by a Scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kernelyard import dims
from kernelyard.dims import Dim, floordiv
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter
from kernelyard_onnx.values import Value

microsoft = partial(converter, domain=MICROSOFT)
STANDARD_OPSET = 27  # in which the standard defines LinearAttention
SMALL = 1e-6  # under the root of the lengths by which queries and keys are divided


@microsoft("LinearAttention")
def linear_attention(node: Node) -> Sequence[Value | None]:
    if node.attr("state_window", 0):
        node.reject("state_window is not supported")
    queries, many = node.input(0), int(node.require_attr("q_num_heads"))
    few = int(node.require_attr("kv_num_heads"))
    scale = float(node.attr("scale", 0.0)) or _default_scale(node, floordiv(node.shape(queries)[2], many))
    if few > many:  # each head of queries reads several states
        queries, many = _repeat_heads(node, queries, many, few), few
    inputs = [queries, *(node.value(index) for index in range(1, 6))]
    return _recurrence(node, inputs, many, few, scale)


def _default_scale(node: Node, size: Dim) -> float:
    return node.require_fixed(size, "size of its heads") ** -0.5


def _repeat_heads(node: Node, x: Expr, own: int, heads: int) -> Expr:
    """(batch, length, own * size) -> (batch, length, heads * size), each head repeated in place."""
    if heads % own:
        node.reject(f"{heads} heads cannot share {own}")
    batch, length, width = node.shape(x)
    size = floordiv(width, own)
    spread = node.broadcast_to(node.reshape(x, (batch, length, own, 1, size)), (batch, length, own, heads // own, size))
    return node.reshape(spread, (batch, length, heads * size))


def _recurrence(
    node: Node, inputs: Sequence[Value | None], many: int, few: int, scale: float
) -> Sequence[Value | None]:
    rule = node.attr("update_rule", "gated_delta")
    attributes = {"q_num_heads": many, "kv_num_heads": few, "scale": scale, "update_rule": rule}
    return node.by_standard("LinearAttention", STANDARD_OPSET, inputs, attributes)


@microsoft("LinearAttentionGate")
def gates_of_linear_attention(node: Node) -> Sequence[Expr | None]:
    """Return the decay, scale * softplus(a + bias), and the update rate, in float32 between."""
    a, bias, scale = (node.cast(node.input(index), "float32") for index in range(3))
    decay = node.op("multiply", scale, node.op("nn.softplus", node.op("add", a, bias)))
    rate = node.optional(3)
    return [
        node.cast(decay, node.dtype(node.input(0))),
        None if rate is None else node.op("sigmoid", rate),
    ]


# --- gated delta networks ---------------------------------------------------------------------------------------------
@microsoft("GatedDeltaNet")
def gated_delta_network(node: Node) -> Sequence[Value | None]:
    """Convert linear attention of tokens one after the other, sequences of one length behind each other.

    query, key: (tokens, heads, size) or (batch, length, heads, size); value has as many heads or several times as many.
    The state is (batch, heads of values, size of values, size of keys).
    """
    if node.value(3) is not None or node.attr("state_update_capacity", 0):
        node.reject("cu_seqlens and state_update_capacity are not supported")
    query, key, value = _queries_keys_values(node)
    state, dtype = node.optional(6), node.dtype(query)
    batch = node.shape(query)[0] if node.rank(query) == 4 else _batch_of(node, state)
    heads = node.require_fixed(node.shape(value)[-2], "number of heads of its values")
    own = node.require_fixed(node.shape(query)[-2], "number of heads of its queries")
    scale = float(node.attr("scale", 0.0)) or _default_scale(node, node.shape(query)[-1])
    if node.attr("qk_l2_norm", 0):
        query, key = _normalize(node, query), _normalize(node, key)
    q, k, v = (_split_sequences(node, x, batch) for x in (query, key, value))
    q, k = _repeat_heads(node, q, own, heads), _repeat_heads(node, k, own, heads)
    decay, rate = _decay(node, heads), node.optional(5)
    if rate is not None and node.attr("beta_activation", "none") == "sigmoid":
        rate = node.op("sigmoid", node.cast(rate, "float32"))
    gates = [
        None if x is None else node.cast(_split_sequences(node, x, batch, heads), "float32") for x in (decay, rate)
    ]
    given = [node.cast(x, "float32") for x in (q, k, v)]
    past = None if state is None else node.permute(state, (0, 1, 3, 2))
    result, last = _recurrence(node, [*given, past, *gates], heads, heads, scale)
    if not isinstance(result, Expr) or not isinstance(last, Expr):
        node.reject("its recurrence gives no tensors")
    result = node.reshape(node.cast(result, dtype), node.shape(value))
    return [result, node.permute(last, (0, 1, 3, 2)), None]


def _batch_of(node: Node, state: Expr | None) -> Dim:
    return node.reject("its initial_state is missing") if state is None else node.shape(state)[0]


def _queries_keys_values(node: Node) -> tuple[Expr, Expr, Expr]:
    query, key, value, state = node.input(0), node.optional(1), node.optional(2), node.optional(6)
    if key is not None and value is not None:
        return query, key, value
    if state is None:
        node.reject("its key or value is missing, and no initial_state tells how query is divided")
    _, heads, size_v, size = (node.require_fixed(dim, "size of its state") for dim in (1, *node.shape(state)[1:]))
    *tokens, width = node.shape(query)
    last, end = len(tokens), heads * size_v
    both = node.require_fixed(width, "width of its query") - end
    own = both // (2 * size)
    q, k = (node.slice(query, last, i * own * size, (i + 1) * own * size) for i in (0, 1))
    v = node.slice(query, last, both, both + end)
    q, k = (node.reshape(x, (*tokens, own, size)) for x in (q, k))
    return q, k, node.reshape(v, (*tokens, heads, size_v))


def _normalize(node: Node, x: Expr) -> Expr:
    squares = node.op("sum", node.op("square", x), axes=(node.rank(x) - 1,), keepdims=True)
    return node.op("multiply", x, node.op("rsqrt", node.op("add", squares, SMALL)))


def _split_sequences(node: Node, x: Expr, batch: Dim, heads: int = 0) -> Expr:
    """(tokens, ..) or (batch, length, ..) -> (batch, length, what is left)."""
    rest = dims.product(node.shape(x)[-2:])
    if heads:  # of gates: a number for each head, or for each element of its keys
        is_per_head = node.shape(x)[-1] == heads
        rest = heads if is_per_head else rest
    return node.reshape(x, (batch, floordiv(dims.product(node.shape(x)), batch * rest), rest))


def _decay(node: Node, heads: int) -> Expr | None:
    """Return the logarithm of the decay: as given, or computed from what is projected."""
    decay, kind = node.optional(4), node.attr("gate_activation", "none")
    if decay is None or kind == "none":
        return decay
    log, bias = node.optional(7), node.optional(8)
    if log is None or bias is None:
        node.reject("its a_log or dt_bias is missing")
    decay = node.cast(decay, "float32")
    is_per_head = node.shape(decay)[-1] == heads
    rate = node.op("exp", log if is_per_head else node.reshape(log, (heads, 1)))
    shape = node.shape(rate) if is_per_head else node.shape(decay)[-2:]
    shifted = node.op("add", decay, node.reshape(bias, shape))
    if kind in ("softplus", "qwen"):
        return node.op("multiply", node.op("negative", rate), node.op("nn.softplus", shifted))
    if kind in ("sigmoid", "kda"):
        bound = float(node.attr("gate_lower_bound", -5.0))
        return node.op("multiply", node.op("sigmoid", node.op("multiply", rate, shifted)), bound)
    return node.reject(f"its gate_activation {kind!r} is unknown")


# --- convolution ------------------------------------------------------------------------------------------------------
@microsoft("CausalConvWithState")
def causal_convolution(node: Node) -> Sequence[Expr | None]:
    """Return a depthwise convolution of each element with those before it, and the last elements, for the next call."""
    if node.attr("ndim", 1) != 1 or node.attr("state_window", 0) or node.has_output(2):
        node.reject("ndim other than 1, state_window and state_update are not supported")
    is_last = bool(node.attr("channels_last", 0))
    x, past = node.input(0), node.optional(3)
    given = node.shape(x)
    if is_last:
        x, past = (None if each is None else _channels_first(node, each) for each in (x, past))
    if x is None:
        node.reject("its input is missing")
    weight, bias, dilation = node.input(1), node.optional(2), int(node.attr("dilation", 1))
    batch, channels, length = node.shape(x)
    reach = (node.require_fixed(node.shape(weight)[2], "length of its kernel") - 1) * dilation
    start = node.full(0, (batch, channels, reach), node.dtype(x)) if past is None else past
    whole = node.op("concat", start, x, axis=2) if reach else x
    groups = node.require_fixed(channels, "number of its channels")
    y = node.op("nn.conv1d", whole, weight, dilation=(dilation,), groups=groups)
    y = y if bias is None else node.op("add", y, node.reshape(bias, (1, channels, 1)))
    y = _activate(node, y)
    state = node.slice(whole, 2, length, length + reach)
    if is_last:
        rest = given[2:]
        y = node.reshape(node.permute(y, (0, 2, 1)), given)
        state = node.reshape(node.permute(state, (0, 2, 1)), (batch, reach, *rest))
    return [y, state]


def _channels_first(node: Node, x: Expr) -> Expr:
    """(batch, length, channels..) -> (batch, channels, length)."""
    batch, length, *channels = node.shape(x)
    return node.permute(node.reshape(x, (batch, length, dims.product(channels))), (0, 2, 1))


def _activate(node: Node, x: Expr) -> Expr:
    name = node.attr("activation", "none")
    if name not in ("none", "silu", "swish"):
        node.reject(f"its activation {name!r} is unknown")
    return x if name == "none" else node.op("nn.silu", x)
