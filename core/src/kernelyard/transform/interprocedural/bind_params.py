"""Make constants of parameters, such as weights that are known once a model is deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.errors import KernelyardError, PassError, did_you_mean
from kernelyard.ir import Constant, Function, IRModule, TensorType, Var
from kernelyard.runtime.abi.solve_symbols import solve_symbols
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.device.tensor import as_array
from kernelyard.transform.interprocedural.bind_symbolic_vars import BindSymbolicVars, bind_function
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

INPUT_NAMES = "input_names"


class BindParams(Pass):
    """Replace parameters of one function by constants; symbols that their shapes give a size are bound too.

    function: its name. params: arrays, tensors or Constants by the parameter's name (its name in "input_names", where
    the function has that attribute) or by the Var itself.
    Raises: PassError for an unknown parameter, one that is given twice, one of another dtype, or a shape that does not
    fit: neither the parameter's own, nor the sizes that other constants gave to its symbols.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> product = b.op("matmul", b.input("x", (1, 2)), b.input("w", (2, 3)))
        >>> module = BindParams("main", {"w": np.ones((2, 3), np.float32)})(IRModule({"main": b.function(product)}))
        >>> module["main"].params
        (%x,)
    """

    name = "bind_params"
    is_required = True

    def __init__(self, function: str, params: Mapping[Any, Any]) -> None:
        self._function = function
        self._params = dict(params)

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        function = module[self._function]
        if not isinstance(function, Function):
            raise PassError(f"@{self._function} is no graph-level function")
        constants = self._constants(function)
        if not constants:
            return module
        sizes = self._sizes(function, constants)
        places = [function.params.index(var) for var in constants]
        if sizes:
            # The parameters become new variables, in the same order.
            module = BindSymbolicVars(sizes, self._function)(module)
            function = module.graph_functions()[self._function]
            constants = dict(zip((function.params[i] for i in places), constants.values(), strict=True))
        bound = bind_function(function, {}, constants)
        if function.attrs.get(INPUT_NAMES):
            left = [name for i, name in enumerate(_names(function)) if i not in places]
            bound = bound.with_attrs(**{INPUT_NAMES: tuple(left)})
        return module.with_functions({self._function: bound})

    def _constants(self, function: Function) -> dict[Var, Constant]:
        names = _names(function)
        found: dict[Var, Constant] = {}
        for key, given in self._params.items():
            var = self._parameter(key, function, names)
            if var in found:
                raise PassError(f"the parameter {var!r} is given twice", where=f"@{self._function}")
            constant = given if isinstance(given, Constant) else Constant(np.array(as_array(given)))
            self._check_dtype(var, constant)
            found[var] = constant
        return found

    def _parameter(self, key: Any, function: Function, names: Sequence[str]) -> Var:
        if isinstance(key, Var) and key in function.params:
            return key
        if isinstance(key, str) and key in names:
            return function.params[names.index(key)]
        raise PassError(
            f"@{self._function} has no parameter {key!r}",
            expected=", ".join(names) or "no parameters",
            hint=did_you_mean(key, names),
        )

    def _check_dtype(self, var: Var, constant: Constant) -> None:
        if not isinstance(var.type, TensorType) or var.type.dtype != constant.tensor_type.dtype:
            raise PassError(
                f"the parameter {var!r} cannot be bound to this",
                where=f"@{self._function}",
                found=repr(constant.type),
                expected=repr(var.type),
            )

    def _sizes(self, function: Function, constants: Mapping[Var, Constant]) -> dict[str, int]:
        """Solve the symbols from the constants' shapes."""
        specs = [TensorSpec(var.tensor_type.shape, var.tensor_type.dtype, var.name) for var in constants]
        values: dict[str, int] = {}
        try:
            solve_symbols(specs, [constant.data.shape for constant in constants.values()], values)
        except KernelyardError as error:
            raise PassError(
                f"the constants do not match the parameters of @{self._function}: {error.message}",
                where=error.where,
                found=error.found,
                expected=error.expected,
            ) from error
        return values


def _names(function: Function) -> tuple[str, ...]:
    return tuple(function.attrs.get(INPUT_NAMES) or (param.name for param in function.params))
