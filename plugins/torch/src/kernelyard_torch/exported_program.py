"""From a program of torch.export to a module: inputs, weights, outputs and their names."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from kernelyard.errors import FrontendError, UnsupportedOperatorError
from kernelyard.plugins.api import Expr, IRModule, RejectedError
from kernelyard_torch.decompositions import decompositions
from kernelyard_torch.importer import MAIN, GraphImporter, Shared
from kernelyard_torch.sizes import Sizes
from kernelyard_torch.symbol_names import symbol_names

OPTIONS = ("mutations", "example_inputs", "dynamic_shapes")
MUTATIONS = ("refuse", "outputs")
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATING = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)


def import_program(program: ExportedProgram, options: Mapping[str, Any]) -> IRModule:
    """Return the module of a program. Raises: see `TorchFrontend.import_model`."""
    mutations = _check(options)
    program = move_to_host(program).run_decompositions(decompositions())
    _check_mutations(program, mutations)
    program.graph_module.graph.eliminate_dead_code()
    shared = Shared(Sizes(symbol_names(program.graph_module.graph)))
    graph = GraphImporter(program.graph_module, shared)
    input_names = _add_inputs(graph, program)
    graph.run()
    outputs = _outputs(graph, program)
    shared.check()
    names = {"input_names": tuple(input_names), "output_names": tuple(outputs)}
    main = graph.builder.function(*outputs.values(), attrs=names)
    return IRModule({MAIN: main, **shared.private}, {"metadata": _ranges(shared.sizes, program)})


def move_to_host(program: ExportedProgram) -> ExportedProgram:
    """Return a program whose tensors lie in host memory: itself, or a copy.

    Of a module that was exported on a GPU the graph and the weights name that device; of one that was moved after its
    export the weights alone do, and PyTorch decomposes no graph of two devices.
    """
    held = (*program.state_dict.values(), *program.constants.values())
    stated = (node.meta.get("val") for node in program.graph.nodes)
    if all(each.device.type == "cpu" for each in (*held, *stated) if isinstance(each, torch.Tensor)):
        return program
    root = copy.deepcopy(program.graph_module)
    copied = ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=program.graph_signature,
        state_dict=dict(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )
    return move_to_device_pass(copied, "cpu")


def _check(options: Mapping[str, Any]) -> str:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise FrontendError(
            f"the PyTorch frontend has no option {unknown[0]!r}", expected=", ".join(OPTIONS), found=", ".join(unknown)
        )
    mutations = options.get("mutations", MUTATIONS[0])
    if mutations not in MUTATIONS:
        raise FrontendError(
            "unknown value of the option mutations", found=repr(mutations), expected=" or ".join(MUTATIONS)
        )
    return mutations


def _check_mutations(program: ExportedProgram, mutations: str) -> None:
    written = [spec.target for spec in program.graph_signature.output_specs if spec.kind in _MUTATING]
    if written and mutations == "refuse":
        raise UnsupportedOperatorError(
            "the program mutates its buffers or inputs, but compiled programs are stateless",
            where=", ".join(map(str, written)),
            found=f"{len(written)} mutated tensors",
            hint='model.eval() before the export, or options={"torch": {"mutations": "outputs"}} to return the '
            "new values as outputs",
        )


def _add_inputs(graph: GraphImporter, program: ExportedProgram) -> list[str]:
    """Feed the placeholders; the names of those that are parameters of the program, in order."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    names: list[str] = []
    state: list[tuple[Any, Any]] = []
    for placeholder, spec in zip(graph.placeholders, signature.input_specs, strict=True):
        if spec.kind in _WEIGHTS and spec.target not in written:
            _add_weight(graph, placeholder, _weight(program, spec))
        elif spec.kind in _WEIGHTS:
            state.append((placeholder, spec))
        elif _add_parameter(graph, placeholder, placeholder.name):
            names.append(placeholder.name)
    for placeholder, spec in state:
        _add_parameter(graph, placeholder, str(spec.target))
        names.append(str(spec.target))
    return names


def _weight(program: ExportedProgram, spec: Any) -> torch.Tensor:
    if spec.target in program.state_dict:
        return program.state_dict[spec.target]
    constant = program.constants[spec.target]
    assert isinstance(constant, torch.Tensor)
    return constant


def _add_weight(graph: GraphImporter, placeholder: torch.fx.Node, tensor: torch.Tensor) -> None:
    try:
        graph.feed(placeholder, graph.shared.constant(tensor))
    except TypeError as error:
        graph.fail(placeholder, str(error))


def _add_parameter(graph: GraphImporter, placeholder: torch.fx.Node, name: str) -> bool:
    """Add a parameter for an input that is a tensor; False for sizes and what is no tensor."""
    value = placeholder.meta.get("val")
    if isinstance(value, torch.SymInt):
        type_ = graph.shared.sizes.dim(value)
        graph.fail(placeholder, f"a symbolic integer input, {type_}, is not supported: pass the number as a tensor")
        return False
    if not isinstance(value, torch.Tensor):
        return False
    try:
        type_ = graph.shared.type_of(value)
    except RejectedError as rejected:
        graph.fail(placeholder, str(rejected))
        return False
    graph.feed(placeholder, graph.builder.parameter(type_, name))
    return True


def _outputs(graph: GraphImporter, program: ExportedProgram) -> dict[str, Expr]:
    """Return the results by name; what is no tensor is left out."""
    specs = program.graph_signature.output_specs
    own = iter(output_names(program.call_spec.out_spec))
    named: dict[str, Expr] = {}
    late: dict[str, Expr] = {}
    for spec, given in zip(specs, graph.outputs(), strict=True):
        if spec.kind is OutputKind.TOKEN:  # it keeps the order of effects, such as checks of errors
            continue
        result = graph.tensor(given)
        if spec.kind in _MUTATING:
            if result is not None:
                late[f"new_{spec.target or spec.arg.name}"] = result
            continue
        name = next(own)
        if result is not None:
            named[name] = result
    return named | late


def output_names(spec: pytree.TreeSpec | None) -> list[str]:
    """Return the names of the leaves of a model's result: their path, or "output".

    Example:
        >>> spec = pytree.tree_structure({"logits": 0, "states": [0, 0]})
        >>> output_names(spec)
        ['logits', 'states_0', 'states_1']
    """
    if spec is None or spec.num_leaves == 0:
        return []
    tree = pytree.tree_unflatten([0] * spec.num_leaves, spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    return [_output_name(path) for path, _ in paths]


def _key(entry: Any) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(entry, field):
            return str(getattr(entry, field))
    return str(entry)


def _output_name(path: Sequence[Any]) -> str:
    is_named = bool(path) and not hasattr(path[0], "idx")
    return "_".join([*([] if is_named else ["output"]), *map(_key, path)])


def _ranges(sizes: Sizes, program: ExportedProgram) -> dict[str, str]:
    """Return the ranges that the program was exported for, by the names of sizes."""
    return {
        f"range.{sizes.dim(symbol)}": f"{bounds.lower}..{bounds.upper}"
        for symbol, bounds in program.range_constraints.items()
        if symbol.name.startswith("s")
    }
