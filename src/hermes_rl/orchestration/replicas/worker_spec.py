"""The `serve` command of a fleet's workers, the same for all except the shard.

Always true: no key is in the arguments or the configuration text unless the user wrote it there; keys are passed
separately, as environment variables, and are not part of the spec's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.core.child_python import python_command
from hermes_rl.core.paths import rl_home
from hermes_rl.rollout.config import ENDLESS
from hermes_rl.rollout.sampler import content_id


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """`config` is the text of the `--config` file, which need not exist on the worker's machine.

    `serve_dir` is relative to the hermes-rl home of the worker's machine; None means the default.
    """

    reference: str
    args: tuple[str, ...]
    shards: int
    config: str | None = None
    serve_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """A content hash: a driver adopts only workers with the same spec."""
        return content_id([self.reference, self.args, self.shards, self.config, self.serve_dir])

    def command(self, shard: int, config: Path | None) -> list[str]:
        command = python_command("-m", "hermes_rl", "serve", self.reference, "--json")
        if config is not None:
            command += ["--config", str(config)]
        command += self.args
        if self.serve_dir is not None:
            command += ["--env.serve_dir", str(rl_home() / self.serve_dir)]
        command += ["--env.shards", str(self.shards), "--env.shard", str(shard)]
        # Only shard 0 evaluates.
        return command if shard == 0 else [*command, "--env.steps_per_eval", str(ENDLESS)]
