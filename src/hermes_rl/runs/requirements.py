"""What a run must find here before it starts, and what each thing is for.

Always true: a key is asked for only by what uses it, so a run on an engine of your own needs none.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from hermes_rl.runs.keys import find_key, key_names

OLDEST_PYTHON = (3, 11)
# The name under which each is imported, and the extra that brings it.
PACKAGES = {"tinker": "train", "transformers": "tokens", "renderers": "tokens"}


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str
    needed_by: str
    met: bool
    mend: str
    """The line that meets it."""
    optional: bool = False
    """Whether what it is for can do without."""


def requirements() -> tuple[Requirement, ...]:
    """All that the rl tools can require, met or not."""
    return (
        python_requirement(),
        *package_requirements(),
        key_requirement("TINKER_API_KEY", "training with the preset tinker; laptop and self-hosted need no key"),
        key_requirement("WANDB_API_KEY", "metrics on Weights & Biases; local files have them all", optional=True),
        key_requirement("OPENROUTER_API_KEY", "the inference test with its default models"),
    )


def missing_for(keys: Iterable[str] = ()) -> tuple[Requirement, ...]:
    """What a run that names those keys still lacks. Keys that it can do without are not counted."""
    known = {one.name: one for one in requirements()}
    always = (python_requirement(), *package_requirements())
    named = (known.get(name) or key_requirement(name, "this run's configuration") for name in dict.fromkeys(keys))
    return tuple(one for one in (*always, *named) if not one.met and not one.optional)


def missing_for_toolset() -> tuple[Requirement, ...]:
    """What the toolset `rl` lacks to be there at all. Keys wait until a run asks for them."""
    return missing_for()


def python_requirement() -> Requirement:
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Requirement(
        f"Python >= {wanted}",
        "hermes-rl, and Tinker's SDK",
        sys.version_info >= OLDEST_PYTHON,
        f"uv venv --python {wanted} && uv pip install hermes-rl",
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
