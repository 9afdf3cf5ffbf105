"""Run the linters whose configuration names plugins: `python tools/lint.py types [FILE ...]`, `... imports`.

Their options are in `pyproject.toml`; what follows from `plugins/` is added here. They read the sources of this
checkout, not installed copies of them.
"""

from __future__ import annotations

import configparser
import importlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from distributions import ROOT, Distribution, distributions, plugins
from packaging.requirements import Requirement

TYPES = ".basedpyright.json"  # in the root, which its paths start from


def _options(root: Path, tool: str) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"][tool]


def types_config(root: Path = ROOT) -> dict[str, Any]:
    """Return basedpyright's configuration: each distribution's sources are found, and checked.

    What an optional plugin requires need not be installed.
    """
    options = _options(root, "basedpyright")
    sources = [each.source.relative_to(root).as_posix() for each in distributions(root)]
    optional = [
        {"root": each.source.relative_to(root).as_posix(), "reportMissingImports": False}
        for each in plugins(root)
        if each.optional
    ]
    return {
        **options,
        "include": [*sources, *options["include"]],
        "extraPaths": sources,
        "executionEnvironments": [*optional, *options["executionEnvironments"]],
    }


def imports_config(root: Path = ROOT) -> dict[str, Any]:
    """Return import-linter's configuration: each distribution is read.

    No plugin imports another; a library imports only the plugins that it requires.
    """
    options = _options(root, "importlinter")
    own = {each: [module for module in each.modules if module != "kernelyard"] for each in plugins(root)}
    registered = {each.name: modules for each, modules in own.items() if each.manifest}
    every_plugin = [module for modules in registered.values() for module in modules]
    contracts = [
        *options["contracts"],
        {"name": "plugins do not know each other", "type": "independence", "modules": every_plugin},
    ]
    for library in (each for each in own if not each.manifest):
        required = {Requirement(text).name for text in library.project["dependencies"]}
        others = [module for name, modules in registered.items() if name not in required for module in modules]
        contract = {
            "name": f"{library.name} imports only the plugins that it requires",
            "type": "forbidden",
            "source_modules": [*own[library], *_put_into_the_core(library)],
            "forbidden_modules": others,
        }
        contracts.append(contract)
    names = [module for each in distributions(root) for module in each.modules]
    return {
        **options,
        "root_packages": list(dict.fromkeys(name.partition(".")[0] for name in names)),
        "contracts": contracts,
    }


def _put_into_the_core(each: Distribution) -> list[str]:
    """Return the packages `kernelyard.NAME` that a distribution brings."""
    return [f"kernelyard.{path.parent.name}" for path in sorted(each.source.glob("kernelyard/*/__init__.py"))]


def check_types(*files: str) -> int:
    """Run basedpyright over the files, or over all that is checked. Returns its exit status.

    Distributions that put packages into `kernelyard` are checked in a folder with symbolic links to all of them:
    basedpyright looks for these packages in the core's folder alone.
    """
    config = types_config()
    joined = [each for each in plugins() if _put_into_the_core(each)]
    sources = {each.source.relative_to(ROOT).as_posix(): each for each in joined}
    apart = [path for path in files if path.startswith(tuple(f"{source}/" for source in sources))]
    others = [path for path in files if path not in apart]
    status = 0
    if others or not files:
        main = {**config, "include": [path for path in config["include"] if path not in sources]}
        (ROOT / TYPES).write_text(json.dumps(main, indent=2), encoding="utf-8")
        status |= _basedpyright(ROOT / TYPES, others)
    if apart or not files:
        with tempfile.TemporaryDirectory() as folder:
            status |= _check_joined(Path(folder), config, joined, apart)
    return status


def _check_joined(folder: Path, config: dict[str, Any], joined: list[Distribution], files: list[str]) -> int:
    """Check distributions where one folder has every package of `kernelyard`."""
    package = folder / "kernelyard"
    package.mkdir()
    owned = [path for each in joined for path in (each.source / "kernelyard").iterdir()]
    for path in [*(ROOT / "core/src/kernelyard").iterdir(), *owned]:
        (package / path.name).symlink_to(path)
    packages = [str(path) for each in joined for path in each.source.glob("kernelyard_*")]
    own = {
        **config,
        "include": [*(f"kernelyard/{path.name}" for path in owned if path.is_dir()), *packages],
        "extraPaths": [str(folder), *(str(ROOT / path) for path in config["extraPaths"] if path != "core/src")],
        "executionEnvironments": [{"root": "."}],
    }
    (folder / TYPES).write_text(json.dumps(own), encoding="utf-8")
    seen = [re.sub(r"^plugins/[^/]+/src/(?=kernelyard/)", f"{folder}/", path) for path in files]
    return _basedpyright(folder / TYPES, [path if path.startswith("/") else str(ROOT / path) for path in seen])


def _basedpyright(config: Path, files: list[str]) -> int:
    command = [sys.executable, "-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable]
    return subprocess.run([*command, "--project", str(config), *files], cwd=config.parent, check=False).returncode


def check_imports() -> int:
    """Run import-linter over the sources. Returns its exit status."""
    from importlinter.cli import lint_imports

    sys.path[:0] = [str(each.source) for each in distributions()]
    # The linter asks the imported package for its folders, and so finds what other distributions put into it.
    folders = (each.source / "kernelyard" for each in distributions())
    importlib.import_module("kernelyard").__path__[:] = [str(folder) for folder in folders if folder.is_dir()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "importlinter.ini"
        with path.open("w", encoding="utf-8") as file:
            _as_ini(imports_config()).write(file)
        return lint_imports(config_filename=str(path))


def _as_ini(config: dict[str, Any]) -> configparser.ConfigParser:
    """Write the tables as import-linter reads them from INI files: a list is one line per entry."""
    parser = configparser.ConfigParser(interpolation=None)
    contracts = config.pop("contracts")
    sections = {"importlinter": config, **{f"importlinter:contract:{i}": each for i, each in enumerate(contracts)}}
    for name, values in sections.items():
        parser[name] = {key: "\n".join(["", *v]) if isinstance(v, list) else str(v) for key, v in values.items()}
    return parser


if __name__ == "__main__":
    linter, *arguments = sys.argv[1:]
    sys.exit({"types": check_types, "imports": check_imports}[linter](*arguments))
