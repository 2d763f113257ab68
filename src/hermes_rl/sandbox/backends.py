"""The backends by name, each imported when it is asked for, and `auto`."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.protocol import Backend

# Name: module, class, and the extra that brings its SDK.
_BACKENDS = {
    "bubblewrap": ("bubblewrap", "BubblewrapBackend", None),
    "docker": ("docker", "DockerBackend", "docker"),
    "podman": ("docker", "PodmanBackend", "docker"),
    "ssh": ("ssh", "SshBackend", "ssh"),
    "singularity": ("singularity", "SingularityBackend", None),
    "modal": ("modal", "ModalBackend", "modal"),
    "daytona": ("daytona", "DaytonaBackend", "daytona"),
    "local": ("local", "LocalBackend", None),
}
NAMES = tuple(_BACKENDS)
AUTO = ("bubblewrap", "docker")


def make_backend(name: str, settings: Mapping[str, Any] | None = None, ledger: Ledger | None = None) -> Backend:
    """A backend by its name, not tried yet. `settings` are the keyword arguments of its class."""
    known = _BACKENDS.get(name)
    if known is None:
        raise ConfigError(f"unknown sandbox backend {name!r}: choose one of auto, {', '.join(_BACKENDS)}")
    module, cls, extra = known
    try:
        make: Callable[..., Backend] = getattr(import_module(f"hermes_rl.sandbox.{module}"), cls)
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        raise ConfigError(
            f"the sandbox backend {name} needs the package {error.name}: pip install 'hermes-rl[{extra}]'"
        ) from error
    given = settings or {}
    parameters = signature(make).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is one.KEYWORD_ONLY]
    if missing := [key for key in needed if key not in given]:
        raise ConfigError(
            f"the sandbox backend {name} needs the setting {', '.join(missing)}: in the configuration "
            f"sandbox_settings: {{{name}: {{{missing[0]}: …}}}}, for `sandbox check` --setting {missing[0]}=…"
        )
    try:
        return make(**given, ledger=ledger)
    except TypeError as error:
        raise ConfigError(f"settings of the sandbox backend {name}: {error}") from error


async def open_backends(
    name: str,
    settings: Mapping[str, Mapping[str, Any] | Sequence[Mapping[str, Any]]] | None = None,
    ledger: Ledger | None = None,
) -> list[Backend]:
    """The backend of that name, really tried: one for each of its settings, if they are a list.

    `auto` is bubblewrap, else docker; `local` must be named. `settings` has the settings of each backend by its name.
    """
    reasons = []
    for one in AUTO if name == "auto" else (name,):
        given = (settings or {}).get(one, {})
        try:
            backends = [make_backend(one, each, ledger) for each in ([given] if isinstance(given, Mapping) else given)]
            for backend in backends:
                await backend.probe()
        except (SandboxError, ConfigError) as error:
            if name != "auto":
                raise
            reasons.append(f"{one}: {error}")
        else:
            return backends
    raise SandboxError("start", "no sandbox can be started here. " + " ".join(reasons))


async def open_backend(name: str, settings: Mapping[str, Any] | None = None, ledger: Ledger | None = None) -> Backend:
    """One backend, really tried; `settings` are its own."""
    (backend,) = await open_backends(name, dict.fromkeys(AUTO if name == "auto" else (name,), settings or {}), ledger)
    return backend
