"""Check the contract of RuntimeModules that plugins return, before a program uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kernelyard.errors import PluginContractError
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.spec import is_digest


def check_module(made: object, wanted: Sequence[str]) -> RuntimeModule:
    """Return the module, which answers to the symbols `wanted` and to no others, and can be saved.

    Its methods are the plugin's code and may raise anything. Raises: PluginContractError.
    """
    if not isinstance(made, RuntimeModule):
        raise PluginContractError("it returned no RuntimeModule", found=type(made).__name__, expected="RuntimeModule")
    kind = getattr(made, "kind", None)
    if not isinstance(kind, str) or not kind:
        raise PluginContractError("its RuntimeModule has no kind", found=repr(kind), expected="a word")
    _check_symbols(tuple(made.symbols()), wanted)
    _check_constants(made.constants())
    saved = made.save_to_bytes()
    if not isinstance(saved, bytes):
        raise PluginContractError("its RuntimeModule cannot be serialized", found=type(saved).__name__)
    return made


def _check_symbols(symbols: Sequence[object], wanted: Sequence[str]) -> None:
    twice = [symbol for symbol, count in Counter(symbols).items() if count > 1]
    if twice:
        raise PluginContractError(f"its RuntimeModule has two functions {twice[0]!r}")
    missing = [symbol for symbol in wanted if symbol not in symbols]
    found = ", ".join(map(str, symbols)) or "no functions"
    if missing:
        lacked = ", ".join(missing)
        raise PluginContractError(f"its RuntimeModule lacks functions: {lacked}", found=found, expected=lacked)
    others = [symbol for symbol in symbols if symbol not in wanted]
    if others:  # they could be somebody else's
        raise PluginContractError(
            f"its RuntimeModule has a function {others[0]!r} that was not requested", expected=", ".join(wanted)
        )


def _check_constants(constants: object) -> None:
    if not isinstance(constants, Mapping):
        raise PluginContractError("the constants of its RuntimeModule are no mapping", found=type(constants).__name__)
    for digest, array in constants.items():
        if not isinstance(digest, str) or not is_digest(digest) or not isinstance(array, np.ndarray):
            found = f"{digest!r}: {type(array).__name__}"
            raise PluginContractError("its RuntimeModule has a constant that is none", found=found, expected="an array")
