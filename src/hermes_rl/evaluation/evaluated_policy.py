"""Which policy versions sampled an evaluation: in its report, in its metrics and in words.

Always true: an evaluation has a single version only if every answer came from that version.
"""

from collections.abc import Mapping
from typing import Any

from hermes_rl.inference.policy_pin import SampledVersions
from hermes_rl.rollout.environment_protocol import Environment


def evaluated_policy(env: Environment) -> dict[str, Any] | None:
    """The policy versions that sampled the evaluation; None if the endpoints name none and none was asked for.

    `version` is the one that sampled all of it. `due` is the one that `serve` wanted to evaluate.
    """
    sampled = env.server.pin.sampled if env.server.pin else SampledVersions()
    if sampled.low is None and env.policy_version is None:
        return None
    return {
        "version": sampled.only,
        "low": sampled.low,
        "high": sampled.high,
        "mixed": sampled.mixed,
        "due": env.policy_version,
    }


def version_metrics(policy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metrics of `evaluated_policy`; `eval/version` only if everything was sampled from that version."""
    names = {
        "version": "eval/version",
        "low": "eval/version_low",
        "high": "eval/version_high",
        "mixed": "eval/version_mixed",
        "due": "eval/version_due",
    }
    values = {metric: policy[name] for name, metric in names.items()} if policy else {}
    return {metric: int(value) for metric, value in values.items() if value is not None}


def policy_text(policy: Mapping[str, Any]) -> str:
    """Like `version 12` or `versions 12 to 13 (mixed)`."""
    if policy["version"] is not None:
        return f"version {policy['version']}"
    if policy["mixed"]:
        return f"versions {policy['low']} to {policy['high']} (mixed)"
    if policy["low"] is not None:
        return f"version {policy['low']} and unknown ones"
    return f"an unknown version (due: {policy['due']})"
