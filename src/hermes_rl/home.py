"""Where hermes-rl keeps things: `~/.hermes/rl`, moved by HERMES_HOME."""

import os
from pathlib import Path


def hermes_home() -> Path:
    return Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")


def rl_home() -> Path:
    return hermes_home() / "rl"
