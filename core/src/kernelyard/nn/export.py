"""From modules to IR: each method of a spec is traced once and becomes an entry function."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelyard import dims
from kernelyard.errors import FrontendError
from kernelyard.ir import Constant, Expr, Function, FunctionBuilder, IRModule
from kernelyard.ir.types import symbols_of
from kernelyard.ir.verify import verify
from kernelyard.nn import spec as specs
from kernelyard.nn.module import Module
from kernelyard.nn.scope import Externs, Scope, tracing
from kernelyard.nn.tensor import Parameter, Tensor
from kernelyard.transform.attach_extern_modules import AttachExternModules
from kernelyard.transform.bind_params import BindParams


def export(module: Module, methods: specs.Methods, allow_extern: bool) -> tuple[IRModule, dict[str, Parameter]]:
    """See `Module.export`."""
    if not isinstance(methods, Mapping) or not methods:
        raise FrontendError(
            "a spec names methods and their inputs",
            found=repr(methods),
            expected='such as {"forward": {"x": nn.spec.Tensor(["n", 784], "float32")}}',
        )
    parameters = dict(module.named_parameters())
    externs = Externs(allow_extern)
    functions = {name: _trace(module, name, given, parameters, externs) for name, given in methods.items()}
    exported = AttachExternModules(externs.modules())(IRModule(functions))
    verify(exported)
    return exported, parameters


def to_ir(model: specs.ModuleSpec) -> IRModule:
    """See `ModuleSpec.to_ir`."""
    exported, parameters = export(model.module, model.methods, model.allow_extern)
    unset = [name for name, parameter in parameters.items() if parameter.data is None]
    if unset:
        raise FrontendError(
            "parameters have no numbers yet",
            found=", ".join(unset),
            hint="load_state_dict(...), or export(spec) and bind them later",
        )
    constants = {name: Constant(parameter.data) for name, parameter in parameters.items() if parameter.data is not None}
    for name in exported.entry_functions():
        exported = BindParams(name, constants)(exported)
    return exported


def _trace(
    module: Module, name: str, given: Mapping[str, Any], parameters: Mapping[str, Parameter], externs: Externs
) -> Function:
    method = _method(module, name)
    _check_names(method, name, given)
    inputs = _Inputs(FunctionBuilder())
    arguments = {argument: inputs.of(value, argument) for argument, value in given.items()}
    inputs.check_sizes(name)
    builder = inputs.builder
    variables = {
        parameter: builder.input(path, parameter.shape, parameter.dtype) for path, parameter in parameters.items()
    }
    names = (*inputs.names, *parameters)
    if len(set(names)) != len(names):
        twice = sorted({each for each in names if names.count(each) > 1})
        raise FrontendError(f"inputs and parameters of {name} share names", found=", ".join(twice))
    labels = {each: path for path, each in module.named_modules() if path}
    with tracing(Scope(builder, variables, labels, externs)):
        results, output_names = _results(method(**arguments), name)
    attrs = {"output_names": output_names} if output_names else {}
    return builder.function(*results, attrs={"input_names": names, **attrs})


def _method(module: Module, name: str) -> Callable[..., Any]:
    method = getattr(module, name, None)
    if not callable(method):
        raise FrontendError(f"{type(module).__name__} has no method {name!r}", hint=_did_you_mean(name, dir(module)))
    return method


def _check_names(method: Callable[..., Any], name: str, given: Mapping[str, Any]) -> None:
    """The spec has each argument of the method that has no default, and no other."""
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
            hint=_did_you_mean(unknown[0], arguments) if unknown else None,
        )


def _did_you_mean(name: str, known: Any) -> str | None:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]!r}?" if close else None


@dataclass
class _Inputs:
    """The inputs of a function, made from the spec of its arguments."""

    builder: FunctionBuilder
    names: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)

    def of(self, value: specs.Argument, name: str) -> Any:
        """What the method gets for an argument."""
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
            "this says nothing of an input",
            where=f"argument {name!r}",
            found=type(value).__name__,
            expected="spec.Tensor, spec.Int, spec.Tuple or a plain value",
        )

    def check_sizes(self, method: str) -> None:
        """Each size that the method gets as a number can be read off an input."""
        known = symbols_of(param.type for param in self.builder.params)
        for name in self.sizes:
            if name not in known:
                raise FrontendError(
                    f"the size {name!r} cannot be known",
                    where=f"method {method}",
                    expected="a size of one of the input tensors",
                )


def _results(value: Any, method: str) -> tuple[list[Expr], tuple[str, ...]]:
    """The results of a method, and their names when it gave a dictionary."""
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
            f"the method {method} returns something else than tensors",
            found=type(value).__name__,
            expected="a tensor, a tuple of tensors, or a dictionary of tensors",
        )
    return value.expr
