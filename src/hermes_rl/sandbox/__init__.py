"""Sandboxes: one rollout's machine each, behind one protocol, whatever runs them."""

from hermes_rl.errors import ConfigError
from hermes_rl.sandbox.bubblewrap import BubblewrapBackend, BubblewrapSandbox
from hermes_rl.sandbox.local import LocalBackend, LocalSandbox
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    TIMEOUT_EXIT_CODE,
    WORKSPACE,
    Backend,
    Capabilities,
    Command,
    ExecResult,
    Sandbox,
)

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "TIMEOUT_EXIT_CODE",
    "WORKSPACE",
    "Backend",
    "BubblewrapBackend",
    "BubblewrapSandbox",
    "Capabilities",
    "Command",
    "ExecResult",
    "LocalBackend",
    "LocalSandbox",
    "Sandbox",
    "SandboxPool",
    "open_backend",
]

_BACKENDS: dict[str, type[BubblewrapBackend] | type[LocalBackend]] = {
    BubblewrapBackend.name: BubblewrapBackend,
    LocalBackend.name: LocalBackend,
}


async def open_backend(name: str) -> Backend:
    """The backend of that name, really tried. `auto` is bubblewrap; `local` runs on the host and must be named."""
    backend_type = _BACKENDS.get("bubblewrap" if name == "auto" else name)
    if backend_type is None:
        raise ConfigError(
            f"unknown sandbox backend {name!r}: choose one of auto, {', '.join(_BACKENDS)} "
            "(docker, ssh, singularity, modal and daytona come later)"
        )
    backend = backend_type()
    await backend.probe()
    return backend
