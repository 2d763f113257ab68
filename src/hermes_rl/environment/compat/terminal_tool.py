"""hermes-agent's `tools.terminal_tool`: the sandbox of a task whose agent loop the author runs.

Rollouts that hermes-rl runs take theirs from `sandbox_spec(item)`.
"""

from collections.abc import Mapping
from dataclasses import replace

from hermes_rl.core.errors import ConfigError
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.sandbox.spec import SandboxSpec, resolve_spec
from hermes_rl.tools.host import ToolHost

IMAGE_KEYS = ("bubblewrap_image", "docker_image", "podman_image", "modal_image", "daytona_image", "singularity_image")


def register_task_env_overrides(task_id: str, overrides: Mapping[str, str]) -> None:
    """Set the image of a task's sandbox, before its first tool call."""
    unknown = sorted(overrides.keys() - set(IMAGE_KEYS))
    if unknown:
        raise ConfigError(f"a task's sandbox cannot override {', '.join(unknown)}; define sandbox_spec(item) instead")
    host = ToolHost.current()
    if not host.pool.is_open:
        wait(host.pool.open())
    backend = host.pool.backend.name
    images = [overrides[key] for key in (f"{backend}_image", *IMAGE_KEYS) if key in overrides]
    session = host.session(task_id)
    spec = replace(session.spec or SandboxSpec(), image=images[0] if images else None)
    resolve_spec(spec, backend, host.pool.capabilities)
    session.spec = spec


def clear_task_env_overrides(task_id: str) -> None:
    """Do nothing: what was set for a task ends with its sandbox."""


def cleanup_vm(task_id: str) -> None:
    """Close the sandbox of a task."""
    wait(ToolHost.current().close_session(task_id))


__all__ = ["cleanup_vm", "clear_task_env_overrides", "register_task_env_overrides"]
