"""File locations of a served environment: spool, metrics, item split and scores.

The same settings give the same paths, so the next run finds what the last one left.
"""

from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.paths import rl_home
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.sampler import content_id


@dataclass(frozen=True, slots=True)
class ServePaths:
    spool: Path
    metrics: Path
    split: Path
    scores: Path


def serve_paths(env: Environment) -> ServePaths:
    """The paths of one instance. Without `serve_dir` they also depend on the API's address."""
    config, name, instance = env.config, env.display_name(), instance_name(env)
    if config.serve_dir:
        folder = Path(config.serve_dir)
        own = "-".join([name, *filter(None, [instance.replace("/", "-of-")])])
        spool = folder / "spool" / own
    else:
        own = f"{name}-{content_id([config.rollout_server_url.rstrip('/'), name, instance])}"
        folder, spool = rl_home() / "serve", rl_home() / "spool" / own
    files = (folder / f"{own}.{suffix}" for suffix in ("metrics.jsonl", "split.json", "scores.jsonl"))
    return ServePaths(spool, *files)


def instance_name(env: Environment) -> str:
    """The shard as "0/4", "evaluation" for an evaluation-only process, or "" for a single process."""
    config = env.config
    if config.evaluation_only:
        return "evaluation"
    return f"{config.shard}/{config.shards}" if config.shards > 1 else ""
