"""Where hermes-rl keeps things: `~/.hermes/rl`, moved by HERMES_HOME."""

import os
from pathlib import Path


def hermes_home() -> Path:
    return Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")


def rl_home() -> Path:
    return hermes_home() / "rl"


def images_home() -> Path:
    """Where images are unpacked. Root's home is closed to the users that its sandboxes run as, hence another place."""
    if os.geteuid() == 0 and not os.environ.get("HERMES_HOME"):
        return Path("/var/lib/hermes-rl/images")
    return rl_home() / "images"
