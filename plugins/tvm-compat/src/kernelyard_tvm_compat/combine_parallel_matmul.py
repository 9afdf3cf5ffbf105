"""Matrix products of one left operand become one product, which is then split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelyard.ir import Binding, Call, Constant, Expr, Function, IRModule, TupleGetItem, Var, get_op
from kernelyard.ir.op import Op
from kernelyard.patterns.matching.dataflow import Dataflow, remove_aliases
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext

ACTIVATIONS = ("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu")

Check = Callable[[Sequence[Call]], bool]


@dataclass(frozen=True)
class _Branch:
    """One product, and what follows it and nothing else reads: the addition of a bias (N,), an activation.

    steps: the variables, in order; the last is what the others read.
    """

    steps: tuple[Var, ...]
    product: Call
    bias: Expr | None = None
    activation: Call | None = None


class CombineParallelMatmul(FunctionPass):
    """`x @ a`, `x @ b`, ... become `split(x @ concat(a, b, ...))`, with biases and activations where all have them.

    Right operands must have equal axes but for the last, and must be there before the first of the products.
    check: asked with the products of each group; False leaves the group as it is.
    """

    name = "combine_parallel_matmul"

    def __init__(self, check: Check | None = None) -> None:
        self._check = check

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        clean = remove_aliases(function)
        combining = _Combining(clean)
        groups = [g for g in combining.groups() if self._check is None or self._check([b.product for b in g])]
        return combining.rewrite(groups) if groups else function


class _Combining:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.dataflow = Dataflow(function.bindings, function.result)

    def groups(self) -> list[list[_Branch]]:
        """Return the branches that can be combined: two or more with the same left operand."""
        found: dict[tuple[object, ...], list[_Branch]] = {}
        first: dict[tuple[object, ...], int] = {}
        for position, binding in enumerate(self.function.bindings):
            value = binding.value
            if not isinstance(value, Call) or value.op_name != "matmul" or value.args[1].tensor_type.rank < 2:
                continue
            left, right = value.args
            # Constants are equal by content, variables by identity.
            key = (left.digest if isinstance(left, Constant) else left, right.tensor_type.shape[:-1], right.type.dtype)  # pyright: ignore[reportAttributeAccessIssue]
            if self._is_there(right, first.setdefault(key, position)):
                found.setdefault(key, []).append(_Branch((binding.var,), value))
        return [self._with_epilogues(group, first[key]) for key, group in found.items() if len(group) > 1]

    def rewrite(self, groups: list[list[_Branch]]) -> Function:
        gone = {var for group in groups for branch in group for var in branch.steps}
        first = {group[0].steps[0]: group for group in groups}
        bindings: list[Binding] = []
        for binding in self.function.bindings:
            if binding.var in first:
                bindings += _combine(first[binding.var])
            elif binding.var not in gone:
                bindings.append(binding)
        return Function(self.function.params, bindings, self.function.result, self.function.attrs)

    def _with_epilogues(self, group: list[_Branch], start: int) -> list[_Branch]:
        """Return the branches with a bias, and then an activation, if all have one."""
        with_bias = [self._with_bias(branch, start) for branch in group]
        if all(with_bias):
            group = [branch for branch in with_bias if branch]
        activated = [self._with_activation(branch) for branch in group]
        ops = {(b.activation.op_name, tuple(b.activation.attrs.items())) for b in activated if b and b.activation}
        return [branch for branch in activated if branch] if all(activated) and len(ops) == 1 else group

    def _with_bias(self, branch: _Branch, start: int) -> _Branch | None:
        follower = self._only_reader(branch, "add")
        if follower is None:
            return None
        var, call = follower
        biases = [arg for arg in call.args if arg is not branch.steps[-1]]
        columns = branch.product.tensor_type.shape[-1]
        if len(biases) != 1 or biases[0].tensor_type.shape != (columns,) or not self._is_there(biases[0], start):
            return None
        return _Branch((*branch.steps, var), branch.product, biases[0])

    def _with_activation(self, branch: _Branch) -> _Branch | None:
        follower = self._only_reader(branch, *ACTIVATIONS)
        if follower is None:
            return None
        return _Branch((*branch.steps, follower[0]), branch.product, branch.bias, follower[1])

    def _only_reader(self, branch: _Branch, *ops: str) -> tuple[Var, Call] | None:
        last = branch.steps[-1]
        users = self.dataflow.users(last)
        if len(users) != 1 or self.dataflow.is_returned(last):
            return None
        value = self.dataflow.values[users[0]]
        if not isinstance(value, Call) or not isinstance(value.op, Op) or value.op.name not in ops:
            return None
        return (users[0], value) if value.type == last.type else None

    def _is_there(self, operand: Expr, position: int) -> bool:
        return not isinstance(operand, Var) or self.dataflow.position.get(operand, -1) < position


def _combine(group: list[_Branch]) -> list[Binding]:
    bindings: list[Binding] = []
    origin = group[0].steps[0].origin

    def bind(op: str, *operands: Expr, **attrs: object) -> Var:
        value = Call(get_op(op), operands, attrs)
        bindings.append(Binding(Var("combined", value.type, origin), value))
        return bindings[-1].var

    rank = group[0].product.args[1].tensor_type.rank
    whole = bind("concat", *(branch.product.args[1] for branch in group), axis=rank - 1)
    whole = bind("matmul", group[0].product.args[0], whole)
    biases = [branch.bias for branch in group if branch.bias is not None]
    if biases:
        whole = bind("add", whole, bind("concat", *biases, axis=0))
    activation = group[0].activation
    if activation is not None:
        whole = bind(activation.op_name, whole, **activation.attrs)
    sizes = tuple(branch.product.tensor_type.shape[-1] for branch in group)
    parts = bind("split", whole, axis=whole.tensor_type.rank - 1, sections=sizes)
    bindings += [Binding(branch.steps[-1], TupleGetItem(parts, i)) for i, branch in enumerate(group)]
    return bindings
