"""Toolset distributions: named probabilities of toolsets, each sampled independently, once per group.

Names and probabilities are hermes-agent's, without the toolsets that hermes-rl does not have (image generation, mixture
of agents). `toolset_distributions` in the configuration adds more.
"""

from collections.abc import Mapping

from hermes_rl.core.errors import ConfigError

DISTRIBUTIONS: dict[str, dict[str, float]] = {
    "default": {"web": 1.0, "vision": 1.0, "terminal": 1.0, "file": 1.0, "browser": 1.0},
    "image_gen": {"vision": 0.9, "web": 0.55, "terminal": 0.45},
    "research": {"web": 0.9, "browser": 0.7, "vision": 0.5, "terminal": 0.1},
    "science": {"web": 0.94, "terminal": 0.94, "file": 0.94, "vision": 0.65, "browser": 0.5},
    "development": {"terminal": 0.8, "file": 0.8, "web": 0.3, "vision": 0.1},
    "safe": {"web": 0.8, "browser": 0.7, "vision": 0.6},
    "balanced": {"web": 0.5, "vision": 0.5, "terminal": 0.5, "file": 0.5, "browser": 0.5},
    "minimal": {"web": 1.0},
    "terminal_only": {"terminal": 1.0, "file": 1.0},
    "terminal_web": {"terminal": 1.0, "file": 1.0, "web": 1.0},
    "creative": {"vision": 0.9, "web": 0.3},
    "reasoning": {"web": 0.9, "file": 0.6, "terminal": 0.2},
    "browser_use": {"browser": 1.0, "web": 0.8, "vision": 0.7},
    "browser_only": {"browser": 1.0},
    "browser_tasks": {"browser": 0.97, "vision": 0.12, "terminal": 0.15},
    "terminal_tasks": {"terminal": 0.97, "file": 0.97, "web": 0.97, "browser": 0.75, "vision": 0.5},
    "mixed_tasks": {"browser": 0.92, "terminal": 0.92, "file": 0.92, "web": 0.35, "vision": 0.15},
}


def toolset_probabilities(name: str | None, custom: Mapping[str, Mapping[str, float]]) -> Mapping[str, float] | None:
    """The probabilities of a distribution; custom ones take precedence. ConfigError lists the known names."""
    if name is None:
        return None
    known = {**DISTRIBUTIONS, **custom}
    if name not in known:
        raise ConfigError(f"no toolset distribution is named {name!r}; known: {', '.join(sorted(known))}")
    probabilities = known[name]
    if not probabilities or any(not 0 <= probability <= 1 for probability in probabilities.values()):
        raise ConfigError(
            f"the distribution {name!r} must map toolsets to probabilities from 0 to 1, got {dict(probabilities)}"
        )
    return probabilities
