"""hermes-agent's `toolset_distributions`, with probabilities in percent.

An environment samples by its own seed. Here the global `random` decides, which is seeded in `setup` only.
"""

import random
from typing import Any

from hermes_rl.tools import distributions
from hermes_rl.tools.selection import ToolsetSelection

DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    name: {
        "description": f"hermes-agent's distribution {name!r}, without the toolsets that hermes-rl does not have",
        "toolsets": {toolset: round(100 * share) for toolset, share in shares.items()},
    }
    for name, shares in distributions.DISTRIBUTIONS.items()
}


def get_distribution(name: str) -> dict[str, Any] | None:
    return DISTRIBUTIONS.get(name)


def list_distributions() -> dict[str, dict[str, Any]]:
    return DISTRIBUTIONS.copy()


def validate_distribution(distribution_name: str) -> bool:
    return distribution_name in DISTRIBUTIONS


def sample_toolsets_from_distribution(distribution_name: str) -> list[str]:
    """Each toolset with its probability, at least one; ValueError for an unknown name."""
    if distribution_name not in DISTRIBUTIONS:
        raise ValueError(f"Unknown distribution: {distribution_name}; known: {', '.join(sorted(DISTRIBUTIONS))}")
    shares = {name: percent / 100 for name, percent in DISTRIBUTIONS[distribution_name]["toolsets"].items()}
    return ToolsetSelection(distribution=shares).sample(random.Random(random.getrandbits(64)))[0]


__all__ = [
    "DISTRIBUTIONS",
    "get_distribution",
    "list_distributions",
    "sample_toolsets_from_distribution",
    "validate_distribution",
]
