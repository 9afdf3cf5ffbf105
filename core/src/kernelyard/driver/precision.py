"""In which precision a model is computed: the names that users choose from, and the passes that each stands for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard.errors import OptionError
from kernelyard.ir import IRModule
from kernelyard.transform.pass_base import Pass, Sequential
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.to_mixed_precision import ToMixedPrecision

DEFAULT = "float32"


@dataclass(frozen=True)
class Precision:
    """A choice between accuracy, speed and memory. passes: what they do to a simplified model, before it is placed."""

    name: str
    passes: Callable[[], Sequence[Pass]]

    def apply(self, module: IRModule) -> IRModule:
        """The module in this precision; its entry functions take and give what they did."""
        passes = self.passes()
        if not passes:
            return module
        return get_pipeline("clean")(Sequential(passes, self.name)(module))


def _bf16() -> list[Pass]:
    """Products and convolutions, and what follows them cheaply, in bfloat16."""
    return [ToMixedPrecision("bfloat16")]


PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision for precision in (Precision(DEFAULT, list), Precision("bf16", _bf16))
}


def get_precision(name: str) -> Precision:
    """The precision of that name.

    Raises: OptionError with the names that there are.

    Example:
        >>> [each.name for each in get_precision("bf16").passes()]
        ['to_mixed_precision']
    """
    if not isinstance(name, str) or name not in PRECISIONS:
        close = difflib.get_close_matches(str(name), PRECISIONS, 1)
        raise OptionError(
            f"there is no precision {name!r}",
            expected=", ".join(PRECISIONS),
            hint=f"did you mean {close[0]!r}?" if close else None,
        )
    return PRECISIONS[name]
