"""PluginManager: finds plugins, keeps a state and a reason for each, and loads one when it is first needed.

Why not pluggy's own entry-point loading: it stops at the first plugin that fails to import, and it accepts misspelt
hooks in silence. Here every plugin is checked alone (`check_pending` included), and what is wrong with one is stored.

Order of checks: blocked -> manifest readable -> duplicate name -> API range -> sandbox probe -> import -> hooks ->
probe. Nothing of a plugin runs before its API range fits; the sandbox probe runs in a subprocess (sandbox_probe.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

import pluggy

from kernelyard.errors import BackendUnavailableError, PluginError, UnknownBackendError, did_you_mean
from kernelyard.plugins import hookspecs
from kernelyard.plugins.discovery.plugin import STATES as STATES
from kernelyard.plugins.discovery.plugin import BackendInfo as BackendInfo
from kernelyard.plugins.discovery.plugin import Plugin
from kernelyard.plugins.hookspecs import API_VERSION, HOOK_OF_PART, PROJECT
from kernelyard.plugins.interfaces.backend import Backend, Unavailable
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.interfaces.frontend import Frontend
from kernelyard.plugins.interfaces.manifest import Manifest, read_manifest
from kernelyard.plugins.sandbox.guard import run_guarded
from kernelyard.runtime.installed.distributions import package_line
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of, find
from kernelyard.variables import EnvironmentVariable

GROUP = "kernelyard"
ALLOW_VARIABLE = EnvironmentVariable("KERNELYARD_PLUGINS", "`a,b`: load only these plugins", "all that are installed")
DISABLE_VARIABLE = EnvironmentVariable("KERNELYARD_DISABLE_PLUGIN_AUTOLOAD", "1: load no plugin", "off")
_TYPE_OF_PART: dict[str, type] = {"backend": Backend, "code_generator": CodeGenerator, "frontend": Frontend}


class PluginManager:
    """Every plugin of this environment; `blocked` names are not loaded."""

    def __init__(self, blocked: Iterable[str] = (), autoload: bool = True) -> None:
        self.pluggy = pluggy.PluginManager(PROJECT)
        self.pluggy.add_hookspecs(hookspecs)
        self.plugins: list[Plugin] = []
        self._blocked = frozenset(blocked)
        self._lock = RLock()  # held while a plugin is loaded: two threads may need it first
        if autoload:
            self._discover()

    # --- finding ----------------------------------------------------------------------------------------------------
    def _discover(self) -> None:
        found = find(GROUP)
        for entry in found.entries:
            plugin = Plugin(entry.name, *distribution_of(entry), entry.load, entry=entry)
            reason, hint = self._find_block_reason(entry.name)
            if reason:
                plugin.fail("blocked", reason, hint)
            else:
                self._read_manifest(plugin, entry.module)
            self.plugins.append(plugin)
        for dist, reason in found.unreadable:
            self.plugins.append(Plugin(dist, dist, "", _nothing, state="broken", reason=reason))
        self._settle_duplicates()

    def _find_block_reason(self, name: str) -> tuple[str, str]:
        """Return why the user disabled this plugin and how to enable it; "" if it is enabled."""
        if name in self._blocked:
            return f"blocked by the caller (-p no:{name})", f"leave out -p no:{name}"
        if DISABLE_VARIABLE.get() not in ("", "0"):
            return f"{DISABLE_VARIABLE} is set", f"unset {DISABLE_VARIABLE}"
        allowed = ALLOW_VARIABLE.get()
        if ALLOW_VARIABLE.is_set and name not in [item.strip() for item in allowed.split(",")]:
            return f"not in {ALLOW_VARIABLE}={allowed}", f"add {name} to {ALLOW_VARIABLE}"
        return "", ""

    def _read_manifest(self, plugin: Plugin, module: str) -> None:
        try:
            plugin.manifest = read_manifest(module)
        except PluginError as error:
            plugin.fail("broken", str(error), error.hint)
            return
        self._check_manifest(plugin)

    def _check_manifest(self, plugin: Plugin) -> None:
        manifest = _manifest_of(plugin)
        if manifest.name != plugin.name:
            plugin.fail("broken", f"its manifest says {manifest.name!r}, its entry point {plugin.name!r}")
        elif not manifest.is_compatible:
            other = f"install a version of {plugin.dist} for plugin API {API_VERSION}"
            hint = f"pip install --upgrade {PROJECT}" if manifest.wants_newer_core else other
            plugin.fail("incompatible", f"needs plugin API {manifest.api}, this core has {API_VERSION}", hint)

    def _settle_duplicates(self) -> None:
        """Keep one of several plugins with one name: that of the package kernelyard-NAME, else the first by name."""
        by_name: dict[str, list[Plugin]] = {}
        for plugin in self.plugins:
            if plugin.state == "discovered":
                by_name.setdefault(plugin.name, []).append(plugin)
        for name, same in by_name.items():
            winner = next((plugin for plugin in same if plugin.dist == f"{PROJECT}-{name}"), same[0])
            for loser in same:
                if loser is not winner:
                    hint = f"pip uninstall {loser.dist}, or {winner.dist}"
                    loser.fail("broken", f"the name {name!r} is taken by {winner.dist} {winner.version}", hint)

    def register(self, module: object, manifest: Manifest, dist: str = "this process", version: str = "") -> Plugin:
        """Add a plugin object that was not installed (prototypes, tests); checked like any other.

        Raises: PluginError when the name is taken.
        """
        if any(plugin.name == manifest.name and plugin.state != "broken" for plugin in self.plugins):
            raise PluginError(f"a plugin named {manifest.name!r} is already registered")
        plugin = Plugin(manifest.name, dist, version, lambda: module, manifest)
        self._check_manifest(plugin)
        self.plugins.append(plugin)
        return plugin

    def unregister(self, name: str) -> None:
        """Take out a plugin that `register` added."""
        for plugin in [plugin for plugin in self.plugins if plugin.name == name]:
            self.plugins.remove(plugin)
            if self.pluggy.has_plugin(name):
                self.pluggy.unregister(name=name)

    # --- loading ----------------------------------------------------------------------------------------------------
    def activate(self, *plugins: Plugin) -> None:
        """Import plugins and make their parts, once; afterwards their states say how that went."""
        with self._lock:
            waiting = [plugin for plugin in plugins if plugin.state == "discovered"]
            self._probe_in_sandbox(waiting)
            for plugin in waiting:
                if plugin.state == "discovered":
                    start = time.perf_counter()
                    self._activate(plugin)
                    plugin.seconds = time.perf_counter() - start

    def _probe_in_sandbox(self, plugins: Sequence[Plugin]) -> None:
        """Probe plugins in a subprocess and mark those that crash as broken, so that they are never loaded here."""
        if not any(plugin.entry for plugin in plugins):
            return
        from kernelyard.plugins.sandbox import sandbox_probe

        entries, hooks = _find_installed(plugins)
        verdicts = sandbox_probe.probe_plugins(entries, hooks)
        for plugin, verdict in zip([plugin for plugin in plugins if plugin.entry], verdicts, strict=True):
            if verdict.reason:
                plugin.fail("broken", verdict.reason, verdict.hint(plugin.name))

    def forget_verdicts(self) -> None:
        """Discard all cached verdicts, so that each plugin is probed again when it is next needed."""
        from kernelyard.plugins.sandbox import sandbox_probe

        sandbox_probe.forget(*_find_installed([plugin for plugin in self.plugins if plugin.manifest]))

    def _activate(self, plugin: Plugin) -> None:
        try:
            module = run_guarded(f"importing {plugin.label}", plugin.load)
            self._register_hooks(plugin, module)
            for part in _manifest_of(plugin).provides:
                plugin.parts[part] = self._make_part(plugin, part)
            unavailable = next(filter(None, (_probe(plugin, part) for part in plugin.parts.values())), None)
        except PluginError as error:
            hint = error.hint or _hint_for_missing_module(plugin, error.__cause__)
            plugin.fail("broken", error.message if error.where is None else str(error), hint)
            return
        if unavailable is not None:
            plugin.fail("unavailable", unavailable.reason, unavailable.hint)
        else:
            plugin.state = "active"

    def _register_hooks(self, plugin: Plugin, module: object) -> None:
        run_guarded(f"registering {plugin.label}", lambda: self.pluggy.register(module, name=plugin.name))
        own = [caller.name for caller in self.pluggy.get_hookcallers(module) or ()]
        problem, hint = _hook_problem(_manifest_of(plugin), own)
        if problem:
            self.pluggy.unregister(name=plugin.name)
            raise PluginError(problem, hint=hint)

    def _make_part(self, plugin: Plugin, part: str) -> Any:
        hook = getattr(self.pluggy.hook, HOOK_OF_PART[part])
        implementation = next(impl for impl in hook.get_hookimpls() if impl.plugin_name == plugin.name)
        made = run_guarded(f"{HOOK_OF_PART[part]} of {plugin.label}", implementation.function)
        if not isinstance(made, _TYPE_OF_PART[part]):
            raise PluginError(
                f"{HOOK_OF_PART[part]} returned {type(made).__name__}, not a {_TYPE_OF_PART[part].__name__}"
            )
        if getattr(made, "name", None) != plugin.name:
            raise PluginError(f"its {part} calls itself {getattr(made, 'name', None)!r}, not {plugin.name!r}")
        return made

    # --- asking ----------------------------------------------------------------------------------------------------
    def infos(self) -> list[BackendInfo]:
        """Return every plugin with its final state, by name."""
        self.activate(*self.plugins)
        return [plugin.info() for plugin in self.plugins]

    def active(self, part: str, target: str | None = None) -> list[Any]:
        """Return every usable part of one kind (for a target), highest priority first, then by name."""
        chosen = self.providers(part, target)
        self.activate(*chosen)
        usable = [plugin for plugin in chosen if plugin.state == "active"]
        usable.sort(key=lambda plugin: (-_manifest_of(plugin).priority, plugin.name))
        return [plugin.parts[part] for plugin in usable]

    def providers(self, part: str, target: str | None = None) -> list[Plugin]:
        """Return the plugins whose manifests say that they provide a part (for a target), usable or not."""
        return [plugin for plugin in self.plugins if _may_provide(plugin, part, target)]

    def frontends(self, model: object) -> Iterator[Frontend]:
        """Yield every usable frontend, those first whose manifest claims the model; each is imported when it is due."""
        for plugin in sorted(
            self.providers("frontend"), key=lambda plugin: (not _manifest_of(plugin).claims(model), plugin.name)
        ):
            self.activate(plugin)
            if plugin.state == "active":
                yield plugin.parts["frontend"]

    def unavailable(self, part: str, target: str) -> list[BackendInfo]:
        """Return the plugins with such a part for a target whose libraries or devices are missing here, by name."""
        chosen = self.providers(part, target)
        self.activate(*chosen)
        return [plugin.info() for plugin in chosen if plugin.state == "unavailable"]

    def get(self, name: str, part: str, target: str | None = None) -> Any:
        """Return the part that the plugin `name` provides.

        Raises: UnknownBackendError with the nearest name, BackendUnavailableError with the stored reason.
        """
        return self.get_any(name, (part,), target)

    def get_any(self, name: str, parts: Sequence[str], target: str | None = None) -> Any:
        """Return the first of `parts` that the plugin `name` provides.

        Raises: as `get`.
        """
        plugin = self._by_name(name, parts)
        self.activate(plugin)
        if plugin.state != "active":
            hint = plugin.hint or f"pip install --upgrade {plugin.dist}"
            raise BackendUnavailableError(f"{name} is {plugin.state}: {plugin.reason}", where=plugin.label, hint=hint)
        part = next((part for part in parts if _may_provide(plugin, part, target)), None)
        if part is None:
            manifest = plugin.manifest
            found = (
                f"{', '.join(manifest.provides)} for {', '.join(manifest.targets) or 'no target'}" if manifest else ""
            )
            expected = " or ".join(parts) + (f" for target {target}" if target else "")
            hint = f"compile for its target: target={manifest.targets[0]!r}" if manifest and manifest.targets else None
            raise BackendUnavailableError(
                f"{name} cannot be used here", where=plugin.label, found=found, expected=expected, hint=hint
            )
        return plugin.parts[part]

    def check_name(self, name: str) -> None:
        """Check that a plugin of that name was found. Raises: UnknownBackendError."""
        if all(plugin.name != name for plugin in self.plugins):
            raise _unknown_name(name, [plugin.name for plugin in self.plugins])

    def _by_name(self, name: str, parts: Sequence[str]) -> Plugin:
        same = [plugin for plugin in self.plugins if plugin.name == name]
        if same:
            return min(same, key=lambda plugin: plugin.state == "broken")
        raise _unknown_name(name, [p.name for p in self.plugins if any(_may_provide(p, part, None) for part in parts)])

    def option_names(self) -> dict[str, tuple[str, ...]]:
        """Return the compile options that each plugin takes, as its manifest says."""
        return {plugin.name: plugin.manifest.options if plugin.manifest else () for plugin in self.plugins}

    def target_kinds(self) -> tuple[str, ...]:
        """Return the kinds of targets that the plugins are for, as their manifests say."""
        return tuple(dict.fromkeys(kind for p in self.plugins if p.manifest for kind in p.manifest.targets))

    def priority_of(self, name: str) -> int:
        """Return the priority that the usable plugin of that name states."""
        return next((_manifest_of(p).priority for p in self.plugins if p.name == name and p.state == "active"), 0)

    def label_of(self, name: str) -> str:
        """Return the plugin's name with distribution and version, for messages."""
        return next((plugin.label for plugin in self.plugins if plugin.name == name), f"plugin {name!r}")


def _unknown_name(name: str, known: Iterable[str]) -> UnknownBackendError:
    known = sorted(set(known))
    install = package_line(name) or "install the package that brings it"
    close = did_you_mean(name, known)
    return UnknownBackendError(
        f"no installed plugin is called {name!r}",
        expected=", ".join(known) or "none is installed",
        hint=f"{close} If not, {install}" if close else install,
    )


def _manifest_of(plugin: Plugin) -> Manifest:
    assert plugin.manifest is not None, "a plugin without a manifest is broken, and is never used"
    return plugin.manifest


def _find_installed(plugins: Sequence[Plugin]) -> tuple[list[EntryPoint], list[list[str]]]:
    """Return the entry points of those that are installed, and the hooks that each promises."""
    installed = [(plugin.entry, _manifest_of(plugin)) for plugin in plugins if plugin.entry is not None]
    hooks = [[HOOK_OF_PART[part] for part in manifest.provides] for _, manifest in installed]
    return [entry for entry, _ in installed], hooks


def _hook_problem(manifest: Manifest, own: Sequence[str]) -> tuple[str, str | None]:
    """Return the fault of a plugin's hooks ("" for none) and a hint."""
    unknown = [name for name in own if name not in HOOK_OF_PART.values()]
    if unknown:
        return f"it implements an unknown hook {unknown[0]!r}", did_you_mean(unknown[0], HOOK_OF_PART.values())
    missing = [HOOK_OF_PART[part] for part in manifest.provides if HOOK_OF_PART[part] not in own]
    if missing:
        return f"its manifest provides {', '.join(manifest.provides)} but it implements no {missing[0]!r}", None
    return "", None


def _may_provide(plugin: Plugin, part: str, target: str | None) -> bool:
    manifest = plugin.manifest
    return manifest is not None and part in manifest.provides and (target is None or target in manifest.targets)


def _probe(plugin: Plugin, part: Any) -> Unavailable | None:
    def probe() -> Unavailable | None:
        try:
            return part.probe()
        except BackendUnavailableError as error:
            return Unavailable(error.message, error.hint)

    found = run_guarded(f"probing {plugin.label}", probe) if hasattr(part, "probe") else None
    if found is None or isinstance(found, Unavailable):
        return found
    raise PluginError(f"probe() returned {type(found).__name__}, not None or an Unavailable")


def _hint_for_missing_module(plugin: Plugin, error: BaseException | None) -> str | None:
    """Return the pip hint for a module missing from a plugin's import: its own, the core's, or another library's."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or plugin.entry is None:
        return None
    package = error.name.partition(".")[0]
    if package == plugin.entry.module.partition(".")[0]:
        return f"the installation is incomplete: pip install --force-reinstall {plugin.dist}"
    if package == PROJECT:
        return f"it was made for another release: pip install --upgrade {PROJECT} {plugin.dist}"
    return f"install the library that has the module {error.name!r}; {plugin.dist} {plugin.version} imports it"


def _nothing() -> None:
    """Load nothing, for a plugin without an entry point."""


@cache
def get_manager() -> PluginManager:
    """Return the process-wide manager, made at first use."""
    return PluginManager(_blocked_at_start)


_blocked_at_start: set[str] = set()


@contextmanager
def block_plugins(names: Iterable[str]) -> Iterator[None]:
    """Keep plugins from being loaded within a `with` block; the command line's `-p no:NAME`.

    Raises: UnknownBackendError for a name that no installed plugin has.
    """
    before = set(_blocked_at_start)
    for name in names:
        get_manager().check_name(name)
        _blocked_at_start.add(name)
    get_manager.cache_clear()
    try:
        yield
    finally:
        _blocked_at_start.clear()
        _blocked_at_start.update(before)
        get_manager.cache_clear()


def backends() -> list[BackendInfo]:
    """Return every plugin found, usable or not: name, dist, version, api range, state and reason.

    Example:
        >>> import kernelyard as ky
        >>> all(info.state in STATES for info in ky.backends())
        True
    """
    return get_manager().infos()
