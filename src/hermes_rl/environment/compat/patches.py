"""hermes-agent's `environments.patches`."""


def apply_patches() -> None:
    """Do nothing: hermes-agent's sandboxes need a patch to run inside an event loop, ours are asyncio throughout."""


__all__ = ["apply_patches"]
