"""Choose a scheme: by name, or the one that an installed backend runs."""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.driver.session.choose_backends import choose_backends
from kernelyard.driver.session.choose_target import choose_target
from kernelyard.errors import did_you_mean
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.quantization_scheme import INT8_WEIGHTS, SCHEMES, QuantizationScheme
from kernelyard_quantize.errors import QuantizationError
from kernelyard_quantize.instrumented import Compilation

AUTO = "auto"


def choose_scheme(
    wanted: str | QuantizationScheme, is_calibrated: bool, compilation: Compilation
) -> QuantizationScheme:
    """Return a scheme as it stands, by its name, or with "auto" the first that a backend runs.

    With "auto" backends are asked in their order; static schemes count where there is calibration data. What no backend
    has a word on gets "int8_weights", which needs none.
    Raises: QuantizationError for an unknown name, and for a static scheme without calibration data.
    """
    if isinstance(wanted, QuantizationScheme):
        found = wanted
    elif wanted == AUTO:
        usable = (each for each in _backend_schemes(compilation) if is_calibrated or each.kind != "static")
        found = next(usable, INT8_WEIGHTS)
    else:
        found = _find_scheme(wanted, compilation)
    if found.kind == "static" and not is_calibrated:
        raise QuantizationError(
            f"the scheme {found.name!r} needs calibration data",
            expected="calibration=, a list of feeds; --data, a folder, on the command line",
            hint="schemes of kind 'dynamic' and 'weights' need none",
        )
    return found


def _find_scheme(wanted: str, compilation: Compilation) -> QuantizationScheme:
    known = {**{each.name: each for each in _backend_schemes(compilation)}, **SCHEMES}
    if wanted not in known:
        raise QuantizationError(
            f"there is no quantization scheme {wanted!r}",
            expected=", ".join((AUTO, *known)),
            hint=did_you_mean(wanted, known),
        )
    return known[wanted]


def _backend_schemes(compilation: Compilation) -> Iterator[QuantizationScheme]:
    """Yield the schemes of the backends of a compile, in their order."""
    manager = get_manager()
    target = choose_target(manager, compilation.target)
    for backend in choose_backends(manager, target, compilation.backends, compilation.options):
        yield from backend.quantization_schemes(target)
