"""Facts: what a publisher says of a model, kept in the artifact's metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from kernelyard_deploy.errors import ExportError

KEY = "kernelyard.deployment"  # of the artifact's metadata; the value is the facts as JSON
LICENSE, AUTHOR = "model_license", "model_author"  # ONNX's names for these, in a model's own metadata
MOST = (1 << 31) - 1

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?\Z")
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,4}\Z")


@dataclass(frozen=True)
class Facts:
    """Hold the facts of a publisher, which compiled code does not say.

    name, version: of the model; letters, digits and `._-`, and numbers with dots. license: an SPDX expression.
    source: where the model comes from, an address or a revision. batch: the symbolic size whose rows are independent of
    each other, so that a server may put requests together. sizes: the least and the most of symbolic sizes. warm_up:
    sets of values for the symbolic sizes that are prepared before the first request.
    Raises: ExportError for values that are none of these.
    """

    name: str = ""
    version: str = "1.0"
    license: str = ""
    author: str = ""
    source: str = ""
    description: str = ""
    batch: str = ""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warm_up: Sequence[Mapping[str, int]] = ()

    def __post_init__(self) -> None:
        for key in ("license", "author", "source", "description", "batch"):
            text = getattr(self, key)
            _check(isinstance(text, str) and "\n" not in text, key, self, "one line of text")
        _check(not self.name or _is_text(self.name, _NAME), "name", self, "letters, digits and ._- between them")
        _check(_is_text(self.version, _VERSION), "version", self, "numbers with dots, such as 1.0")
        for name, bounds in self.sizes.items():
            right = len(bounds) == 2 and all(map(_is_size, bounds)) and bounds[0] <= bounds[1]
            _check(right, f"sizes[{name!r}]", self, f"the least and the most, from 0 to {MOST}")
        for values in self.warm_up:
            _check(all(map(_is_size, values.values())), "warm_up", self, f"sizes from 0 to {MOST}")

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON data."""
        data = asdict(self)
        sizes = {name: list(bounds) for name, bounds in sorted(self.sizes.items())}
        return {**data, "sizes": sizes, "warm_up": [dict(values) for values in self.warm_up]}

    def to_text(self) -> str:
        """Return the value that the artifact's metadata keeps; equal facts give the same."""
        return json.dumps(self.to_json(), sort_keys=True, ensure_ascii=False)

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Facts:
        """Read the facts that an artifact keeps; what it does not say is taken from what its model says.

        Raises: ExportError.
        """
        try:
            data = json.loads(metadata.get(KEY, "{}"))
            known = {each.name for each in fields(Facts)}
            given = {key: value for key, value in data.items() if key in known}  # a newer release may say more
            given["sizes"] = {name: (least, most) for name, (least, most) in given.get("sizes", {}).items()}
            given["warm_up"] = tuple(dict(values) for values in given.get("warm_up", ()))
            facts = Facts(**given)
        except (ValueError, TypeError, AttributeError) as error:
            raise ExportError("the facts in the artifact are malformed", where=KEY, found=str(error)) from error
        license_, author = (" ".join(metadata.get(key, "").split()) for key in (LICENSE, AUTHOR))
        return replace(facts, license=facts.license or license_, author=facts.author or author)


def _is_text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _check(right: bool, key: str, facts: Facts, expected: str) -> None:
    if not right:
        found = repr(getattr(facts, key.partition("[")[0]))
        raise ExportError("a fact about the model is malformed", where=key, found=found, expected=expected)
