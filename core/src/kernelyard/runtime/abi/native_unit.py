"""NativeUnit: functions as C source and object code, all behind one C interface, so that they run without Python.

For each function `NAME` there are five C functions; each `int32_t` answers 0 for success:

    int32_t NAME_prepare(const void* const* constants, int32_t threads, void** shared);
    int32_t NAME_bind(void* shared, const int64_t* sizes, int32_t threads, void** call, int64_t* workspace_nbytes);
    int32_t NAME_run(void** args, void* call, int32_t threads, void* workspace);
    void NAME_unbind(void* call);
    void NAME_release(void* shared);

`prepare` is called once for a number of threads: weights are packed there. `bind` is called once for each set of sizes
(values of the symbolic dims, by name) and each caller; `run` gets the addresses of inputs and outputs each time. Calls
bound to one `shared` may run at the same time.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernelyard.errors import BackendUnavailableError
from kernelyard.runtime.abi.spec import Fields, Signature, corrupted, is_digest
from kernelyard.runtime.installed import distributions

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}\Z")
_LIBRARY_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]{0,100}\Z")
PARTS = ("prepare", "bind", "run", "unbind", "release")
PREFIX = "kyc_"
LANGUAGES = ("c", "c++")
# Of what optimizes, defines and warns; nothing that names a file, which is another machine's.
OPTION = re.compile(
    r"(-O[0-3sg]?|-std=[a-z0-9+:]+|-[DU][A-Za-z_]\w*(=[\w.+-]*)?|-m[\w.,+=-]+|-f(?!plugin)[\w=,-]+|-W(?![alp],)[\w=+-]+)\Z"
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*(/[A-Za-z0-9_+-][A-Za-z0-9_.+-]*){0,8}\Z")
# What `NAME_prepare` answers on a CPU that cannot run the code.
WRONG_CPU = 90


def c_name(symbol: str) -> str:
    """Return a C identifier for a function of a module: one for each symbol.

    Example:
        >>> c_name("dnnl_0")
        'kyc_dnnl_0'
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", symbol)[:100]
    if plain == symbol:
        return PREFIX + symbol
    return f"{PREFIX}{plain}_{hashlib.sha256(symbol.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class SharedLibrary:
    """A library that code calls: its file's name, the distributions that may bring it, the environment variable that
    may give its path, and what to tell people who lack it."""

    name: str
    distributions: tuple[str, ...] = ()
    variable: str = ""
    hint: str = ""

    def locate(self) -> str:
        """Return the library's path, or its bare name where the system's library path has it.

        Raises: BackendUnavailableError.
        """
        path = next(self._candidates(), None)
        if path is None:
            raise BackendUnavailableError(
                f"the library {self.name} is not here",
                expected=", ".join((*self.distributions, "the system's library path")),
                hint=self.hint or None,
            )
        return path

    def _candidates(self) -> Iterator[str]:
        given = os.environ.get(self.variable, "") if self.variable else ""
        if given:
            yield os.path.abspath(given)
        for distribution in self.distributions:
            found = distributions.find_distribution(distribution)
            yield from filter(os.path.exists, found.files(self.name) if found is not None else ())
        stem = self.name.removeprefix("lib").split(".so")[0]
        if ctypes.util.find_library(stem):
            yield self.name

    def to_json(self) -> dict[str, Any]:
        """Return the library as JSON data."""
        return {**asdict(self), "distributions": list(self.distributions)}


@dataclass(frozen=True)
class Header:
    """A header that code includes: its name as in `#include`, the distributions that may bring it, the environment
    variable that may give its include folder, and what to tell people who lack it."""

    name: str
    distributions: tuple[str, ...] = ()
    variable: str = ""
    hint: str = ""

    def locate(self) -> str | None:
        """Return the include folder, None where it is for the compiler to find."""
        given = os.environ.get(self.variable, "") if self.variable else ""
        if given:
            return os.path.abspath(given)
        for distribution in map(distributions.find_distribution, self.distributions):
            for path in distribution.files(os.path.basename(self.name)) if distribution is not None else ():
                if path.endswith(f"/{self.name}") and os.path.exists(path):
                    return path.removesuffix(f"/{self.name}")
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        return {**asdict(self), "distributions": list(self.distributions)}


@dataclass(frozen=True)
class NativeFunction:
    """A function of a unit. name: in C (see the module). constants: digests, in the order `NAME_prepare` gets them.
    sizes: the symbolic dims whose values `NAME_bind` gets, in order."""

    symbol: str
    name: str
    signature: Signature
    constants: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the function as JSON data."""
        return {
            "symbol": self.symbol,
            "name": self.name,
            "inputs": [spec.to_json() for spec in self.signature.inputs],
            "outputs": [spec.to_json() for spec in self.signature.outputs],
            "constants": list(self.constants),
            "sizes": list(self.sizes),
        }


@dataclass(frozen=True)
class NativeUnit:
    """C source, relocatable objects that it is linked with, and the libraries that both call.

    language: "c" or "c++". headers: what the source includes beside the system's. options: of the compiler (`OPTION`).
    Raises: ArtifactCorruptedError for another language, or an option with a path.
    """

    source: str
    functions: tuple[NativeFunction, ...]
    libraries: tuple[SharedLibrary, ...] = ()
    objects: tuple[bytes, ...] = ()
    language: str = "c"
    headers: tuple[Header, ...] = ()
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise corrupted("language", self.language, " or ".join(LANGUAGES))
        for option in self.options:
            if not OPTION.match(option):
                raise corrupted("compiler option", option, "one without a path, such as -O2, -DNAME=1 or -std=c++14")


def read_function(value: Any, where: str) -> NativeFunction:
    """Return a function from outside.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(value, where)
    inputs = fields.each("inputs", lambda item, place: Fields(item, place).tensor())
    outputs = fields.each("outputs", lambda item, place: Fields(item, place).tensor())
    name, constants = fields.text("name"), fields.texts("constants")
    if not IDENTIFIER.match(name) or not name.startswith(PREFIX):
        raise corrupted(f"{where}.name", name, f"a C identifier that starts with {PREFIX}")
    if not all(map(is_digest, constants)):
        raise corrupted(f"{where}.constants", constants, "digests")
    return NativeFunction(fields.text("symbol"), name, Signature(inputs, outputs), constants, fields.texts("sizes"))


def read_library(value: Any, where: str) -> SharedLibrary:
    """Return a library from outside: names only, never a path.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(value, where)
    library = SharedLibrary(
        fields.text("name"), fields.texts("distributions"), fields.text("variable"), fields.text("hint")
    )
    names = (library.name, *library.distributions, *([library.variable] if library.variable else []))
    if not all(map(_LIBRARY_NAME.match, names)):
        raise corrupted(where, names, "names of a library, of distributions and of a variable")
    return library


def read_header(value: Any, where: str) -> Header:
    """Return a header from outside: names only, never a path.

    Raises: ArtifactCorruptedError.
    """
    fields = Fields(value, where)
    header = Header(fields.text("name"), fields.texts("distributions"), fields.text("variable"), fields.text("hint"))
    names = (*header.distributions, *([header.variable] if header.variable else []))
    if not _HEADER_NAME.match(header.name) or not all(map(_LIBRARY_NAME.match, names)):
        raise corrupted(where, (header.name, *names), "names of a header, of distributions and of a variable")
    return header
