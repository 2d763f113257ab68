"""What a run requires on this machine, and why.

Always true: a key is required only by what uses it, so a run on a self-hosted engine needs none.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from hermes_rl.core.keys import find_key
from hermes_rl.orchestration.keys import key_names

MIN_PYTHON = (3, 11)
# Import name, and the extra that installs it.
PACKAGES = {"tinker": "train", "transformers": "tokens", "renderers": "tokens"}


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    needed_by: str
    met: bool
    fix: str
    """The command that meets it."""
    optional: bool = False


def requirements() -> tuple[Requirement, ...]:
    """Everything that the rl tools can require, met or not."""
    return (
        python_requirement(),
        *package_requirements(),
        key_requirement("TINKER_API_KEY", "training with the preset tinker; laptop and self-hosted need no key"),
        key_requirement("WANDB_API_KEY", "metrics on Weights & Biases; local files have them too", optional=True),
        key_requirement("OPENROUTER_API_KEY", "the inference test with its default models"),
    )


def missing_for(keys: Iterable[str] = ()) -> tuple[Requirement, ...]:
    """Unmet requirements of a run that uses these keys, without optional ones."""
    known = {requirement.name: requirement for requirement in requirements()}
    always = (python_requirement(), *package_requirements())
    named = (known.get(name) or key_requirement(name, "this run's configuration") for name in dict.fromkeys(keys))
    return tuple(needed for needed in (*always, *named) if not needed.met and not needed.optional)


def missing_for_toolset() -> tuple[Requirement, ...]:
    """Unmet requirements of the toolset `rl`. Keys are checked when a run needs them."""
    return missing_for()


def python_requirement() -> Requirement:
    version = ".".join(map(str, MIN_PYTHON))
    return Requirement(
        f"Python >= {version}",
        "hermes-rl, and Tinker's SDK",
        sys.version_info >= MIN_PYTHON,
        f"uv venv --python {version} && uv pip install hermes-rl",
    )


def package_requirements() -> tuple[Requirement, ...]:
    return tuple(
        Requirement(package, "every training run", find_spec(package) is not None, f"pip install 'hermes-rl[{extra}]'")
        for package, extra in PACKAGES.items()
    )


def key_requirement(name: str, needed_by: str | None = None, *, optional: bool = False) -> Requirement:
    return Requirement(
        name,
        needed_by or key_names().get(name, "your own configuration"),
        find_key(name) is not None,
        f"hermes-rl config set {name}",
        optional,
    )
