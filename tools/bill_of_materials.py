"""Write what the distributions are made of and need, as a CycloneDX bill of materials (SBOM).

The format is CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/). Components of this repository have a version, a
licence and the digest of their wheel; what they need from elsewhere is named with the range of versions that they
accept, since pip chooses one when it installs.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributions import Distribution
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RANGE = "kernelyard:range"  # property of a component: the versions that are accepted
EXTRA = "kernelyard:extra"  # property: the extra that asks for it


def bill_of_materials(distributions: Iterable[Distribution], wheels: Mapping[str, Path], seconds: int) -> str:
    """Return the bill of materials of these distributions as JSON, whose bytes follow from the arguments.

    wheels: the built wheel of each, by name. seconds: the date of the sources, since 1970.
    """
    ours = {each.name: each for each in distributions}
    components = [_own_component(each, wheels[name]) for name, each in ours.items()]
    needed = {name: _requirements(each) for name, each in ours.items()}
    components += _foreign_components(needed, ours)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "name": "kernelyard", "bom-ref": "release"},
        },
        "components": components,
        "dependencies": [
            {"ref": name, "dependsOn": sorted({canonicalize_name(each.name) for each, _ in requirements})}
            for name, requirements in needed.items()
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))  # the same for the same content
    return json.dumps({"serialNumber": f"urn:uuid:{serial}", **bill}, indent=2) + "\n"


def _own_component(distribution: Distribution, wheel: Path) -> dict[str, Any]:
    project = distribution.project
    return {
        "type": "library",
        "bom-ref": project["name"],
        "name": project["name"],
        "version": project["version"],
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": f"pkg:pypi/{canonicalize_name(project['name'])}@{project['version']}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }


def _requirements(distribution: Distribution) -> list[tuple[Requirement, str]]:
    """Return what a distribution needs, each with the extra that asks for it; those for tests and linting stay out."""
    project = distribution.project
    extras = project.get("optional-dependencies", {})
    wanted = [(text, "") for text in project.get("dependencies", ())]
    wanted += [(text, name) for name, texts in extras.items() if name not in ("test", "lint") for text in texts]
    return [(Requirement(text), extra) for text, extra in wanted]


def _foreign_components(
    needed: Mapping[str, list[tuple[Requirement, str]]], ours: Mapping[str, Distribution]
) -> list[dict[str, Any]]:
    asked: dict[str, list[tuple[str, Requirement, str]]] = {}
    for asker, requirements in needed.items():
        for requirement, extra in requirements:
            if (name := canonicalize_name(requirement.name)) not in ours:
                asked.setdefault(name, []).append((asker, requirement, extra))
    return [_foreign_component(name, asked[name]) for name in sorted(asked)]


def _foreign_component(name: str, asked: list[tuple[str, Requirement, str]]) -> dict[str, Any]:
    ranges = sorted({f"{asker}: {requirement}" for asker, requirement, _ in asked})
    extras = sorted({f"{asker}[{extra}]" for asker, _, extra in asked if extra})
    always = any(not extra for _, _, extra in asked)
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "scope": "required" if always else "optional",
        "purl": f"pkg:pypi/{name}",
        "properties": [
            *({"name": RANGE, "value": each} for each in ranges),
            *({"name": EXTRA, "value": each} for each in extras),
        ],
    }
