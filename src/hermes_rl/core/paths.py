"""Directories of hermes-rl: its home (`~/.hermes/rl`, or under HERMES_HOME) and the bundled environments."""

import os
from pathlib import Path

SUFFIX = "_env"
# The seeds' names of bundled environments.
ENVIRONMENT_ALIASES = {"gsm8k_tinker": "gsm8k"}
_PACKAGE = Path(__file__).resolve().parents[1]


def bundled_environments_dir() -> Path:
    """The folder of the bundled environments: inside the package, or at the root of a checkout."""
    shipped = _PACKAGE / "bundled"
    return shipped if any(shipped.glob(f"*{SUFFIX}.py")) else _PACKAGE.parents[1] / "environments"


def hermes_home() -> Path:
    return Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")


def rl_home() -> Path:
    return hermes_home() / "rl"


def images_home() -> Path:
    """Where images are unpacked. Not under root's home, which the users of its sandboxes cannot read."""
    if os.geteuid() == 0 and not os.environ.get("HERMES_HOME"):
        return Path("/var/lib/hermes-rl/images")
    return rl_home() / "images"
