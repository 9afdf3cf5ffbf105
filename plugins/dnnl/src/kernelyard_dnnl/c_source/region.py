"""RegionWriter: the C tables of one plan, and the function that makes its descriptors and primitives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import TypeAlias, TypeVar

from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.plan import Plan
from kernelyard_dnnl.primitive import (
    Argument,
    ChosenLayout,
    Descriptors,
    Factors,
    Primitive,
    Recipe,
    Size,
    Vector,
)
from kernelyard_dnnl.primitive_attributes import (
    Depthwise,
    Eltwise,
    PostOp,
    PostOps,
    Prelu,
    RuntimeNumbers,
    Sum,
    depthwise_arguments,
)
from kernelyard_dnnl.values import Buffer, Operation, Value

K = TypeVar("K")
WEIGHTS = enums.ARG["weights"]
# A call of the text: what is made, and of what.
Written: TypeAlias = "tuple[str, tuple[str, ...], int, int]"


class RegionWriter:
    """Writes one plan. Descriptors, attributes and primitives are numbered as they are first needed.

    Layouts that oneDNN chooses are the same where their calls are, not where oneDNN chose the same here: it chooses by
    the processor and by the number of threads, both of which may be others where the code runs.

    origins: what packed constants are made of. constants: once written, the buffers of constants, in the order in
    which `NAME_prepare` gets them.
    """

    def __init__(self, plan: Plan, origins: Mapping[Buffer, tuple[Value, MemoryDescriptor]]) -> None:
        self._plan = plan
        self._origins = origins
        self._build: list[str] = []
        self._descriptors: dict[object, int] = {}
        self._attributes: dict[tuple[tuple[str, ...], RuntimeNumbers], int] = {}
        self._primitives: dict[Written, int] = {}
        self._recipes: dict[int, tuple[Recipe, int]] = {}  # by identity: equal ones may have layouts of others
        self._prototypes: dict[str, str] = {}
        self._executed: set[int] = set()
        self._places: dict[tuple[Buffer, int, int], int] = {}
        self._place_rows: list[str] = []
        self._packed: dict[tuple[Buffer, int], int] = {}
        self._packing_rows: list[str] = []
        self._constants: dict[str, Buffer] = {}

    @property
    def constants(self) -> tuple[Buffer, ...]:
        return tuple(self._constants.values())

    def write(self, name: str) -> str:
        """Return the region's part of the text: tables, and the functions of the interface."""
        operations = [self._operation(operation) for operation in self._plan.operations]
        build = [f"static int {name}_build(ky_shared* r) {{", *self._build, "  return 0;", "}"]
        lines = [*self._prototypes.values(), *build]
        rows = []
        for number, (primitive, operands) in enumerate(operations):
            pairs = ", ".join(f"{{{index}, {place}}}" for index, place in operands.items())
            lines.append(f"static const ky_operand {name}_operands_{number}[] = {{{pairs}}};")
            rows.append(f"{{{primitive}, {len(operands)}, {name}_operands_{number}}}")
        flags = "".join(str(int(number in self._executed)) for number in range(len(self._primitives)))
        lines += [
            _table("ky_place", f"{name}_places", self._place_rows),
            _table("ky_packing", f"{name}_packings", self._packing_rows),
            _table("ky_operation", f"{name}_operations", rows),
            _table("char", f"{name}_executed", flags),
            f"static const ky_graph {name}_graph = {{",
            f"  {name}_build, {len(self._descriptors)}, {len(self._attributes)}, {len(self._primitives)},",
            f"  {len(self._place_rows)}, {len(self._packing_rows)}, {len(rows)}, {self._plan.scratch},",
            f"  {name}_places, {name}_packings, {name}_operations, {name}_executed",
            "};",
            f"KY_FUNCTION({name}, {name}_graph)",
        ]
        return "\n".join(lines) + "\n"

    # --- tensors --------------------------------------------------------------------------------------------------
    def _operation(self, operation: Operation) -> tuple[int, dict[int, int]]:
        """Return the number of an operation's primitive, and by argument those of its tensors."""
        recipe = _recipe(operation)
        primitive = self._primitive(recipe)
        self._executed.add(primitive)
        operands = operation.arguments
        places = {index: self._place(value) for index, value in operands.items() if index != WEIGHTS}
        if WEIGHTS in operands:
            places[WEIGHTS] = self._place(operands[WEIGHTS], self._weights_layout(operands[WEIGHTS], recipe, primitive))
        return primitive, {index: places[index] for index in operands}

    def _weights_layout(self, weights: Value, recipe: Recipe, primitive: int) -> int | None:
        """Return the number of the layout in which this very primitive reads packed weights; None for others."""
        asked = _asked_weights(recipe)
        if weights.buffer not in self._origins or weights.descriptor.strides is not None:
            return None
        return self._chosen(primitive, "weights_md", 0) if asked.is_open else self._descriptor(asked)

    def _place(self, value: Value, layout: int | None = None) -> int:
        """Return the number of the table's row for a tensor; `layout` is that of its descriptor, if not its own."""
        descriptor = self._descriptor(value.descriptor) if layout is None else layout
        key = (value.buffer, value.nbytes_before, descriptor)
        if key not in self._places:
            kind, number, offset = self._home(value, descriptor)
            is_checked = value.buffer.is_planned and value.descriptor.strides is None
            nbytes = value.buffer.nbytes - value.nbytes_before if is_checked else -1
            row = f"{{'{kind}', {number}, {offset + value.nbytes_before}, {descriptor}, {nbytes}}}"
            self._places[key] = len(self._place_rows)
            self._place_rows.append(row)
        return self._places[key]

    def _home(self, value: Value, descriptor: int) -> tuple[str, int, int]:
        """Return kind, number and offset of a buffer (see `ky_place`)."""
        buffer = value.buffer
        if buffer.argument is not None:
            return "a", buffer.argument, 0
        if buffer in self._origins:
            # A view with strides may have another shape than what was packed.
            is_view = value.descriptor.strides is not None
            return "p", self._packing(buffer, self._descriptor(self._origins[buffer][1]) if is_view else descriptor), 0
        if buffer.constant is not None:
            self._constants.setdefault(buffer.key, buffer)
            return "c", list(self._constants).index(buffer.key), 0
        return "w", 0, self._plan.offsets[buffer]

    def _packing(self, buffer: Buffer, descriptor: int) -> int:
        """Return the number of a constant that is packed in a layout where the code runs."""
        if (buffer, descriptor) not in self._packed:
            source, _ = self._origins[buffer]
            layouts = (f"r->descriptor[{self._descriptor(source.descriptor)}]", f"r->descriptor[{descriptor}]")
            reorder = self._make_primitive("reorder", layouts, self._attribute((), ()))
            self._executed.add(reorder)
            row = f"{{{reorder}, {self._place(source)}, {descriptor}}}"
            self._packed[buffer, descriptor] = len(self._packing_rows)
            self._packing_rows.append(row)
        return self._packed[buffer, descriptor]

    # --- descriptors, attributes, primitives ------------------------------------------------------------------------
    def _descriptor(self, descriptor: MemoryDescriptor) -> int:
        chosen = descriptor.blocked
        if isinstance(chosen, ChosenLayout):
            return self._chosen(self._primitive(chosen.recipe), chosen.what, chosen.index)
        shape, dtype, strides = descriptor.shape, enums.DATA_TYPE[descriptor.dtype], descriptor.strides
        kind, layout = ("tag", str(enums.FORMAT_TAG_ANY)) if strides is None else ("strides", _dims(strides))
        return self._assign_number(
            self._descriptors,
            (shape, dtype, strides),
            lambda number: (
                f"dnnl_memory_desc_create_with_{kind}"
                f"(&r->descriptor[{number}], {len(shape)}, {_dims(shape)}, {dtype}, {layout})"
            ),
        )

    def _chosen(self, primitive: int, what: str, index: int) -> int:
        """Return the number of a layout that a primitive chooses."""
        return self._assign_number(
            self._descriptors,
            (primitive, what, index),
            lambda number: f"ky_layout(r, {number}, {primitive}, {enums.QUERY[what]}, {index})",
        )

    def _attribute(self, post_ops: PostOps, numbers: RuntimeNumbers) -> int:
        calls = tuple(self._post_op(post_op) for post_op in post_ops)
        if (calls, numbers) in self._attributes:
            return self._attributes[calls, numbers]
        number = self._attributes[calls, numbers] = len(self._attributes)
        self._build += [
            f"  TRY(dnnl_primitive_attr_create(&r->attribute[{number}]));",
            f"  TRY(dnnl_primitive_attr_set_scratchpad_mode(r->attribute[{number}], USER_SCRATCHPAD));",
        ]
        self._build += [
            f"  TRY(dnnl_primitive_attr_set_{what}_mask(r->attribute[{number}], {argument}, {mask}));"
            for what, argument, mask in numbers
        ]
        if calls:
            self._build += [
                "  { void* chain = NULL;",
                "    TRY(dnnl_post_ops_create(&chain));",
                *(f"    TRY(dnnl_post_ops_append_{call});" for call in calls),
                f"    TRY(dnnl_primitive_attr_set_post_ops(r->attribute[{number}], chain));",
                "    dnnl_post_ops_destroy(chain); }",
            ]
        return number

    def _post_op(self, post_op: PostOp) -> str:
        if isinstance(post_op, Eltwise):
            algorithm = enums.ELTWISE[post_op.algorithm]
            return f"eltwise(chain, {algorithm}, {_float(post_op.alpha)}, {_float(post_op.beta)})"
        if isinstance(post_op, Sum):
            return "sum(chain, 1.0f, 0, 0)"
        if isinstance(post_op, Prelu):
            return f"prelu(chain, {post_op.mask})"
        if isinstance(post_op, Depthwise):
            return f"dw(chain, {', '.join(map(str, depthwise_arguments(post_op)))})"
        operand = self._descriptor(post_op.operand)
        algorithm = enums.BINARY[post_op.algorithm]
        return f"binary(chain, {algorithm}, r->descriptor[{operand}])"

    def _primitive(self, recipe: Recipe) -> int:
        if id(recipe) not in self._recipes:
            arguments = tuple(self._argument(argument) for argument in recipe.arguments)
            if recipe.kind != "reorder":
                self._prototypes.setdefault(recipe.kind, _prototype(recipe))
            attribute = self._attribute(recipe.post_ops, recipe.numbers)
            number = self._make_primitive(recipe.kind, arguments, attribute, recipe.skipped)
            self._recipes[id(recipe)] = recipe, number
        return self._recipes[id(recipe)][1]

    def _make_primitive(self, kind: str, arguments: tuple[str, ...], attribute: int, skipped: int = 0) -> int:
        """Return the number of the primitive that this call makes, its arguments being written."""
        if kind == "reorder":
            source, destination = arguments
            given = [source, "r->engine", destination, "r->engine"]
        else:
            given = ["r->engine", *arguments]
        given.append(f"r->attribute[{attribute}]")
        key, count = (kind, arguments, attribute, skipped), len(self._primitives)
        number = self._assign_number(
            self._primitives,
            key,
            lambda number: f"dnnl_{kind}_primitive_desc_create(&r->primitive_descriptor[{number}], {', '.join(given)})",
        )
        if number == count:
            self._build += [f"  TRY(dnnl_primitive_desc_next_impl(r->primitive_descriptor[{number}]));"] * skipped
        return number

    def _assign_number(self, table: dict[K, int], key: K, call: Callable[[int], str]) -> int:
        if key not in table:
            table[key] = len(table)
            self._build.append(f"  TRY({call(table[key])});")
        return table[key]

    def _argument(self, argument: Argument) -> str:
        if isinstance(argument, MemoryDescriptor):
            return f"r->descriptor[{self._descriptor(argument)}]"
        if isinstance(argument, Vector):
            return _dims(argument.values)
        if isinstance(argument, Factors):
            return f"(const float[]){{{', '.join(map(_float, argument.values))}}}"
        if isinstance(argument, Descriptors):
            items = ", ".join(f"r->descriptor[{self._descriptor(each)}]" for each in argument.values)
            return f"(void*[]){{{items}}}"
        if isinstance(argument, Size):
            return str(argument.value)
        if argument is None:
            return "NULL"
        return _float(argument) if isinstance(argument, float) else str(argument)


def _recipe(operation: Operation) -> Recipe:
    """Return what an operation's primitive is made of; weights that oneDNN left as they are stay so where it runs."""
    code = operation.code
    assert isinstance(code, Primitive), "plans that are written as C have primitives alone"
    recipe = code.recipe
    if recipe.kind == "reorder":  # made, maybe, for equal layouts of other primitives
        layouts = (operation.arguments[enums.ARG[role]].descriptor for role in ("src", "dst"))
        return recipe._replace(arguments=tuple(layouts))
    if WEIGHTS not in operation.arguments or code.weights.strides is None or not _asked_weights(recipe).is_open:
        return recipe
    asked = _asked_weights(recipe)
    return recipe._replace(
        arguments=tuple(code.weights if argument is asked else argument for argument in recipe.arguments)
    )


def _asked_weights(recipe: Recipe) -> MemoryDescriptor:
    """Return the layout of the weights as a recipe has it, behind that of the source."""
    return [argument for argument in recipe.arguments if isinstance(argument, MemoryDescriptor)][1]


C_TYPES: Mapping[type, str] = {
    int: "int",
    float: "float",
    Size: "int64_t",
    MemoryDescriptor: "void*",
    NoneType: "void*",
    Vector: "const int64_t*",
    Factors: "const float*",
    Descriptors: "void**",
}


def _prototype(recipe: Recipe) -> str:
    """Return the declaration of the function that makes the primitive's descriptor.

    A text may have it several times.
    """
    types = ", ".join(C_TYPES[type(argument)] for argument in recipe.arguments)
    return f"int dnnl_{recipe.kind}_primitive_desc_create(void**, void*, {types}, void*);"


def _dims(values: Iterable[int]) -> str:
    """Return a `dnnl_dims_t`."""
    return f"(const int64_t[{enums.MAX_NDIMS}]){{{', '.join(map(str, values)) or '0'}}}"


def _float(value: float) -> str:
    """Return a C literal of the very float."""
    if value != value or value in (float("inf"), -float("inf")):
        return "NAN" if value != value else f"{'-' if value < 0 else ''}INFINITY"
    return f"{float(value).hex()}f"


def _table(type_: str, name: str, rows: Iterable[str]) -> str:
    """Return a constant array; C has no empty ones."""
    return f"static const {type_} {name}[] = {{{', '.join(rows) or '0'}}};"
