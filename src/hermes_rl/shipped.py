"""What comes with the package: the folder of the bundled environments, and the seeds' names for them."""

from pathlib import Path

SUFFIX = "_env"
# The seeds' names of bundled environments.
ALSO_KNOWN_AS = {"gsm8k_tinker": "gsm8k"}
_PACKAGE = Path(__file__).resolve().parent


def bundled_folder() -> Path:
    """Where the bundled environments are: in the package, or beside it in a checkout."""
    shipped = _PACKAGE / "bundled"
    return shipped if any(shipped.glob(f"*{SUFFIX}.py")) else _PACKAGE.parents[1] / "environments"
