"""Creates and probes a backend by name; `auto` is the first of AUTO that works here."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.extensions import SANDBOX_BACKENDS
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import Backend

NAMES = tuple(SANDBOX_BACKENDS.builtin)
AUTO = ("bubblewrap", "docker")


def make_backend(name: str, settings: Mapping[str, Any] | None = None, ledger: SandboxLedger | None = None) -> Backend:
    """Create a backend by name, without probing it. `settings` are the keyword arguments of its class."""
    make: Callable[..., Backend] = SANDBOX_BACKENDS.resolve(name)
    settings = settings or {}
    parameters = signature(make).parameters
    keywords = [each for each in parameters.values() if each.kind is each.KEYWORD_ONLY]
    required = [each.name for each in keywords if each.default is each.empty]
    if missing := [key for key in required if key not in settings]:
        raise ConfigError(
            f"the sandbox backend {name} needs the setting {', '.join(missing)}: in the configuration "
            f"sandbox_settings: {{{name}: {{{missing[0]}: …}}}}, for `sandbox check` --setting {missing[0]}=…"
        )
    try:
        backend = make(**settings, **({"ledger": ledger} if "ledger" in parameters else {}))
    except TypeError as error:
        raise ConfigError(f"settings of the sandbox backend {name}: {error}") from error
    if not isinstance(backend, Backend):
        raise ConfigError(f"{name} is not a sandbox backend: it needs what hermes_rl.sandbox.protocol.Backend lists")
    return backend


async def open_backends(
    name: str,
    settings: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]] | None = None,
    ledger: SandboxLedger | None = None,
) -> list[Backend]:
    """Create and probe the backend of that name: one instance per settings if they are a list.

    `auto` tries bubblewrap, then docker; `local` must be named. `settings` maps a backend's name to its settings.
    """
    reasons = []
    for candidate in AUTO if name == "auto" else (name,):
        configured = (settings or {}).get(candidate, {})
        instances = [configured] if isinstance(configured, Mapping) else configured
        try:
            backends = [make_backend(candidate, each, ledger) for each in instances]
            for backend in backends:
                await backend.probe()
        except (SandboxError, ConfigError) as error:
            if name != "auto":
                raise
            reasons.append(f"{candidate}: {error}")
        else:
            return backends
    raise SandboxError("start", "no sandbox can be started here. " + " ".join(reasons))


async def open_backend(
    name: str, settings: Mapping[str, Any] | None = None, ledger: SandboxLedger | None = None
) -> Backend:
    """Create and probe one backend with its settings."""
    (backend,) = await open_backends(name, dict.fromkeys(AUTO if name == "auto" else (name,), settings or {}), ledger)
    return backend
