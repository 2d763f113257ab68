"""Warnings about settings that give up isolation: chosen by name, but easy to forget in a copied configuration."""

from hermes_rl.console.live_display import warn
from hermes_rl.rollout.config import HermesAgentEnvConfig

# Their sandboxes use the network of the host itself.
SHARES_HOST_NETWORK = ("bubblewrap", "singularity")


def warn_about_isolation(config: HermesAgentEnvConfig, backend: str) -> None:
    """`backend` is the one in use, which `auto` may have chosen."""
    if backend == "local":
        warn("terminal_backend local does not isolate: the model's commands run on this machine with your rights")
    elif config.sandbox_network:
        loopback = ", including the services on its loopback" if backend in SHARES_HOST_NETWORK else ""
        warn(f"sandbox_network true: the model's commands reach the network of this machine without a filter{loopback}")
