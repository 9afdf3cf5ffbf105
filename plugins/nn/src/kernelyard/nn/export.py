"""From modules to IR: each method of a spec is traced once and becomes an entry function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernelyard import dims
from kernelyard.errors import FrontendError, did_you_mean
from kernelyard.nn import spec as specs
from kernelyard.nn.effect import Effect
from kernelyard.nn.module import Module
from kernelyard.nn.scope import Externs, Scope, Subroutines, tracing
from kernelyard.nn.tensor import Parameter, Tensor
from kernelyard.plugins.api import (
    AttachExternModules,
    BaseFunction,
    BindParams,
    Constant,
    Expr,
    Function,
    FunctionBuilder,
    IRModule,
    TensorType,
    TupleType,
    symbols_of,
    verify,
)

INITIALIZE = "_initialize_effect"
PACKED_PARAMS = "packed_params"
PACKED_EFFECTS = "packed_effects"


def export(module: Module, methods: specs.Methods, allow_extern: bool) -> tuple[IRModule, dict[str, Parameter]]:
    """See `Module.export`."""
    return _export(module, methods, allow_extern, "plain")


def to_ir(model: specs.ModuleSpec) -> IRModule:
    """See `ModuleSpec.to_ir`."""
    return _export(model.module, model.methods, model.allow_extern, "none")[0]


def _export(
    module: Module, methods: specs.Methods, allow_extern: bool, param_mode: specs.Mode
) -> tuple[IRModule, dict[str, Parameter]]:
    """param_mode: that of the methods which do not say."""
    if not isinstance(methods, Mapping) or not methods:
        raise FrontendError(
            "a spec must map methods to their inputs",
            found=repr(methods),
            expected='such as {"forward": {"x": nn.spec.Tensor(["n", 784], "float32")}}',
        )
    model = _Model(module, Externs(allow_extern), Subroutines((*methods, INITIALIZE)))
    given = {name: _method_spec(name, method, param_mode) for name, method in methods.items()}
    bound = [name for name, method in given.items() if method.param_mode == "none"]
    constants = _constants(model.parameters) if bound else {}
    functions: dict[str, BaseFunction] = {
        name: _trace(model, name, method, constants if name in bound else {}) for name, method in given.items()
    }
    if model.states and any(method.effect_mode != "none" for method in given.values()):
        if INITIALIZE in functions:
            raise FrontendError(f"no method of a module with effects may be called {INITIALIZE!r}", hint="rename it")
        functions[INITIALIZE] = _initialize(model)
    functions.update(model.subroutines.functions)
    exported = AttachExternModules(model.externs.modules())(IRModule(functions))
    verify(exported)
    for name in bound:
        exported = BindParams(name, constants)(exported)
    return exported, model.parameters


def _method_spec(name: str, given: Mapping[str, Any] | specs.MethodSpec, param_mode: specs.Mode) -> specs.MethodSpec:
    """Return the spec of a method, with its param_mode filled in."""
    method = given if isinstance(given, specs.MethodSpec) else specs.MethodSpec(given)
    if not isinstance(method.inputs, Mapping):
        found = type(method.inputs).__name__
        raise FrontendError(
            f"the spec of {name} must map arguments to their specs", found=found, expected='{"x": nn.spec.Tensor(...)}'
        )
    return method if method.param_mode else replace(method, param_mode=param_mode)


def _constants(parameters: Mapping[str, Parameter]) -> dict[str, Constant]:
    unset = [name for name, parameter in parameters.items() if parameter.data is None]
    if unset:
        raise FrontendError(
            "parameters have no values yet",
            found=", ".join(unset),
            hint="load_state_dict(...), or leave them open: nn.MethodSpec(inputs, param_mode='plain')",
        )
    return {name: Constant(parameter.data) for name, parameter in parameters.items() if parameter.data is not None}


class _Model:
    """A module that is exported, and what its methods have in common."""

    def __init__(self, module: Module, externs: Externs, subroutines: Subroutines) -> None:
        self.module, self.externs, self.subroutines = module, externs, subroutines
        self.parameters = dict(module.named_parameters())
        self.labels: dict[Hashable, str] = {each: path for path, each in module.named_modules() if path}
        # The path, effect and name of each state.
        self.states = [
            (f"{path}.{name}" if path else name, effect, name)
            for path, effect in module.named_modules()
            if isinstance(effect, Effect)
            for name in effect.states
        ]

    def initial(self) -> dict[str, np.ndarray]:
        """Return the first state by path. Raises: FrontendError when one is not what its effect declares."""
        found: dict[str, np.ndarray] = {}
        first = {effect: effect.initial() for _, effect, _ in self.states}
        for path, effect, name in self.states:
            if name not in first[effect]:
                raise FrontendError(
                    f"there is no initial state {path!r}", found=", ".join(first[effect]), expected=name
                )
            array = np.asarray(first[effect][name])
            kind = effect.states[name]
            fits = len(array.shape) == len(kind.shape) and all(
                isinstance(size, dims.SymbolicDim) or size == given
                for size, given in zip(kind.shape, array.shape, strict=True)
            )
            if not fits or Constant(array).tensor_type.dtype != kind.dtype:
                raise FrontendError(
                    f"the initial state {path!r} does not fit",
                    found=f"{array.shape}, {array.dtype.name!r}",
                    expected=f"{kind.shape}, {kind.dtype!r}",
                )
            found[path] = array
        return found


def _initialize(model: _Model) -> Function:
    """Return the function that gives the first state of every effect."""
    initial = model.initial()
    return FunctionBuilder().function(*map(Constant, initial.values()), attrs={"output_names": tuple(initial)})


def _trace(model: _Model, name: str, method: specs.MethodSpec, constants: Mapping[str, Constant]) -> Function:
    """Return the function of a method. constants: the parameters, by path, that are bound to values afterwards."""
    called = _method(model.module, name)
    _check_names(called, name, method.inputs)
    inputs = _Inputs(FunctionBuilder())
    arguments = {argument: inputs.of(value, argument) for argument, value in method.inputs.items()}
    states = _states(model, method, inputs)
    inputs.check_sizes(name)
    kinds = {path: parameter.type for path, parameter in model.parameters.items()}
    values = inputs.group(kinds, PACKED_PARAMS, is_packed=method.param_mode == "packed")
    inputs.check_names(name)
    parameters: dict[Hashable, Expr] = dict(zip(model.parameters.values(), values, strict=True))
    scope = Scope(inputs.builder, parameters, states, model.labels, model.externs, model.subroutines)
    scope.constants = {model.parameters[path]: value for path, value in constants.items()}
    with tracing(scope):
        results, names = _results(called(**arguments), name)
        results, names = _with_states(model, scope, method, results, names)
    attrs = {"output_names": names} if names else {}
    if len(set(names)) != len(names):
        raise FrontendError(f"results and states of {name} share names", found=", ".join(names))
    return inputs.builder.function(*results, attrs={"input_names": tuple(inputs.names), **attrs})


def _states(model: _Model, method: specs.MethodSpec, inputs: _Inputs) -> dict[Hashable, dict[str, Expr]]:
    """Return the initial states of each effect in a method."""
    if method.effect_mode == "none":
        values: Sequence[Expr] = list(map(Constant, model.initial().values()))
    else:
        declared = {path: effect.states[name] for path, effect, name in model.states}
        kinds = {path: TensorType(kind.shape, kind.dtype) for path, kind in declared.items()}
        values = inputs.group(kinds, PACKED_EFFECTS, is_packed=method.effect_mode == "packed")
    states: dict[Hashable, dict[str, Expr]] = {}
    for (_, effect, name), value in zip(model.states, values, strict=True):
        states.setdefault(effect, {})[name] = value
    return states


def _with_states(
    model: _Model, scope: Scope, method: specs.MethodSpec, results: list[Expr], names: tuple[str, ...]
) -> tuple[list[Expr], tuple[str, ...]]:
    """Return the results and their names, followed by those of the states as the method leaves them."""
    if method.effect_mode == "none" or not model.states:
        return results, names
    names = names or tuple(f"output_{number}" for number in range(len(results)))
    left = [scope.states[effect][name] for _, effect, name in model.states]
    if method.effect_mode == "packed":
        return [*results, scope.builder.tuple(*left)], (*names, PACKED_EFFECTS)
    return [*results, *left], (*names, *(path for path, _, _ in model.states))


def _method(module: Module, name: str) -> Callable[..., Any]:
    method = getattr(module, name, None)
    if not callable(method):
        raise FrontendError(f"{type(module).__name__} has no method {name!r}", hint=did_you_mean(name, dir(module)))
    return method


def _check_names(method: Callable[..., Any], name: str, given: Mapping[str, Any]) -> None:
    """Check that the spec has every argument of the method without a default, and no unknown one. Raises:
    FrontendError.
    """
    arguments = inspect.signature(method).parameters
    named = [a for a in arguments.values() if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD)]
    takes_any = any(a.kind is a.VAR_KEYWORD for a in arguments.values())
    missing = [a.name for a in named if a.default is a.empty and a.name not in given]
    unknown = [key for key in given if not takes_any and key not in arguments]
    if missing or unknown:
        raise FrontendError(
            f"the spec does not fit the method {name}",
            found=", ".join(given) or "no arguments",
            expected=", ".join(a.name for a in named) or "no arguments",
            hint=_hint_for(unknown, arguments),
        )


def _hint_for(unknown: list[str], arguments: Iterable[str]) -> str | None:
    if "$" in unknown:
        return "modes are set by nn.MethodSpec(inputs, param_mode=..., effect_mode=...)"
    return did_you_mean(unknown[0], arguments) if unknown else None


@dataclass
class _Inputs:
    """The inputs of a function: those of the spec's arguments, and groups of more."""

    builder: FunctionBuilder
    names: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)

    def of(self, value: specs.Argument, name: str) -> Any:
        """Return the traced value of an argument."""
        if isinstance(value, specs.Tensor):
            self.names.append(name)
            return Tensor(self.builder.input(name, value.shape, value.dtype))
        if isinstance(value, specs.Int):
            self.sizes.append(value.name or name)
            return dims.symbol(self.sizes[-1])
        if isinstance(value, specs.Tuple):
            return tuple(self.of(item, f"{name}_{number}") for number, item in enumerate(value.items))
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise FrontendError(
            "an argument has an invalid spec",
            where=f"argument {name!r}",
            found=type(value).__name__,
            expected="spec.Tensor, spec.Int, spec.Tuple or a plain value",
        )

    def group(self, kinds: Mapping[str, TensorType], name: str, is_packed: bool) -> list[Expr]:
        """Return the values by path: an input each, or all in one tuple called `name`."""
        if not is_packed or not kinds:
            self.names += kinds
            return [self.builder.parameter(kind, path) for path, kind in kinds.items()]
        self.names.append(name)
        packed = self.builder.parameter(TupleType(tuple(kinds.values())), name)
        return [self.builder.get(packed, index) for index in range(len(kinds))]

    def check_names(self, method: str) -> None:
        """Check that no two inputs have one name. Raises: FrontendError."""
        twice = sorted({each for each in self.names if self.names.count(each) > 1})
        if twice:
            raise FrontendError(f"inputs, states and parameters of {method} share names", found=", ".join(twice))

    def check_sizes(self, method: str) -> None:
        """Check that each size that the method gets as a number is a dim of an input. Raises: FrontendError."""
        known = symbols_of(param.type for param in self.builder.params)
        for name in self.sizes:
            if name not in known:
                raise FrontendError(
                    f"the size {name!r} cannot be inferred",
                    where=f"method {method}",
                    expected="a size of one of the input tensors",
                )


def _results(value: Any, method: str) -> tuple[list[Expr], tuple[str, ...]]:
    """Return the results of a method, and their names when it gave a dictionary."""
    if isinstance(value, Mapping):
        return [_result(item, method) for item in value.values()], tuple(map(str, value))
    results = [_result(item, method) for item in _flat(value)]
    if not results:
        raise FrontendError(f"the method {method} returns nothing", expected="a tensor, at least")
    return results, ()


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, (tuple, list)) else [value]


def _result(value: Any, method: str) -> Expr:
    if not isinstance(value, Tensor):
        raise FrontendError(
            f"the method {method} returns a value that is not a tensor",
            found=type(value).__name__,
            expected="a tensor, a tuple of tensors, or a dictionary of tensors",
        )
    return value.expr
