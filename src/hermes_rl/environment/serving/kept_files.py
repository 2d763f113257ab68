"""Where an environment that is served keeps its files: what the API does not have yet, its metrics, its split.

Always true: the same settings give the same places, so a second run finds what the first one left.
"""

from dataclasses import dataclass
from pathlib import Path

from hermes_rl.environment.contract import Environment
from hermes_rl.environment.items import content_id
from hermes_rl.home import rl_home


@dataclass(frozen=True, slots=True)
class KeptFiles:
    spool: Path
    metrics: Path
    split: Path


def kept_files(env: Environment) -> KeptFiles:
    """A set for each instance: in `serve_dir` whatever the API's address is, else another for each API."""
    config, name, instance = env.config, env.display_name(), instance_of(env)
    if config.serve_dir:
        folder = Path(config.serve_dir)
        own = "-".join([name, *filter(None, [instance.replace("/", "-of-")])])
        return KeptFiles(folder / "spool" / own, folder / f"{own}.metrics.jsonl", folder / f"{own}.split.json")
    own = f"{name}-{content_id([config.rollout_server_url.rstrip('/'), name, instance])}"
    folder = rl_home() / "serve"
    return KeptFiles(rl_home() / "spool" / own, folder / f"{own}.metrics.jsonl", folder / f"{own}.split.json")


def instance_of(env: Environment) -> str:
    """Which of an environment's processes this is: of those that share its draws, or the one that only evaluates."""
    config = env.config
    if config.evaluation_only:
        return "evaluation"
    return f"{config.shard}/{config.shards}" if config.shards > 1 else ""
