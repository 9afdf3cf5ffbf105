"""Rest: who runs the calls that no backend took."""

from __future__ import annotations

from typing import NamedTuple

from kernelyard.ir import Call, GlobalVar
from kernelyard.ir.control_flow import is_control_flow
from kernelyard.ir.scopes import introduces_symbols
from kernelyard.legalize import has_rule, is_compiled
from kernelyard.runtime.report_words import EXTERN, VIEW, VM
from kernelyard.transform.lowering.decompose_random import DECOMPOSED
from kernelyard.transform.lowering.legalize_ops import VIEWS, custom_kernel_of

REFERENCE = "reference"
HOST = "host"  # operators that decide the sizes of their results: NumPy makes these, and the rest goes on with them


class Rest(NamedTuple):
    """The code generator by name, None where the reference interpreter stands in for it."""

    generator: str | None

    def owner(self, call: Call) -> str:
        """Return the name of what runs a call, `VIEW` where nothing has to."""
        if call.op_name in VIEWS:
            return VIEW
        if call.op_name == "call_dps_packed" or (self.generator is not None and is_compiled(custom_kernel_of(call))):
            return EXTERN
        if is_control_flow(call) or isinstance(call.op, GlobalVar):
            return VM
        if introduces_symbols(call):
            return HOST
        has_kernel = has_rule(call.op_name) or call.op_name in DECOMPOSED
        return self.generator if self.generator is not None and has_kernel else REFERENCE
