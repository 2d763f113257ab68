"""Sandboxes: one rollout's machine each, behind one protocol, whatever runs them."""

from hermes_rl.sandbox.backends import make_backend, open_backend, open_backends
from hermes_rl.sandbox.bubblewrap import BubblewrapBackend, BubblewrapSandbox
from hermes_rl.sandbox.local import LocalBackend, LocalSandbox
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    TIMEOUT_EXIT_CODE,
    WORKSPACE,
    Backend,
    Command,
    ExecResult,
    Sandbox,
)
from hermes_rl.sandbox.reaper import reaping
from hermes_rl.sandbox.spec import AGENT, ROOT, Capabilities, Limits, SandboxSpec, settled

__all__ = [
    "AGENT",
    "DEFAULT_MAX_OUTPUT",
    "ROOT",
    "TIMEOUT_EXIT_CODE",
    "WORKSPACE",
    "Backend",
    "BubblewrapBackend",
    "BubblewrapSandbox",
    "Capabilities",
    "Command",
    "ExecResult",
    "Limits",
    "LocalBackend",
    "LocalSandbox",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "make_backend",
    "open_backend",
    "open_backends",
    "reaping",
    "settled",
]
