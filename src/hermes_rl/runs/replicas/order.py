"""What every worker of a fleet is to do: one `serve` command, the same but for the shard.

Always true: no key is in the words or in the configuration's text unless its owner wrote it there; keys travel apart,
as variables, and are no part of the order's name.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.environment.config import ENDLESS
from hermes_rl.environment.items import content_id
from hermes_rl.home import rl_home


@dataclass(frozen=True, slots=True)
class Order:
    """`config` is the text of the file that `--config` named, so that it need not be on the worker's machine.

    `kept` is where workers keep their files, below the home of hermes-rl on their own machine; where they always do
    when it is left out.
    """

    reference: str
    words: tuple[str, ...]
    shards: int
    config: str | None = None
    kept: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The same for the same work: workers of another are not taken over."""
        return content_id([self.reference, self.words, self.shards, self.config, self.kept])

    def command(self, shard: int, config: Path | None) -> list[str]:
        # Without the working folder on its path, as the command `hermes-rl` has it.
        command = [sys.executable, "-P", "-m", "hermes_rl", "serve", self.reference, "--json"]
        if config is not None:
            command += ["--config", str(config)]
        command += self.words
        if self.kept is not None:
            command += ["--env.serve_dir", str(rl_home() / self.kept)]
        command += ["--env.shards", str(self.shards), "--env.shard", str(shard)]
        # One evaluation is enough, however many make the groups.
        return command if shard == 0 else [*command, "--env.steps_per_eval", str(ENDLESS)]
