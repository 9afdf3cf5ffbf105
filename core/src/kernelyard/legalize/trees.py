"""The rule of tree ensembles: each row walks down all trees, then the values of its leaves are aggregated."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Expr, cast, index, minimum, select, unary
from kernelyard.tir.iterate import iterate


@legalize("ml.tree_ensemble", widen=True)
def tree_ensemble(
    b: RuleBuilder,
    x: Operand,
    roots: Operand,
    features: Operand,
    thresholds: Operand,
    children: Operand,
    values: Operand,
    *,
    depth: int,
    groups: int,
    aggregate: str,
) -> Buffer:
    rows, columns = x.shape
    (trees,) = roots.shape
    nodes, width = values.shape
    last = index(nodes) - 1

    def clamp_index(found: Expr) -> Expr:
        """Return an index that touches no memory but the tables', whatever they hold."""
        return cast(minimum(cast(found, "uint32"), cast(last, "uint32")), "int32")

    def leaf(row: Expr, tree: Expr) -> Expr:
        def step(node: Expr) -> Expr:
            at = cast(node, INDEX)
            feature = features[at]
            place = minimum(cast(select(feature < 0, unary("bitnot", feature), feature), INDEX), index(columns) - 1)
            seen = x[row, place]
            is_second = (seen <= thresholds[at]) | ((feature < 0) & unary("isnan", seen))
            return clamp_index(children[at] + cast(is_second, "int32"))

        return iterate("node", clamp_index(roots[tree]), depth, step)

    leaves = b.compute((rows, trees), leaf, "leaves")
    each = dims.floordiv(trees, groups)
    reducer = "sum" if aggregate == "mean" else aggregate
    total = b.reduce(
        reducer,
        (rows, groups, width),
        (each,),
        lambda at, point: values[cast(leaves[at[0], at[1] * index(each) + point[0]], INDEX), at[2]],
    )
    scale = cast(index(each), total.dtype)

    def result(row: Expr, column: Expr) -> Expr:
        found = total[row, column // index(width), column % index(width)]
        return found / scale if aggregate == "mean" else found

    return b.compute((rows, groups * width), result)
