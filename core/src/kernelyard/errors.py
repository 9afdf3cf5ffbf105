"""Every error that Kernelyard raises: one tree, each class with a stable code.

A message says what went wrong, where, what was found, what was expected and how to go on. Code that raises one of
these gives the parts by keyword, so that the command line and `--json` show the same facts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

_CORE = os.path.dirname(__file__)
# Packages whose lines a user did not write: a warning there would say nothing about what to change.
_CALLED = ("kernelyard", "torch", "contextlib", "functools")


class KernelyardError(Exception):
    """Base of every error we raise; `code` is stable across releases.

    Example:
        >>> error = KernelyardError("it broke", where="node 'Conv_3'", hint="mend it")
        >>> print(error)
        [KY000] it broke
          where: node 'Conv_3'
          how to go on: mend it
    """

    code = "KY000"

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.where = where
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}"]
        parts = (("where", self.where), ("found", self.found), ("expected", self.expected), ("how to go on", self.hint))
        lines += [f"  {label}: {value}" for label, value in parts if value is not None]
        return "\n".join(lines)

    def to_json(self) -> dict[str, str | None]:
        """Return the same facts for machines: code, message, where, found, expected, hint."""
        return {
            "code": self.code,
            "error": type(self).__name__,
            "message": self.message,
            "where": self.where,
            "found": None if self.found is None else str(self.found),
            "expected": None if self.expected is None else str(self.expected),
            "hint": self.hint,
        }


def did_you_mean(name: object, known: Iterable[str]) -> str | None:
    """Return the hint for a name that is nearly one of the known, whatever its case; None where none is near.

    Example:
        >>> did_you_mean("DNNL", ["cudnn", "dnnl"]), did_you_mean("tpu", ["dnnl"])
        ("did you mean 'dnnl'?", None)
    """
    import difflib  # inside: it takes long to import, and few programs fail

    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"did you mean {names[close[0]]!r}?" if close else None


def describe(error: BaseException) -> str:
    """Return an error that other people's code raised as text: ours by its message, others by type, place and message.

    The place is the innermost one in the folder of the code that was called.

    Example:
        >>> describe(PassError("it broke")), describe(KeyError("bias"))
        ('it broke', "KeyError: 'bias'")
    """
    if isinstance(error, KernelyardError):
        return error.message
    place, folder, traceback = "", None, error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if folder is None and not file.startswith(_CORE):
            folder = os.path.dirname(file)
        if folder is not None and file.startswith(folder):
            place = f" at {os.path.basename(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"{type(error).__name__}{place}: {error}"


# --- the compiler's own representation -------------------------------------------------------------------------------
def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn of the line that called Kernelyard, or a plugin of it, from outside, however deep the code is that warns.

    A warning is then shown once for each such line, and filters by module are about the user's modules.
    """
    frame = found = sys._getframe(1)
    while frame is not None and _is_called(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    found = frame or found  # a thread of ours has no caller
    registry = found.f_globals.setdefault("__warningregistry__", {})
    module = found.f_globals.get("__name__", "")
    warnings.warn_explicit(message, category, found.f_code.co_filename, found.f_lineno, module, registry)


def _is_called(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _CALLED or package.startswith("kernelyard_")


class IRError(KernelyardError):
    """A module, function or expression is malformed."""

    code = "KY100"


class VerifyError(IRError):
    """The verifier found a fault; the message shows the lines around it."""

    code = "KY101"


class ParseError(IRError):
    """IR text or a dimension expression cannot be read."""

    code = "KY102"


class TypeInferenceError(IRError):
    """An operator's type rule refuses its arguments."""

    code = "KY103"


class AttributeTypeError(IRError):
    """An operator attribute is unknown, missing or of the wrong type."""

    code = "KY104"


class UnknownOpError(IRError):
    """No operator of that name is in the vocabulary."""

    code = "KY105"


class ShapeError(KernelyardError):
    """Dimensions that must agree do not, once their values are known."""

    code = "KY110"


# --- what a compile is asked for -------------------------------------------------------------------------------------
class TargetError(KernelyardError):
    """The target is unknown or ill-formed."""

    code = "KY130"


class OptionError(KernelyardError):
    """A compile option is unknown or of the wrong form."""

    code = "KY140"


class CoverageError(KernelyardError):
    """A backend runs less of the model than was required."""

    code = "KY150"


class PerformanceWarning(UserWarning):
    """Something runs far slower than it could."""


class PlacementWarning(UserWarning):
    """A measured placement is not used: it holds for another model, machine or version."""


class RemoteCacheWarning(UserWarning):
    """A remote cache does not answer, or with what cannot be used: this machine's own cache is used alone."""


class LibraryWarning(UserWarning):
    """A library was made whose functions C programs cannot call, or not all of them."""


# --- passes, patterns, placement --------------------------------------------------------------------------------------
class PassError(KernelyardError):
    """A pass failed or broke its promise."""

    code = "KY200"


class PatternError(KernelyardError):
    """A pattern is malformed."""

    code = "KY210"


class LegalizeError(KernelyardError):
    """An operator has no loop-level rule for these types."""

    code = "KY220"


class CodegenError(KernelyardError):
    """A code generator cannot generate what it was given."""

    code = "KY230"


class ToolchainError(KernelyardError):
    """There is no C compiler, or it cannot compile what was generated."""

    code = "KY240"


# --- plugins ---------------------------------------------------------------------------------------------------------
class PluginError(KernelyardError):
    """A plugin misbehaved or is not usable."""

    code = "KY300"


class UnknownBackendError(PluginError):
    """No installed plugin registers a backend of that name."""

    code = "KY301"


class BackendUnavailableError(PluginError):
    """The backend is installed but cannot be used here; the stored reason says why."""

    code = "KY302"


class PluginContractError(PluginError):
    """A plugin said yes and then failed, or returned something it must not."""

    code = "KY303"


class PluginTimeoutError(PluginError):
    """A plugin's code did not come back in time."""

    code = "KY304"


class PluginCrashError(PluginError):
    """A plugin's code ended the process that ran it."""

    code = "KY305"


# --- frontends -------------------------------------------------------------------------------------------------------
class FrontendError(KernelyardError):
    """A model cannot be imported."""

    code = "KY400"


class ModelFormatError(FrontendError):
    """The file is not a model of the expected format, or is truncated."""

    code = "KY401"


class UnsupportedOperatorError(FrontendError):
    """The model uses operators that the frontend does not have; all are listed at once."""

    code = "KY402"


class ExternalDataError(FrontendError):
    """External weights are missing, outside the model's folder, or behind a link."""

    code = "KY403"


class UnknownModelError(FrontendError):
    """No installed frontend takes a model of this kind."""

    code = "KY404"


# --- running ----------------------------------------------------------------------------------------------------------
class ExecutionError(KernelyardError):
    """A compiled program cannot run as asked."""

    code = "KY500"


class InputNameError(ExecutionError):
    """A feed has an unknown name, or one is missing."""

    code = "KY501"


class InputTypeError(ExecutionError):
    """A feed is not an array, or has the wrong dtype."""

    code = "KY502"


class InputShapeError(ExecutionError):
    """A feed has the wrong rank or a wrong fixed dimension."""

    code = "KY503"


class NoImplementationError(ExecutionError):
    """A library has no implementation for the sizes or the device at hand; where there is a fallback, that runs.

    symbol: the function of a module that a step called, "" where that is not known.
    """

    code = "KY505"
    symbol = ""


class OutputError(ExecutionError):
    """An array given for an output does not fit it."""

    code = "KY506"


class CallTimeoutError(ExecutionError, TimeoutError):
    """A call took longer than its time limit; a TimeoutError too."""

    code = "KY507"


class CallCancelledError(ExecutionError):
    """A call was cancelled from another thread."""

    code = "KY508"


class DeviceError(ExecutionError):
    """The device does not exist here, or cannot run this program."""

    code = "KY510"


# --- artifacts --------------------------------------------------------------------------------------------------------
class ArtifactError(KernelyardError):
    """A `.kyar` file cannot be used."""

    code = "KY600"


class ArtifactCorruptedError(ArtifactError):
    """The file is not an artifact, is truncated, or a hash does not match."""

    code = "KY601"


class ArtifactVersionError(ArtifactError):
    """The file was written by a newer release, of Kernelyard or of a plugin, than is installed."""

    code = "KY602"


class MissingRuntimeError(ArtifactError):
    """The file needs the runtime half of a plugin that is not installed."""

    code = "KY603"
